"""Decoders that read squares of SigLIP's patches as one."""

import transformers as T

from families import CHANGES, FAILS, KEEPS, SHAPES, UNCOVERED, within
from families.convolution_decoders import KEYS as CONVOLUTION_KEYS
from families.rmsnorm_decoders import GROUPED, RMS_KEYS, WINDOW_KEYS
from families.vision import LAYER_KEYS as VIT_KEYS

_TOWER = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 12,
    "patch_size": 4,
    "vision_use_head": False,
}
_COMMAND = {
    "text_config": {
        "model_type": "cohere2",
        **GROUPED,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "vision_config": {"model_type": "siglip_vision_model", **_TOWER, "image_size": 16},
    "alignment_intermediate_size": 20,
    "image_token_id": 7,
}
_AYA = {key: value for key, value in _COMMAND.items() if key != "image_token_id"} | {"image_token_index": 7}
_LFM2 = {
    "text_config": {
        "model_type": "lfm2",
        **GROUPED,
        "layer_types": ["conv", "full_attention"],
        "block_multiple_of": 4,
    },
    "vision_config": {"model_type": "siglip2_vision_model", **_TOWER, "num_patches": 16},
    "projector_hidden_size": 14,
    "image_token_id": 7,
}
_WHOLE = ("ForConditionalGeneration",)

FAMILIES = {
    "cohere2-vision": ("Cohere2Vision", _WHOLE, T.Cohere2VisionConfig, _COMMAND),
    "aya-vision-untied": ("AyaVision", _WHOLE, T.AyaVisionConfig, {**_AYA, "tie_word_embeddings": False}),
    "lfm2-vl": ("Lfm2Vl", _WHOLE, T.Lfm2VlConfig, _LFM2),
    "lfm2-vl-unnormed-untied": (
        "Lfm2Vl",
        _WHOLE,
        T.Lfm2VlConfig,
        {**_LFM2, "projector_use_layernorm": False, "projector_bias": False, "tie_word_embeddings": False},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("cohere2-vision", "aya-vision", "lfm2-vl")

_VIT = {**VIT_KEYS, "num_attention_heads": (4, CHANGES), "patch_size": (2, SHAPES)}
_TEXT = {
    **{key: row for key, row in RMS_KEYS.items() if key != "rms_norm_eps"},
    **WINDOW_KEYS,
    "layer_types": (["sliding_attention"] * 2, CHANGES),
    "layer_norm_eps": (0.1, CHANGES),
    "logit_scale": (2.0, KEEPS),
}
_COMMAND_KEYS = {
    **within("text_config", _TEXT),
    **within("vision_config", {**_VIT, "image_size": (24, SHAPES)}),
    "downsample_factor": (4, SHAPES),
}
KEYS = {
    "cohere2-vision/Cohere2VisionForConditionalGeneration": {
        **_COMMAND_KEYS,
        "image_token_id": (5, FAILS),
        "text_config.model_type": ("llama", UNCOVERED),
    },
    "aya-vision-untied/AyaVisionForConditionalGeneration": {
        **_COMMAND_KEYS,
        "image_token_index": (5, FAILS),
        "vision_feature_layer": (0, UNCOVERED),
        "vision_feature_select_strategy": ("default", FAILS),
        "adapter_layer_norm_eps": (1.0, CHANGES),
    },
    "lfm2-vl/Lfm2VlForConditionalGeneration": {
        **within("text_config", CONVOLUTION_KEYS["lfm2/Lfm2ForCausalLM"]),
        **within("vision_config", {**_VIT, "num_patches": (9, SHAPES)}),
        "projector_hidden_act": ("relu", CHANGES),
        "downsample_factor": (4, SHAPES),
        "image_token_id": (5, FAILS),
    },
}
TIED = (
    "cohere2-vision/Cohere2VisionForConditionalGeneration",
    "lfm2-vl/Lfm2VlForConditionalGeneration",
)
