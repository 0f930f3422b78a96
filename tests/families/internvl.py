"""InternVL."""

import transformers as T

from families import CHANGES, FAILS, SHAPES, UNCOVERED, within
from families.gated_delta import EXPERTS
from families.rmsnorm_decoders import GROUPED, HEAD_KEY, LAYER_KEYS, RMS_KEYS
from families.vision import LAYER_KEYS as VIT_KEYS

_TOWER = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 12,
    "image_size": [16, 16],
    "patch_size": [4, 4],
    "attention_bias": True,
}
_INTERNVL = {
    "text_config": {"model_type": "qwen2", **GROUPED},
    "vision_config": _TOWER,
    "image_token_id": 7,
    "tie_word_embeddings": False,
}
_LARGE = {
    **_INTERNVL,
    "text_config": {"model_type": "qwen3_moe", **GROUPED, "head_dim": 8, **EXPERTS},
    "vision_config": {**_TOWER, "use_qk_norm": True, "norm_type": "rms_norm", "use_mean_pooling": False},
    "tie_word_embeddings": True,
}
_WHOLE = ("ForConditionalGeneration",)

FAMILIES = {
    "internvl": ("InternVL", _WHOLE, T.InternVLConfig, _INTERNVL),
    "internvl-large-tied": ("InternVL", _WHOLE, T.InternVLConfig, _LARGE),
}
FLOAT32_PARTS: tuple[str, ...] = ("internvl",)

_KEYS = {
    **within("text_config", {**RMS_KEYS, **LAYER_KEYS}),
    **within(
        "vision_config",
        {
            **VIT_KEYS,
            "num_attention_heads": (4, CHANGES),
            "image_size": ([24, 24], SHAPES),
            "patch_size": ([2, 2], SHAPES),
        },
    ),
    "projector_hidden_act": ("relu", CHANGES),
    "downsample_ratio": (0.45, FAILS),
    "vision_feature_select_strategy": ("full", FAILS),
    "vision_feature_layer": (-2, UNCOVERED),
    "text_config.model_type": ("llama", UNCOVERED),
    "image_token_id": (5, FAILS),
}
KEYS = {
    "internvl/InternVLForConditionalGeneration": _KEYS,
    "internvl-large-tied/InternVLForConditionalGeneration": within(
        "text_config",
        {
            HEAD_KEY: ((2, 1, 16), SHAPES),
            "num_experts_per_tok": (1, CHANGES),
            "norm_topk_prob": (True, CHANGES),
            "use_sliding_window + sliding_window": ((True, 5), CHANGES),
        },
    ),
}
TIED: tuple[str, ...] = ("internvl-large-tied/InternVLForConditionalGeneration",)
