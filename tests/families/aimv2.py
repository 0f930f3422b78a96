"""AIMv2: a vision transformer with RMSNorms, alone and beside a text tower."""

import transformers as T

from families import CAUSAL_KEYS, CHANGES, SHAPES, SMALL, UNCOVERED, within

_TEXT = {**SMALL, "eos_token_id": 39}
_VISION = {
    "hidden_size": 20,
    "num_attention_heads": 5,
    "num_hidden_layers": 2,
    "intermediate_size": 16,
    "image_size": 8,
    "patch_size": 4,
}
_NATIVE = {**_VISION, "is_native": True, "qkv_bias": True, "mlp_bias": True}
_BIASED = {"qkv_bias": True, "mlp_bias": True}
_BOTH = {"projection_dim": 14}

FAMILIES = {
    "aimv2": ("Aimv2", ("Model",), T.Aimv2Config, {**_BOTH, "text_config": _TEXT, "vision_config": _VISION}),
    "aimv2-native": (
        "Aimv2",
        ("Model",),
        T.Aimv2Config,
        {**_BOTH, "text_config": {**_TEXT, **_BIASED}, "vision_config": _NATIVE},
    ),
    "aimv2-text": ("Aimv2", ("TextModel",), T.Aimv2TextConfig, _TEXT),
    "aimv2-vision": ("Aimv2", ("VisionModel",), T.Aimv2VisionConfig, _VISION),
    "aimv2-vision-unpooled": (
        "Aimv2",
        ("VisionModel",),
        T.Aimv2VisionConfig,
        {**_NATIVE, "use_head": False},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("aimv2",)

_KEYS = {"num_attention_heads": (2, CHANGES), "hidden_act": ("relu", CHANGES), "rms_norm_eps": (0.1, CHANGES)}
_TEXT_KEYS = {**_KEYS, **CAUSAL_KEYS, "eos_token_id": (7, CHANGES)}
_VISION_KEYS = {**_KEYS, "patch_size": (2, SHAPES)}
KEYS = {
    "aimv2/Aimv2Model": {
        **within("text_config", _TEXT_KEYS),
        **within("vision_config", {**_VISION_KEYS, "image_size": (16, SHAPES), "use_head": (False, UNCOVERED)}),
        "max_logit_scale": (1.5, CHANGES),
    },
    "aimv2-text/Aimv2TextModel": _TEXT_KEYS,
    "aimv2-vision/Aimv2VisionModel": {**_VISION_KEYS, "image_size": (16, SHAPES), "is_native": (True, SHAPES)},
    "aimv2-vision-unpooled/Aimv2VisionModel": _VISION_KEYS,
}
TIED: tuple[str, ...] = ()
