"""DBRX."""

import transformers as T

from families import CAUSAL_KEYS, CHANGES, LINEAR_ROPE, SHAPES, UNCOVERED, within

_DBRX = {
    "d_model": 24,
    "n_heads": 4,
    "n_layers": 2,
    "max_seq_len": 32,
    "vocab_size": 40,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.5, "rope_theta": 10000.0},
    "ffn_config": {"ffn_hidden_size": 12, "moe_num_experts": 4, "moe_top_k": 2},
}

FAMILIES = {"dbrx": ("Dbrx", ("ForCausalLM", "Model"), T.DbrxConfig, _DBRX)}
FLOAT32_PARTS: tuple[str, ...] = ()

KEYS = {
    "dbrx/DbrxForCausalLM": {
        **CAUSAL_KEYS,
        "n_heads + attn_config.kv_n_heads": ((2, 1), CHANGES),
        "rope_parameters": (LINEAR_ROPE, CHANGES),
        "attn_config.clip_qkv": (8.0, CHANGES),
        **within(
            "ffn_config",
            {
                "ffn_act_fn": ({"name": "gelu"}, CHANGES),
                "moe_top_k": (1, CHANGES),
                "moe_num_experts": (2, SHAPES),
                "moe_normalize_expert_weights": (2.0, CHANGES),
            },
        ),
    },
    "dbrx/DbrxModel": {"attn_config.clip_qkv": (None, UNCOVERED)},
}
TIED: tuple[str, ...] = ()
