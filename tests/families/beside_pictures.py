"""Encoders that read a picture beside a text, and a decoder that looks at one."""

import transformers as T

from families import CAUSAL_KEYS, SHAPES, SMALL, UNCOVERED, within
from families.vision import LAYER_KEYS, PICTURE_KEYS

_VILT = {**SMALL, "image_size": 8, "patch_size": 4, "num_labels": 3}

_BLIP = {
    "text_config": {**SMALL, "bos_token_id": 5, "sep_token_id": 6},
    "vision_config": {
        "hidden_size": 18,
        "num_attention_heads": 3,
        "num_hidden_layers": 3,
        "intermediate_size": 16,
        "image_size": 8,
        "patch_size": 4,
    },
}
_UNTIED = {"tie_word_embeddings": False}

FAMILIES = {
    "vilt": ("Vilt", ("ForMaskedLM", "ForImageAndTextRetrieval", "ForQuestionAnswering"), T.ViltConfig, _VILT),
    "vilt-unbiased": ("Vilt", ("ForImageAndTextRetrieval",), T.ViltConfig, {**_VILT, "qkv_bias": False}),
    "blip": ("Blip", ("ForConditionalGeneration",), T.BlipConfig, _BLIP),
    "blip-untied": (
        "Blip",
        ("ForConditionalGeneration",),
        T.BlipConfig,
        {**_BLIP, **_UNTIED, "text_config": {**_BLIP["text_config"], **_UNTIED}},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ()

KEYS = {
    "vilt/ViltForMaskedLM": {
        **LAYER_KEYS,
        **PICTURE_KEYS,
        "max_image_length": (2, UNCOVERED),
    },
    "vilt/ViltForQuestionAnswering": LAYER_KEYS,
    "vilt/ViltForImageAndTextRetrieval": {"image_size": ([8, 8], UNCOVERED)},
    "blip/BlipForConditionalGeneration": {
        **within("text_config", {**LAYER_KEYS, **CAUSAL_KEYS}),
        "text_config.is_decoder": (False, UNCOVERED),
        "tie_word_embeddings + text_config.tie_word_embeddings": ((False, False), SHAPES),  # either ties
        **within("vision_config", {**LAYER_KEYS, **PICTURE_KEYS}),
    },
    "blip-untied/BlipForConditionalGeneration": {"vision_config.image_size": ([8, 8], UNCOVERED)},
}
TIED: tuple[str, ...] = ()
