"""Vision transformers that see clips."""

import transformers as T

from families import CHANGES, FAILS, SHAPES, UNCOVERED
from families.vision import DECODER, LAYER_KEYS, PICTURE_KEYS, VIT

_CLIPS = {**VIT, "num_frames": 4}
_TIMESFORMER = {**_CLIPS, "num_frames": 3}
_VIVIT = {**{key: value for key, value in _CLIPS.items() if key != "patch_size"}, "tubelet_size": [2, 4, 2]}
_VIDEOMAE = {**_CLIPS, **DECODER}

FAMILIES = {
    "videomae": ("VideoMAE", ("ForVideoClassification", "ForPreTraining", "Model"), T.VideoMAEConfig, _VIDEOMAE),
    "videomae-unbiased": (
        "VideoMAE",
        ("ForPreTraining",),
        T.VideoMAEConfig,
        {**_VIDEOMAE, "use_mean_pooling": False, "qv_bias": False},
    ),
    "timesformer": ("Timesformer", ("ForVideoClassification", "Model"), T.TimesformerConfig, _TIMESFORMER),
    "timesformer-unbiased": (
        "Timesformer",
        ("ForVideoClassification",),
        T.TimesformerConfig,
        {**_TIMESFORMER, "qkv_bias": False},
    ),
    "timesformer-still": (
        "Timesformer",
        ("ForVideoClassification",),
        T.TimesformerConfig,
        {**_TIMESFORMER, "attention_type": "space_only"},
    ),
    "vivit": ("Vivit", ("ForVideoClassification", "Model"), T.VivitConfig, {**_VIVIT, "image_size": [8, 6]}),
}
FLOAT32_PARTS: tuple[str, ...] = ()

_VIVIT_KEYS = {
    **LAYER_KEYS,
    "image_size": ([8, 8], SHAPES),
    "num_frames": (8, SHAPES),
    "tubelet_size": ([2, 2, 2], SHAPES),
}
_KEYS = {
    **LAYER_KEYS,
    "image_size": (16, FAILS),  # the file has no positions, and they are of another number
    "num_frames": (8, FAILS),
    "patch_size": (2, SHAPES),
    "tubelet_size": (1, SHAPES),
    "use_mean_pooling": (False, SHAPES),
}
KEYS = {
    "videomae/VideoMAEForVideoClassification": _KEYS,
    "videomae/VideoMAEForPreTraining": {
        **{key: row for key, row in _KEYS.items() if key not in ("tubelet_size", "use_mean_pooling")},
        "decoder_num_attention_heads": (2, CHANGES),
    },
    "videomae/VideoMAEModel": {**_KEYS, "num_frames": (1, UNCOVERED)},
    "timesformer/TimesformerForVideoClassification": {
        **LAYER_KEYS,
        **PICTURE_KEYS,
        "num_frames": (8, SHAPES),
        "attention_type": ("space_only", SHAPES),
    },
    "vivit/VivitForVideoClassification": _VIVIT_KEYS,
    "vivit/VivitModel": {**_VIVIT_KEYS, "pooler_act": ("relu", CHANGES)},
    "timesformer/TimesformerModel": {"image_size": ([8, 8], UNCOVERED)},
}
TIED: tuple[str, ...] = ()
