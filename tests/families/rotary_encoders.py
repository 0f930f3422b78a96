"""Post-norm encoders with a rotary embedding."""

import transformers as T

from families import ANSWERING_HEADS, CHANGES, ENCODER_HEADS, KEEPS, LINEAR_ROPE, SMALL

_GTE = {**SMALL, "type_vocab_size": 2}
_UNTIED = {"tie_word_embeddings": False}

FAMILIES = {
    "nomic-bert": ("NomicBert", ENCODER_HEADS, T.NomicBertConfig, SMALL),
    "nomic-bert-untied": ("NomicBert", ("ForMaskedLM",), T.NomicBertConfig, {**SMALL, **_UNTIED}),
    "nomic-bert-wide": ("NomicBert", ("ForMaskedLM",), T.NomicBertConfig, {**SMALL, "head_dim": 8}),
    "gte": ("Gte", ENCODER_HEADS, T.GteConfig, _GTE),
    "gte-without-types-untied": ("Gte", ("ForMaskedLM",), T.GteConfig, {**_GTE, **_UNTIED, "type_vocab_size": 0}),
    "jina-v3": ("JinaEmbeddingsV3", ANSWERING_HEADS, T.JinaEmbeddingsV3Config, _GTE),
    "jina-v3-untied-relu": (
        "JinaEmbeddingsV3",
        ("ForMaskedLM",),
        T.JinaEmbeddingsV3Config,
        {**_GTE, **_UNTIED, "hidden_act": "relu"},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("nomic-bert", "gte", "jina-v3")  # rotary angles

_KEYS = {
    "num_attention_heads": (2, CHANGES),
    "hidden_act": ("relu", CHANGES),
    "layer_norm_eps": (0.1, CHANGES),
    "rope_parameters": (LINEAR_ROPE, CHANGES),
    "is_causal": (True, KEEPS),  # their attention never is
}
KEYS = {
    "nomic-bert/NomicBertForMaskedLM": {
        **{key: row for key, row in _KEYS.items() if key != "num_attention_heads"},
        "num_attention_heads + head_dim": ((2, 12), CHANGES),
    },
    "gte/GteForMaskedLM": _KEYS,
    "jina-v3/JinaEmbeddingsV3ForMaskedLM": _KEYS,
}
TIED: tuple[str, ...] = (
    "nomic-bert/NomicBertForMaskedLM",
    "gte/GteForMaskedLM",
    "jina-v3/JinaEmbeddingsV3ForMaskedLM",
)
