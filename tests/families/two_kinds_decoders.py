"""Mixtures of experts with heads of their own where a window slides."""

import transformers as T

from families import CHANGES, LINEAR_ROPES, SHAPES, UNCOVERED
from families.rmsnorm_decoders import GROUPED, HEAD_KEY, RMS_KEYS

_KINDS = {
    **GROUPED,
    "head_dim": 10,
    "layer_types": ["full_attention", "sliding_attention"],
    "sliding_window": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 1.0},
    },
}
_MIMO = {**_KINDS, "num_key_value_heads": 1, "v_head_dim": 5, "n_routed_experts": 4}
_LAGUNA = {
    **_KINDS,
    "num_attention_heads_per_layer": [4, 6],
    "num_experts": 4,
    "shared_expert_intermediate_size": 6,
    "moe_routed_scaling_factor": 0.7,
}
_CAUSAL = ("ForCausalLM",)
_BOTH = ("ForCausalLM", "Model")

FAMILIES = {
    "mimo": ("MiMoV2Flash", _BOTH, T.MiMoV2FlashConfig, _MIMO),
    "mimo-biased-tied": (
        "MiMoV2Flash",
        _CAUSAL,
        T.MiMoV2FlashConfig,
        {**_MIMO, "attention_bias": True, "n_group": 2, "topk_group": 1, "tie_word_embeddings": True},
    ),
    "mimo-fused": ("MiMoV2Flash", _CAUSAL, T.MiMoV2FlashConfig, {**_MIMO, "mlp_layer_types": ["sparse"] * 2}),
    "laguna": ("Laguna", _BOTH, T.LagunaConfig, _LAGUNA),
    "laguna-gated-fused-tied": (
        "Laguna",
        _CAUSAL,
        T.LagunaConfig,
        {
            **_LAGUNA,
            "layer_types": ["full_attention"] * 2,
            "num_attention_heads_per_layer": [4, 4],
            "gating": "per-element",
            "attention_bias": True,
            "moe_router_logit_softcapping": 1.5,
            "tie_word_embeddings": True,
        },
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("mimo", "laguna")  # RMSNorm, routers and rotary angles

_KEYS = {
    **RMS_KEYS,
    "rope_parameters": (LINEAR_ROPES, CHANGES),
    "sliding_window": (9, CHANGES),
    "num_experts_per_tok": (1, CHANGES),
}
KEYS = {
    "mimo/MiMoV2FlashForCausalLM": {
        **_KEYS,
        HEAD_KEY: ((2, 1, 20), SHAPES),
        "layer_types": (["sliding_attention"] * 2, SHAPES),
        "routed_scaling_factor": (0.5, CHANGES),
        "norm_topk_prob": (False, CHANGES),
        "attention_value_scale": (1.0, CHANGES),
    },
    "mimo-biased-tied/MiMoV2FlashForCausalLM": {"n_group": (1, CHANGES), "topk_group": (2, CHANGES)},
    "laguna/LagunaForCausalLM": {
        **_KEYS,
        HEAD_KEY: ((2, 1, 20), SHAPES),
        "layer_types": (["sliding_attention", "full_attention"], CHANGES),
        "moe_routed_scaling_factor": (0.5, CHANGES),
        "moe_router_logit_softcapping": (0.5, CHANGES),
    },
    "laguna-gated-fused-tied/LagunaForCausalLM": {"num_attention_heads_per_layer": ([4, 6], UNCOVERED)},
}
TIED = ("mimo-biased-tied/MiMoV2FlashForCausalLM", "laguna-gated-fused-tied/LagunaForCausalLM")
