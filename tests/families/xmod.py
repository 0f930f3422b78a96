"""X-MOD."""

import transformers as T

from families import ANSWERING_HEADS, CAUSAL_KEYS, CHANGES, KEEPS, SMALL, UNCOVERED

_XMOD = {**SMALL, "pad_token_id": 1, "languages": ["en_XX", "de_DE"], "adapter_reduction_factor": 3}

FAMILIES = {
    "xmod": (
        "Xmod",
        ("ForMaskedLM", *(head for head in ANSWERING_HEADS if head != "ForMaskedLM")),
        T.XmodConfig,
        _XMOD,
    ),
    "xmod-causal-normed-untied": (
        "Xmod",
        ("ForCausalLM",),
        T.XmodConfig,
        {
            **_XMOD,
            "is_decoder": True,
            "default_language": "de_DE",
            "adapter_layer_norm": True,
            "tie_word_embeddings": False,
        },
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ()

KEYS = {
    "xmod/XmodForMaskedLM": {
        "num_attention_heads": (2, CHANGES),
        "hidden_act": ("relu", CHANGES),
        "layer_norm_eps": (0.1, CHANGES),
        "pad_token_id": (3, CHANGES),
        "is_decoder": (True, CHANGES),
        "add_cross_attention": (True, UNCOVERED),
        "languages": (["de_DE", "en_XX"], CHANGES),
        "default_language": ("de_DE", KEEPS),  # a probe says the languages
        "adapter_reuse_layer_norm": (False, CHANGES),
        "ln_before_adapter": (False, CHANGES),
        "pre_norm": (True, UNCOVERED),
    },
    "xmod-causal-normed-untied/XmodForCausalLM": {"is_decoder": (False, CHANGES), **CAUSAL_KEYS},
}
TIED = ("xmod/XmodForMaskedLM",)
