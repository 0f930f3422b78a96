"""Gemma 3n, text alone."""

import transformers as T

from families import CHANGES, LINEAR_ROPES, SHAPES, UNCOVERED
from families.rmsnorm_decoders import GEMMA2_KEYS, GROUPED, HEAD_KEY

_KINDS = ["sliding_attention", "full_attention"]
# the first layer is read by no other
_GEMMA3N = {
    **GROUPED,
    "head_dim": 8,
    "num_hidden_layers": 5,
    "layer_types": [*_KINDS, "sliding_attention", *_KINDS],
    "sliding_window": 5,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 6,
    "vocab_size_per_layer_input": 40,
    "laurel_rank": 5,
    "altup_num_inputs": 3,
    "activation_sparsity_pattern": [0.5, 0.0, 0.3, 0.0, 0.0],
    "final_logit_softcapping": 2.0,
    "rms_norm_eps": 0.01,  # so that layers do not enlarge the rounding of each other
}

FAMILIES = {
    "gemma3n": ("Gemma3n", ("ForCausalLM",), T.Gemma3nTextConfig, _GEMMA3N),
    "gemma3n-text": ("Gemma3nText", ("Model",), T.Gemma3nTextConfig, _GEMMA3N),
    "gemma3n-untied-biased": (
        "Gemma3n",
        ("ForCausalLM",),
        T.Gemma3nTextConfig,
        {**_GEMMA3N, "num_kv_shared_layers": 0, "attention_bias": True, "tie_word_embeddings": False},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("gemma3n",)  # RMSNorm, the mix of streams and rotary angles

_OF_OTHERS = ("query_pre_attn_scalar", "attn_logit_softcapping", "use_bidirectional_attention")
KEYS = {
    "gemma3n/Gemma3nForCausalLM": {
        **{key: row for key, row in GEMMA2_KEYS.items() if key not in _OF_OTHERS},
        HEAD_KEY: ((2, 1, 16), SHAPES),  # a gain a coordinate
        "sliding_window": (9, CHANGES),
        "rope_parameters": (LINEAR_ROPES, CHANGES),
        "layer_types": ([*_KINDS, "full_attention", *_KINDS], CHANGES),
        "num_kv_shared_layers": (3, CHANGES),
        "activation_sparsity_pattern": ([0.0] * 5, CHANGES),
        "altup_active_idx": (1, CHANGES),
        "altup_correct_scale": (False, UNCOVERED),
        "intermediate_size": ([20, 20, 20, 20, 22], UNCOVERED),
    },
}
TIED = ("gemma3n/Gemma3nForCausalLM",)
