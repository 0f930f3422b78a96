"""LLaVA and those that follow it."""

import transformers as T

from families import CHANGES, FAILS, KEEPS, SHAPES, UNCOVERED, within
from families.rmsnorm_decoders import GROUPED, HEAD_KEY, LAYER_KEYS, RMS_KEYS, WINDOW_KEYS
from families.vision import LAYER_KEYS as VIT_KEYS

_TOWER = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 12,
    "image_size": 8,
    "patch_size": 4,
}
_CLIP = {"model_type": "clip_vision_model", **_TOWER}
_SIGLIP = {"model_type": "siglip_vision_model", **_TOWER, "vision_use_head": False}
_LLAMA = {"model_type": "llama", **GROUPED}
_LLAVA = {"text_config": _LLAMA, "vision_config": _CLIP, "image_token_index": 7}
_TILED = {**_LLAVA, "image_grid_pinpoints": [[16, 16], [8, 16]]}
_MISTRAL = {"model_type": "mistral", **GROUPED, "head_dim": 8, "sliding_window": 5}
_QWEN = {"model_type": "qwen2", **GROUPED}
_WHOLE = ("ForConditionalGeneration",)

FAMILIES = {
    "llava": ("Llava", _WHOLE, T.LlavaConfig, _LLAVA),
    "llava-siglip-tied": (
        "Llava",
        _WHOLE,
        T.LlavaConfig,
        {
            **_LLAVA,
            "text_config": _QWEN,
            "vision_config": {**_SIGLIP, "vision_use_head": True},
            "vision_feature_select_strategy": "full",
            "tie_word_embeddings": True,
        },
    ),
    "llava-pixtral": (
        "Llava",
        _WHOLE,
        T.LlavaConfig,
        {
            **_LLAVA,
            "text_config": _MISTRAL,
            "vision_config": {"model_type": "pixtral", **_TOWER},
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
            "multimodal_projector_bias": False,
        },
    ),
    "llava-next": ("LlavaNext", _WHOLE, T.LlavaNextConfig, {**_TILED, "text_config": _MISTRAL}),
    "llava-next-granite-tied": (
        "LlavaNext",
        _WHOLE,
        T.LlavaNextConfig,
        {
            **_TILED,
            "text_config": {"model_type": "granite", **GROUPED, "embedding_multiplier": 3.0},
            "vision_config": _SIGLIP,
            "vision_feature_layer": [-2, 1],
            "vision_feature_select_strategy": "full",
            "tie_word_embeddings": True,
        },
    ),
    "llava-next-video": (
        "LlavaNextVideo",
        _WHOLE,
        T.LlavaNextVideoConfig,
        {**_TILED, "vision_config": _SIGLIP, "vision_feature_select_strategy": "full", "video_token_index": 8},
    ),
    "vipllava": ("VipLlava", _WHOLE, T.VipLlavaConfig, {**_LLAVA, "vision_feature_layer": [-2, 1]}),
    "llava-onevision": (
        "LlavaOnevision",
        _WHOLE,
        T.LlavaOnevisionConfig,
        {**_TILED, "text_config": _QWEN, "vision_config": _SIGLIP, "video_token_index": 8},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("llava", "vipllava")

_TEXT = within("text_config", RMS_KEYS)
_VIT = within(
    "vision_config",
    {**VIT_KEYS, "num_attention_heads": (4, CHANGES), "image_size": (16, SHAPES), "patch_size": (2, SHAPES)},
)
_PROJECTOR = {
    "projector_hidden_act": ("relu", CHANGES),
    "vision_feature_layer": (-1, CHANGES),
    "vision_feature_select_strategy": ("full", FAILS),
    "image_token_index": (5, FAILS),
}
KEYS = {
    "llava/LlavaForConditionalGeneration": {
        **_TEXT,
        **_VIT,
        **_PROJECTOR,
    },
    "llava-siglip-tied/LlavaForConditionalGeneration": within("text_config", LAYER_KEYS),
    "llava-pixtral/LlavaForConditionalGeneration": {
        **within("text_config", WINDOW_KEYS),
        "vision_config.rope_parameters": ({"rope_type": "axial", "rope_theta": 10.0}, CHANGES),
        "vision_feature_layer": (0, UNCOVERED),
        "text_config.model_type": ("gemma", UNCOVERED),
        "vision_config.model_type": ("siglip2_vision_model", UNCOVERED),
    },
    "llava-next/LlavaNextForConditionalGeneration": {
        **_TEXT,
        **within("text_config", {HEAD_KEY: ((2, 1, 16), CHANGES), **WINDOW_KEYS}),
        **_VIT,
        **_PROJECTOR,
        "image_grid_pinpoints": ([[16, 16]], FAILS),
    },
    "llava-next-granite-tied/LlavaNextForConditionalGeneration": within(
        "text_config",
        {
            "embedding_multiplier": (1.0, CHANGES),
            "attention_multiplier": (0.2, CHANGES),
            "residual_multiplier": (0.5, CHANGES),
            "logits_scaling": (2.0, KEEPS),  # of the decoder alone
        },
    ),
    "llava-next-video/LlavaNextVideoForConditionalGeneration": {
        **_TEXT,
        **_VIT,
        **_PROJECTOR,
        "vision_feature_select_strategy": ("default", FAILS),
        "image_grid_pinpoints": ([[16, 16]], FAILS),
        "video_token_index": (5, KEEPS),  # of videos alone
        "spatial_pool_mode": ("max", UNCOVERED),
        "spatial_pool_stride": (1, KEEPS),  # of videos alone
    },
    "vipllava/VipLlavaForConditionalGeneration": {
        **_TEXT,
        **_VIT,
        "projector_hidden_act": ("relu", CHANGES),
        "projector_layernorm_eps": (0.1, CHANGES),
        "vision_feature_layer": ([-2, -1], CHANGES),
        "image_token_index": (5, FAILS),
        "vision_config.model_type": ("siglip_vision_model", UNCOVERED),
    },
    "llava-onevision/LlavaOnevisionForConditionalGeneration": {
        **_TEXT,
        **within("text_config", LAYER_KEYS),
        **_VIT,
        **_PROJECTOR,
        "vision_feature_layer": (2, CHANGES),
        "vision_feature_select_strategy": ("default", FAILS),
        "image_grid_pinpoints": ([[16, 16]], FAILS),
        "vision_aspect_ratio": ("anyres_max_1", FAILS),
        "video_token_index": (11, KEEPS),  # read where there are videos
    },
}
TIED: tuple[str, ...] = (
    "llava-siglip-tied/LlavaForConditionalGeneration",
    "llava-next-granite-tied/LlavaNextForConditionalGeneration",
)
