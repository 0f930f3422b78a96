"""Decoders with short convolutions beside attention."""

import transformers as T

from families import CAUSAL_KEYS, CHANGES, LINEAR_ROPE, SHAPES
from families.rmsnorm_decoders import GROUPED, HEAD_KEY

_LFM2 = {**GROUPED, "layer_types": ["conv", "full_attention"], "block_multiple_of": 4}

FAMILIES = {
    "lfm2": ("Lfm2", ("ForCausalLM", "Model"), T.Lfm2Config, _LFM2),
    "lfm2-biased-untied": (
        "Lfm2",
        ("ForCausalLM",),
        T.Lfm2Config,
        {**_LFM2, "conv_bias": True, "block_auto_adjust_ff_dim": False, "tie_word_embeddings": False},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("lfm2",)  # RMSNorm and rotary angles
KEYS = {
    "lfm2/Lfm2ForCausalLM": {
        **CAUSAL_KEYS,
        HEAD_KEY: ((2, 1, 12), SHAPES),  # a gain a coordinate of a head
        "num_key_value_heads": (4, SHAPES),
        "norm_eps": (0.1, CHANGES),
        "rope_parameters": (LINEAR_ROPE, CHANGES),
    },
}
TIED = ("lfm2/Lfm2ForCausalLM",)
