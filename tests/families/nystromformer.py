"""Nyströmformer."""

import transformers as T

from families import CHANGES, CHOOSING_HEADS, FAILS, SHAPES, SMALL, UNCOVERED

_NYSTROMFORMER = {**SMALL, "segment_means_seq_len": 24, "num_landmarks": 6, "conv_kernel_size": 5}

FAMILIES = {
    "nystromformer": (
        "Nystromformer",
        ("ForMaskedLM", *(head for head in CHOOSING_HEADS if head != "ForMaskedLM")),
        T.NystromformerConfig,
        _NYSTROMFORMER,
    ),
    "nystromformer-exact-untied": (
        "Nystromformer",
        ("ForMaskedLM",),
        T.NystromformerConfig,
        {
            **{**_NYSTROMFORMER, "num_landmarks": 24, "tie_word_embeddings": False},
        },
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ()

KEYS = {
    "nystromformer/NystromformerForMaskedLM": {
        "num_attention_heads": (2, SHAPES),  # of the convolution
        "hidden_act": ("relu", CHANGES),
        "layer_norm_eps": (0.1, CHANGES),
        "num_landmarks": (4, CHANGES),
        "segment_means_seq_len": (12, FAILS),  # at the length of the other
        "inv_coeff_init_option": (True, UNCOVERED),
    },
}
TIED = ("nystromformer/NystromformerForMaskedLM",)
