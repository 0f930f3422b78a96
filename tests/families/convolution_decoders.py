"""Decoders with short convolutions beside attention."""

import transformers as T

from families import CAUSAL_KEYS, CHANGES, LINEAR_ROPE, LINEAR_ROPES, SHAPES, UNCOVERED
from families.rmsnorm_decoders import GROUPED, HEAD_KEY

_LFM2 = {**GROUPED, "layer_types": ["conv", "full_attention"], "block_multiple_of": 4}
_MOE = {
    **GROUPED,
    "layer_types": ["full_attention", "conv"],
    "num_dense_layers": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "routed_scaling_factor": 0.7,
}
# a quarter of the head is turned where no window slides
_PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
_LFM3 = {
    **GROUPED,
    "num_hidden_layers": 3,
    "head_dim": 8,
    "layer_types": ["sliding_attention", "conv", "full_attention"],
    "sliding_window": 5,
    "rope_parameters": {
        "full_attention": _PROPORTIONAL,
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
    },
}

FAMILIES = {
    "lfm2": ("Lfm2", ("ForCausalLM", "Model"), T.Lfm2Config, _LFM2),
    "lfm2-biased-untied": (
        "Lfm2",
        ("ForCausalLM",),
        T.Lfm2Config,
        {**_LFM2, "conv_bias": True, "block_auto_adjust_ff_dim": False, "tie_word_embeddings": False},
    ),
    "lfm3": ("Lfm3", ("ForCausalLM", "Model"), T.Lfm3Config, _LFM3),
    "lfm3-fused": ("Lfm3", ("ForCausalLM",), T.Lfm3Config, _LFM3),
    "lfm3-prenorm-ungated-untied": (
        "Lfm3",
        ("ForCausalLM",),
        T.Lfm3Config,
        {
            **_LFM3,
            "num_hidden_layers": 2,
            "layer_types": ["conv", "full_attention"],
            "conv_bias": True,
            "use_sandwich_norm": False,
            "use_attention_gate": False,
            "tie_word_embeddings": False,
        },
    ),
    "lfm2-moe": ("Lfm2Moe", ("ForCausalLM", "Model"), T.Lfm2MoeConfig, _MOE),
    "lfm2-moe-uncorrected-untied": (
        "Lfm2Moe",
        ("ForCausalLM",),
        T.Lfm2MoeConfig,
        {**_MOE, "num_dense_layers": 0, "use_expert_bias": False, "tie_word_embeddings": False},
    ),
    "lfm2-moe-fused": ("Lfm2Moe", ("ForCausalLM",), T.Lfm2MoeConfig, {**_MOE, "tie_word_embeddings": False}),
}
FLOAT32_PARTS: tuple[str, ...] = ("lfm2", "lfm3")  # RMSNorm and rotary angles
LFM_KEYS = {
    **CAUSAL_KEYS,
    HEAD_KEY: ((2, 1, 12), SHAPES),  # a gain a coordinate of a head
    "num_key_value_heads": (4, SHAPES),
    "norm_eps": (0.1, CHANGES),
    "rope_parameters": (LINEAR_ROPE, CHANGES),
}
KEYS = {
    "lfm2/Lfm2ForCausalLM": LFM_KEYS,
    "lfm3/Lfm3ForCausalLM": {
        **LFM_KEYS,
        "num_key_value_heads": (4, SHAPES),
        "rope_parameters": (LINEAR_ROPES, CHANGES),
        "sliding_window": (9, CHANGES),
        "layer_types": (["full_attention", "conv", "full_attention"], CHANGES),
        "attention_bias": (True, UNCOVERED),
    },
    "lfm2-moe/Lfm2MoeForCausalLM": {
        **LFM_KEYS,
        "num_experts_per_tok": (1, CHANGES),
        "norm_topk_prob": (False, CHANGES),
        "routed_scaling_factor": (1.0, CHANGES),
        "num_dense_layers": (2, UNCOVERED),
    },
}
TIED = ("lfm3/Lfm3ForCausalLM", "lfm2/Lfm2ForCausalLM", "lfm2-moe/Lfm2MoeForCausalLM")
