"""DeBERTa v1, v2 and v3."""

import transformers as T

from families import ANSWERING_HEADS, CHANGES, CHOOSING_HEADS, ENCODER_HEADS, KEEPS, SHAPES, SMALL, UNCOVERED

_DEBERTA = {**SMALL, "relative_attention": True, "type_vocab_size": 0, "pos_att_type": "c2p|p2c"}
_DEBERTA2 = {**_DEBERTA, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "position_biased_input": False}

FAMILIES = {
    # relative positions that nothing reads, and the norm of those that there are not
    "deberta-content": (
        "Deberta",
        ("ForMaskedLM",),
        T.DebertaConfig,
        {**SMALL, "relative_attention": True, "type_vocab_size": 0},
    ),
    "deberta-v2-absolute": (
        "DebertaV2",
        ("ForMaskedLM",),
        T.DebertaV2Config,
        {**SMALL, "type_vocab_size": 0, "norm_rel_ebd": "layer_norm"},
    ),
    "deberta": ("Deberta", ANSWERING_HEADS, T.DebertaConfig, {**_DEBERTA, "max_relative_positions": 8}),
    "deberta-v2-shared": (
        "DebertaV2",
        CHOOSING_HEADS,
        T.DebertaV2Config,
        {**_DEBERTA2, "share_att_key": True},
    ),
    "deberta-v2-separate": (
        "DebertaV2",
        ENCODER_HEADS,
        T.DebertaV2Config,
        {**_DEBERTA2, "share_att_key": False, "conv_kernel_size": 3},
    ),
    "deberta-v2-new-head": ("DebertaV2", ("ForMaskedLM",), T.DebertaV2Config, {**_DEBERTA2, "legacy": False}),
}
FLOAT32_PARTS: tuple[str, ...] = ("deberta/", "deberta-content")  # its norms

_KEYS = {
    "num_attention_heads": (2, CHANGES),
    "hidden_act": ("relu", CHANGES),
    "layer_norm_eps": (0.1, CHANGES),
    "relative_attention": (False, SHAPES),
    "is_decoder": (True, KEEPS),
    "add_cross_attention": (True, KEEPS),
    "pooler_hidden_act": ("relu", CHANGES),
}
KEYS = {
    "deberta/DebertaForSequenceClassification": {
        **_KEYS,
        "position_biased_input": (False, CHANGES),
        "pos_att_type": (["c2p"], SHAPES),
        "max_relative_positions": (4, SHAPES),
        "talking_head": (True, UNCOVERED),
    },
    "deberta-v2-shared/DebertaV2ForSequenceClassification": {
        **_KEYS,
        "position_biased_input": (True, SHAPES),
        "pos_att_type": (["c2p"], CHANGES),
        "max_relative_positions": (64, CHANGES),
        "position_buckets": (4, SHAPES),
        "share_att_key": (False, SHAPES),
        "norm_rel_ebd": ("none", SHAPES),
        "conv_act": ("relu", KEEPS),  # there is no convolution
    },
    "deberta-v2-separate/DebertaV2ForMaskedLM": {
        "conv_act": ("relu", CHANGES),
        "conv_groups": (2, UNCOVERED),
        "pooler_hidden_act": ("relu", KEEPS),  # there is no pooler
    },
}
TIED = ("deberta/DebertaForMaskedLM", "deberta-v2-shared/DebertaV2ForMaskedLM")
