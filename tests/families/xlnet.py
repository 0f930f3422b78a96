"""XLNet."""

import transformers as T

from families import CHANGES, UNCOVERED

_HEADS = (
    "LMHeadModel",
    "Model",
    "ForSequenceClassification",
    "ForMultipleChoice",
    "ForTokenClassification",
    "ForQuestionAnsweringSimple",
)
_XLNET = {"d_model": 24, "n_head": 4, "n_layer": 2, "d_inner": 20, "vocab_size": 40}

FAMILIES = {"xlnet": ("XLNet", _HEADS, T.XLNetConfig, _XLNET)}
FLOAT32_PARTS: tuple[str, ...] = ()
KEYS = {
    "xlnet/XLNetLMHeadModel": {
        "ff_activation": ("relu", CHANGES),
        "layer_norm_eps": (0.1, CHANGES),
        "bi_data": (True, UNCOVERED),
        "clamp_len": (3, CHANGES),
        "attn_type": ("uni", UNCOVERED),
    },
    "xlnet/XLNetForSequenceClassification": {
        "summary_type": ("first", CHANGES),
        "summary_activation": ("relu", CHANGES),
        "summary_use_proj": (False, UNCOVERED),
    },
}
TIED = ("xlnet/XLNetLMHeadModel",)
