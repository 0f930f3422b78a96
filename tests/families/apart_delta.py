"""Decoders with delta nets whose queries, keys and values are tensors apart."""

import transformers as T

from families import CHANGES, SHAPES, UNCOVERED
from families.gated_delta import MIXED
from families.rmsnorm_decoders import HEAD_KEY, RMS_KEYS

_OLMO = {key: value for key, value in MIXED.items() if key not in ("head_dim", "rope_parameters")}
# as many channels of keys as of values: Transformers cuts their convolution into three equal parts
_OLMO |= {
    "num_hidden_layers": 3,
    "layer_types": ["full_attention", *MIXED["layer_types"]],
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 3,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 5,
}
_STILL = {"rope_theta": None, "rope_type": "default"}

FAMILIES = {
    "olmo-hybrid": ("OlmoHybrid", ("ForCausalLM", "Model"), T.OlmoHybridConfig, _OLMO),
    "olmo-hybrid-still-biased-tied": (
        "OlmoHybrid",
        ("ForCausalLM",),
        T.OlmoHybridConfig,
        {**_OLMO, "rope_parameters": _STILL, "attention_bias": True, "tie_word_embeddings": True},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("olmo-hybrid",)  # RMSNorm, rotary angles, the memory of delta nets

KEYS = {
    "olmo-hybrid/OlmoHybridForCausalLM": {
        **{key: row for key, row in RMS_KEYS.items() if key != HEAD_KEY},
        "num_attention_heads + num_key_value_heads": ((2, 1), CHANGES),
        "rms_norm_eps": (1e-6, CHANGES),
        "linear_num_value_heads": (6, UNCOVERED),
        "linear_allow_neg_eigval": (False, CHANGES),
        "layer_types": (["linear_attention", "full_attention", "full_attention"], SHAPES),
    },
}
TIED = ("olmo-hybrid-still-biased-tied/OlmoHybridForCausalLM",)
