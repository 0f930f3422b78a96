"""XLM and FlauBERT."""

import transformers as T

from families import CHANGES, KEEPS, UNCOVERED

_XLM = {
    "emb_dim": 24,
    "n_heads": 4,
    "n_layers": 2,
    "vocab_size": 40,
    "max_position_embeddings": 32,
}
_HEADS = (
    "WithLMHeadModel",
    "Model",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnsweringSimple",
)

FAMILIES = {
    "xlm": ("XLM", _HEADS, T.XLMConfig, _XLM),
    "xlm-languages-untied-relu": (
        "XLM",
        ("WithLMHeadModel",),
        T.XLMConfig,
        {**_XLM, "n_langs": 3, "gelu_activation": False, "tie_word_embeddings": False},
    ),
    "flaubert": ("Flaubert", _HEADS, T.FlaubertConfig, _XLM),
}
FLOAT32_PARTS: tuple[str, ...] = ("xlm", "flaubert")  # the softmax of their attention

_KEYS = {
    "n_heads": (2, CHANGES),
    "gelu_activation": (False, CHANGES),
    "layer_norm_eps": (0.1, CHANGES),
    "causal": (True, CHANGES),
    "pad_token_id": (7, KEEPS),  # read where no mask is given
    "asm": (True, UNCOVERED),
}
_SUMMARY_KEYS = {
    "summary_type": ("last", CHANGES),
    "summary_activation": ("tanh", CHANGES),
    "summary_use_proj": (False, UNCOVERED),
    "summary_proj_to_labels": (False, UNCOVERED),
}
KEYS = {
    "xlm/XLMWithLMHeadModel": _KEYS,
    "xlm/XLMForSequenceClassification": _SUMMARY_KEYS,
    "flaubert/FlaubertWithLMHeadModel": {**_KEYS, "pre_norm": (True, UNCOVERED)},
    "flaubert/FlaubertForSequenceClassification": _SUMMARY_KEYS,
}
TIED = ("xlm/XLMWithLMHeadModel", "flaubert/FlaubertWithLMHeadModel")
