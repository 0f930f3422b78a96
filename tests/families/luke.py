"""LUKE."""

import transformers as T

from families import CHANGES, CHOOSING_HEADS, SHAPES, SMALL

_LUKE = {**SMALL, "pad_token_id": 1, "entity_vocab_size": 30, "entity_emb_size": 10}
_HEADS = (
    *CHOOSING_HEADS,
    "ForEntityClassification",
    "ForEntityPairClassification",
    "ForEntitySpanClassification",
)

FAMILIES = {
    "luke": ("Luke", _HEADS, T.LukeConfig, _LUKE),
    "luke-plain-untied": (
        "Luke",
        ("ForMaskedLM",),
        T.LukeConfig,
        {**_LUKE, "use_entity_aware_attention": False, "tie_word_embeddings": False, "entity_emb_size": 24},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ()

KEYS = {
    "luke/LukeForMaskedLM": {
        "num_attention_heads": (2, CHANGES),
        "hidden_act": ("relu", CHANGES),
        "layer_norm_eps": (0.1, CHANGES),
        "pad_token_id": (3, CHANGES),
        "use_entity_aware_attention": (False, SHAPES),
    },
}
TIED = ("luke/LukeForMaskedLM",)
