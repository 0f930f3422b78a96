"""Decoders with several streams beside each other."""

import transformers as T

from families import CHANGES, SHAPES
from families.latent_decoders import KEYS as LATENT_KEYS
from families.latent_decoders import SPARSE

_HY4 = {
    **{key: value for key, value in SPARSE.items() if key != "first_k_dense_replace"},
    "mlp_layer_types": ["dense", "sparse"],
    "indexer_types": ["full", "shared"],
    "n_group": 2,
    "topk_group": 1,
    "hc_mult": 3,
    "swiglu_limit": 0.5,
}

FAMILIES = {
    "hyv4": ("HYV4", ("ForCausalLM", "Model"), T.HYV4Config, _HY4),
    "hyv4-biased-tied": (
        "HYV4",
        ("ForCausalLM",),
        T.HYV4Config,
        {
            **_HY4,
            "mlp_layer_types": ["sparse"] * 2,
            "n_group": 1,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("hyv4",)  # RMSNorm, routers, the mix of streams and rotary angles

KEYS = {
    "hyv4/HYV4ForCausalLM": {
        **{key: row for key, row in LATENT_KEYS["deepseek32/DeepseekV32ForCausalLM"].items() if "key_value" not in key},
        "num_attention_heads + num_key_value_heads": ((2, 2), SHAPES),
        "hc_magnitude": (1.0, CHANGES),
        "hc_eps": (0.1, CHANGES),
        "swiglu_limit": (0.1, CHANGES),
    },
}
TIED = ("hyv4-biased-tied/HYV4ForCausalLM",)
