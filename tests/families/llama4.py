"""Llama 4."""

import transformers as T

from families import CHANGES
from families.rmsnorm_decoders import GROUPED, HEAD_KEY, RMS_KEYS

_LLAMA4 = {
    **GROUPED,
    "head_dim": 8,
    "intermediate_size": 12,
    "intermediate_size_mlp": 14,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "no_rope_layers": [1, 0],
    "moe_layers": [1],
    "attention_chunk_size": 5,
    "floor_scale": 3,
    "attn_scale": 0.4,
}

FAMILIES = {
    "llama4": ("Llama4", ("ForCausalLM",), T.Llama4TextConfig, _LLAMA4),
    "llama4-text": ("Llama4Text", ("Model",), T.Llama4TextConfig, {**_LLAMA4, "moe_layers": [0, 1]}),
    "llama4-biased-tied": (
        "Llama4",
        ("ForCausalLM",),
        T.Llama4TextConfig,
        {**_LLAMA4, "attention_bias": True, "use_qk_norm": False, "tie_word_embeddings": True},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("llama4",)  # RMSNorm, routers and rotary angles

KEYS = {
    "llama4/Llama4ForCausalLM": {
        **RMS_KEYS,
        HEAD_KEY: ((2, 1, 16), CHANGES),
        "num_experts_per_tok": (1, CHANGES),
        "no_rope_layers": ([1, 1], CHANGES),
        "use_qk_norm": (False, CHANGES),
        "layer_types": (["full_attention"] * 2, CHANGES),
        "attention_chunk_size": (9, CHANGES),
        "attn_temperature_tuning": (False, CHANGES),
        "floor_scale": (5, CHANGES),
        "attn_scale": (0.1, CHANGES),
    },
}
TIED = ("llama4-biased-tied/Llama4ForCausalLM",)
