"""A decoder with lightning attention in some layers."""

import transformers as T

from families import CHANGES, PADDING_KEYS, SHAPES, UNCOVERED
from families.rmsnorm_decoders import ANSWERING, GROUPED, HEAD_KEY, RMS_KEYS, WINDOW_KEYS

_FACTORS = {
    "full_attn_alpha_factor": 1.5,
    "full_attn_beta_factor": 0.7,
    "linear_attn_alpha_factor": 1.2,
    "linear_attn_beta_factor": 0.6,
    "mlp_alpha_factor": 1.3,
    "mlp_beta_factor": 0.8,
}
_MINIMAX = {**GROUPED, **_FACTORS, "intermediate_size": 12, "num_local_experts": 4, "block_size": 8}
_FULL = {"layer_types": ["full_attention"] * 2, "head_dim": 8, "sliding_window": 5, "tie_word_embeddings": True}

FAMILIES = {
    "minimax": ("MiniMax", ANSWERING, T.MiniMaxConfig, _MINIMAX),
    "minimax-full-tied": ("MiniMax", ("ForCausalLM",), T.MiniMaxConfig, {**_MINIMAX, **_FULL}),
}
FLOAT32_PARTS: tuple[str, ...] = ("minimax/", "minimax-full")  # RMSNorm, routers and rotary angles

KEYS = {
    "minimax/MiniMaxForCausalLM": {
        **{key: row for key, row in RMS_KEYS.items() if key != HEAD_KEY},
        **dict.fromkeys(_FACTORS, (2.0, CHANGES)),
        "num_experts_per_tok": (1, CHANGES),
        "block_size": (16, UNCOVERED),
        "layer_types": (["full_attention"] * 2, SHAPES),
    },
    "minimax/MiniMaxForSequenceClassification": PADDING_KEYS,
    "minimax-full-tied/MiniMaxForCausalLM": {HEAD_KEY: ((2, 1, 16), CHANGES), **WINDOW_KEYS},
}
TIED = ("minimax-full-tied/MiniMaxForCausalLM",)
