"""Two towers, for text and for pictures."""

import transformers as T

from families import CAUSAL_KEYS, CHANGES, SMALL, UNCOVERED, within
from families.vision import LAYER_KEYS, PICTURE_KEYS

_TEXT = {**SMALL, "eos_token_id": 39, "projection_dim": 16}
_VISION = {
    "hidden_size": 20,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 16,
    "image_size": 8,
    "patch_size": 4,
}
_CLIP = {"text_config": _TEXT, "vision_config": _VISION, "projection_dim": 16}
_SIGLIP = {"text_config": {**SMALL, "projection_size": 20}, "vision_config": _VISION}

FAMILIES = {
    "clip": ("CLIP", ("Model",), T.CLIPConfig, _CLIP),
    "clip-text": ("CLIP", ("TextModelWithProjection", "TextModel"), T.CLIPTextConfig, _TEXT),
    "clip-vision": (
        "CLIP",
        ("VisionModelWithProjection", "VisionModel"),
        T.CLIPVisionConfig,
        {**_VISION, "projection_dim": 16},
    ),
    "siglip": ("Siglip", ("Model", "ForImageClassification"), T.SiglipConfig, {**_SIGLIP, "num_labels": 3}),
    "siglip-text": ("Siglip", ("TextModel",), T.SiglipTextConfig, {**SMALL, "projection_size": 20}),
    "siglip-vision": ("Siglip", ("VisionModel",), T.SiglipVisionConfig, _VISION),
}
FLOAT32_PARTS: tuple[str, ...] = ()


_CLIP_TEXT_KEYS = {**LAYER_KEYS, **CAUSAL_KEYS, "eos_token_id": (7, CHANGES)}
_VISION_KEYS = LAYER_KEYS | PICTURE_KEYS
KEYS = {
    "clip/CLIPModel": within("text_config", _CLIP_TEXT_KEYS) | within("vision_config", _VISION_KEYS),
    "clip-text/CLIPTextModelWithProjection": _CLIP_TEXT_KEYS,
    "clip-vision/CLIPVisionModelWithProjection": _VISION_KEYS,
    "siglip/SiglipModel": within("text_config", LAYER_KEYS) | within("vision_config", _VISION_KEYS),
    "siglip-text/SiglipTextModel": LAYER_KEYS,
    "siglip-vision/SiglipVisionModel": {**_VISION_KEYS, "vision_use_head": (False, UNCOVERED)},
}
TIED: tuple[str, ...] = ()
