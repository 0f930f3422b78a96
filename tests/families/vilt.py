"""Encoders that read a picture beside a text."""

import transformers as T

from families import SMALL, UNCOVERED
from families.vision import LAYER_KEYS, PICTURE_KEYS

_VILT = {**SMALL, "image_size": 8, "patch_size": 4, "num_labels": 3}

FAMILIES = {
    "vilt": ("Vilt", ("ForMaskedLM", "ForImageAndTextRetrieval", "ForQuestionAnswering"), T.ViltConfig, _VILT),
    "vilt-unbiased": ("Vilt", ("ForImageAndTextRetrieval",), T.ViltConfig, {**_VILT, "qkv_bias": False}),
}
FLOAT32_PARTS: tuple[str, ...] = ()

KEYS = {
    "vilt/ViltForMaskedLM": {
        **LAYER_KEYS,
        **PICTURE_KEYS,
        "max_image_length": (2, UNCOVERED),
    },
    "vilt/ViltForQuestionAnswering": LAYER_KEYS,
}
TIED: tuple[str, ...] = ()
