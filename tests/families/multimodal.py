"""Two towers, for text and for pictures."""

import transformers as T

from families import CAUSAL_KEYS, CHANGES, SHAPES, SMALL, UNCOVERED, within
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
_META_TEXT = {**_TEXT, "eos_token_id": 2, "bos_token_id": 0}
_META_CLIP = {**_CLIP, "text_config": _META_TEXT, "num_labels": 3}
_CHINESE_CLIP = {"text_config": SMALL, "vision_config": _VISION, "projection_dim": 16}
_ALT_TEXT = {**SMALL, "pad_token_id": 1, "project_dim": 14}
_ALT_CLIP = {"text_config": _ALT_TEXT, "vision_config": _VISION, "projection_dim": 16}
_PATCHES = {key: value for key, value in _VISION.items() if key != "image_size"} | {"num_patches": 4}
_SIGLIP2 = {"text_config": {**SMALL, "projection_size": 20}, "vision_config": _PATCHES}
_SIGLIP = {"text_config": {**SMALL, "projection_size": 20}, "vision_config": _VISION}

FAMILIES = {
    "clip": ("CLIP", ("Model", "ForImageClassification"), T.CLIPConfig, {**_CLIP, "num_labels": 3}),
    "clip-text": ("CLIP", ("TextModelWithProjection", "TextModel"), T.CLIPTextConfig, _TEXT),
    "clip-vision": (
        "CLIP",
        ("VisionModelWithProjection", "VisionModel"),
        T.CLIPVisionConfig,
        {**_VISION, "projection_dim": 16},
    ),
    "metaclip-2": ("MetaClip2", ("Model", "ForImageClassification"), T.MetaClip2Config, _META_CLIP),
    "metaclip-2-text": ("MetaClip2", ("TextModelWithProjection", "TextModel"), T.MetaClip2TextConfig, _META_TEXT),
    "metaclip-2-vision": (
        "MetaClip2",
        ("VisionModelWithProjection", "VisionModel"),
        T.MetaClip2VisionConfig,
        {**_VISION, "projection_dim": 16},
    ),
    "chinese-clip": ("ChineseCLIP", ("Model",), T.ChineseCLIPConfig, _CHINESE_CLIP),
    "chinese-clip-text": ("ChineseCLIP", ("TextModel",), T.ChineseCLIPTextConfig, SMALL),
    "chinese-clip-vision": ("ChineseCLIP", ("VisionModel",), T.ChineseCLIPVisionConfig, _VISION),
    "altclip": ("AltCLIP", ("Model",), T.AltCLIPConfig, _ALT_CLIP),
    "altclip-text": ("AltCLIP", ("TextModel",), T.AltCLIPTextConfig, _ALT_TEXT),
    "altclip-vision": ("AltCLIP", ("VisionModel",), T.AltCLIPVisionConfig, _VISION),
    "siglip": ("Siglip", ("Model", "ForImageClassification"), T.SiglipConfig, {**_SIGLIP, "num_labels": 3}),
    "siglip-text": ("Siglip", ("TextModel",), T.SiglipTextConfig, {**SMALL, "projection_size": 20}),
    "siglip2": ("Siglip2", ("Model", "ForImageClassification"), T.Siglip2Config, {**_SIGLIP2, "num_labels": 3}),
    "siglip2-text": ("Siglip2", ("TextModel",), T.Siglip2TextConfig, {**SMALL, "projection_size": 20}),
    "siglip2-vision": ("Siglip2", ("VisionModel",), T.Siglip2VisionConfig, _PATCHES),
    "siglip-vision": ("Siglip", ("VisionModel",), T.SiglipVisionConfig, _VISION),
}
FLOAT32_PARTS: tuple[str, ...] = ("siglip2/", "siglip2-vision")  # positions are resized so


_CLIP_TEXT_KEYS = {**LAYER_KEYS, **CAUSAL_KEYS, "eos_token_id": (7, CHANGES)}
_META_KEYS = {**LAYER_KEYS, **CAUSAL_KEYS, "eos_token_id": (39, CHANGES)}
_ALT_TEXT_KEYS = {**LAYER_KEYS, "pad_token_id": (3, CHANGES)}
_VISION_KEYS = LAYER_KEYS | PICTURE_KEYS
_PATCH_KEYS = LAYER_KEYS | {"patch_size": (2, SHAPES), "num_patches": (9, SHAPES)}
KEYS = {
    "clip/CLIPModel": within("text_config", _CLIP_TEXT_KEYS) | within("vision_config", _VISION_KEYS),
    "clip-text/CLIPTextModelWithProjection": _CLIP_TEXT_KEYS,
    "clip-vision/CLIPVisionModelWithProjection": _VISION_KEYS,
    "metaclip-2/MetaClip2Model": within("text_config", _META_KEYS) | within("vision_config", _VISION_KEYS),
    "metaclip-2-text/MetaClip2TextModelWithProjection": _META_KEYS,
    "metaclip-2-vision/MetaClip2VisionModelWithProjection": _VISION_KEYS,
    "chinese-clip/ChineseCLIPModel": within("text_config", LAYER_KEYS) | within("vision_config", _VISION_KEYS),
    "chinese-clip-text/ChineseCLIPTextModel": LAYER_KEYS,
    "chinese-clip-vision/ChineseCLIPVisionModel": _VISION_KEYS,
    "altclip/AltCLIPModel": within("text_config", _ALT_TEXT_KEYS) | within("vision_config", _VISION_KEYS),
    "altclip-text/AltCLIPTextModel": _ALT_TEXT_KEYS,
    "altclip-vision/AltCLIPVisionModel": _VISION_KEYS,
    "siglip/SiglipModel": within("text_config", LAYER_KEYS) | within("vision_config", _VISION_KEYS),
    "siglip-text/SiglipTextModel": LAYER_KEYS,
    "siglip2/Siglip2Model": within("text_config", LAYER_KEYS) | within("vision_config", _PATCH_KEYS),
    "siglip2-text/Siglip2TextModel": LAYER_KEYS,
    "siglip2-vision/Siglip2VisionModel": {**_PATCH_KEYS, "vision_use_head": (False, UNCOVERED)},
    "siglip-vision/SiglipVisionModel": {**_VISION_KEYS, "vision_use_head": (False, UNCOVERED)},
}
TIED: tuple[str, ...] = ()
