"""DeBERTa v1, v2 and v3."""

import transformers as T

from families import ENCODER_HEADS, SMALL

_DEBERTA = {**SMALL, "relative_attention": True, "type_vocab_size": 0, "pos_att_type": "c2p|p2c"}
_DEBERTA2 = {**_DEBERTA, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "position_biased_input": False}

FAMILIES = {
    "deberta": ("Deberta", ENCODER_HEADS, T.DebertaConfig, {**_DEBERTA, "max_relative_positions": 8}),
    "deberta-v2-shared": (
        "DebertaV2",
        ENCODER_HEADS,
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
FLOAT32_PARTS: tuple[str, ...] = ("deberta/",)  # its norms
