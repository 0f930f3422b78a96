"""Mixtures of experts whose router has a correction."""

import transformers as T

from families import CHANGES, SHAPES, UNCOVERED
from families.rmsnorm_decoders import GROUPED, HEAD_KEY, RMS_KEYS

_SHARED = {
    **GROUPED,
    "head_dim": 10,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 8,
    "n_shared_experts": 2,
}
_GROUPS = {"n_group": 2, "topk_group": 1}
_HALF = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.4}
_GLM = {**_SHARED, "use_qk_norm": True, "rope_parameters": _HALF}
_AIR = {**_GLM, "use_qk_norm": False, "attention_bias": True}
_DOTS = {**_SHARED, "norm_topk_prob": True, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
_SOLAR = {key: value for key, value in _SHARED.items() if key not in ("intermediate_size", "first_k_dense_replace")}
_EXAONE = {
    **GROUPED,
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "sliding_window": 5,
    "layer_types": ["full_attention", "sliding_attention"],
}
_ERNIE = {
    **GROUPED,
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_intermediate_size": 8,
    "moe_norm_min": 0.9,  # above the scores of the two
}
_MINIMAX = {**GROUPED, "head_dim": 10, "num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": _HALF}
_HY3 = {key: value for key, value in _EXAONE.items() if key not in ("sliding_window", "layer_types")}
_AFMOE = {
    **GROUPED,
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "route_scale": 0.7,
    "sliding_window": 5,
    "layer_types": ["full_attention", "sliding_attention"],
}
_CAUSAL = ("ForCausalLM",)
_BOTH = ("ForCausalLM", "Model")

FAMILIES = {
    "glm4moe": ("Glm4Moe", _BOTH, T.Glm4MoeConfig, _GLM),
    "glm4moe-biased-tied": (
        "Glm4Moe",
        _CAUSAL,
        T.Glm4MoeConfig,
        {**_GLM, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "glm4moe-limited": ("Glm4Moe", _CAUSAL, T.Glm4MoeConfig, {**_AIR, **_GROUPS, "attention_bias": False}),
    "glm4moe-air-fused": ("Glm4Moe", _CAUSAL, T.Glm4MoeConfig, _AIR),
    "dots1": ("Dots1", _BOTH, T.Dots1Config, _DOTS),
    "dots1-biased-limited": ("Dots1", _CAUSAL, T.Dots1Config, {**_DOTS, **_GROUPS, "attention_bias": True}),
    "solar": ("SolarOpen", _BOTH, T.SolarOpenConfig, _SOLAR),
    "solar-biased-tied": (
        "SolarOpen",
        _CAUSAL,
        T.SolarOpenConfig,
        {**_SOLAR, **_GROUPS, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "exaone-moe": ("ExaoneMoe", _BOTH, T.ExaoneMoeConfig, _EXAONE),
    "exaone-moe-limited-fused": ("ExaoneMoe", _CAUSAL, T.ExaoneMoeConfig, {**_EXAONE, **_GROUPS}),
    "exaone-moe-tied": (
        "ExaoneMoe",
        _CAUSAL,
        T.ExaoneMoeConfig,
        {**_EXAONE, "layer_types": ["sliding_attention"] * 2, "tie_word_embeddings": True},
    ),
    "ernie-moe": ("Ernie4_5_Moe", _BOTH, T.Ernie4_5_MoeConfig, _ERNIE),
    "ernie-moe-biased-untied": (
        "Ernie4_5_Moe",
        _CAUSAL,
        T.Ernie4_5_MoeConfig,
        {**_ERNIE, "use_bias": True, "tie_word_embeddings": False, "moe_layer_interval": 2},
    ),
    "ernie-moe-alone-fused": ("Ernie4_5_Moe", _CAUSAL, T.Ernie4_5_MoeConfig, {**_ERNIE, "moe_num_shared_experts": 0}),
    "minimax2": ("MiniMaxM2", _BOTH, T.MiniMaxM2Config, _MINIMAX),
    "minimax2-fused": ("MiniMaxM2", _CAUSAL, T.MiniMaxM2Config, _MINIMAX),
    "minimax2-whole-tied": (
        "MiniMaxM2",
        _CAUSAL,
        T.MiniMaxM2Config,
        {**_MINIMAX, "head_dim": 8, "rope_parameters": None, "tie_word_embeddings": True},
    ),
    "hyv3": ("HYV3", _BOTH, T.HYV3Config, _HY3),
    "hyv3-biased-tied": (
        "HYV3",
        _CAUSAL,
        T.HYV3Config,
        {**_HY3, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "hyv3-sparse-fused": ("HYV3", _CAUSAL, T.HYV3Config, {**_HY3, "mlp_layer_types": ["sparse"] * 2}),
    "afmoe": ("Afmoe", _BOTH, T.AfmoeConfig, _AFMOE),
    "afmoe-biased-tied": (
        "Afmoe",
        _CAUSAL,
        T.AfmoeConfig,
        {
            **_AFMOE,
            "num_dense_layers": 0,
            "attention_bias": True,
            "mup_enabled": True,
            "tie_word_embeddings": True,
        },
    ),
    "afmoe-turned-fused": ("Afmoe", _CAUSAL, T.AfmoeConfig, {**_AFMOE, "layer_types": ["sliding_attention"] * 2}),
}
FLOAT32_PARTS: tuple[str, ...] = (
    "glm4moe",
    "afmoe",
    "dots1",
    "solar",
    "exaone-moe",
    "ernie-moe",
    "minimax2",
    "hyv3",
)  # RMSNorm, routers and rotary angles

_ROUTED = {
    "num_experts_per_tok": (1, CHANGES),
    "routed_scaling_factor": (0.5, CHANGES),
    "norm_topk_prob": (False, CHANGES),
}
_KEYS = {**RMS_KEYS, **_ROUTED, HEAD_KEY: ((2, 1, 20), SHAPES)}  # a gain a coordinate
KEYS = {
    "glm4moe/Glm4MoeForCausalLM": {
        **_KEYS,
        "n_group": (2, CHANGES),
        "rope_parameters": ({**_HALF, "partial_rotary_factor": 0.0}, UNCOVERED),
        "first_k_dense_replace": (2, UNCOVERED),
        "n_shared_experts": (0, UNCOVERED),
    },
    "glm4moe-air-fused/Glm4MoeForCausalLM": {
        "rope_parameters": ({**_HALF, "rope_theta": 500.0}, CHANGES),
        HEAD_KEY: ((2, 1, 20), CHANGES),
    },
    "glm4moe-limited/Glm4MoeForCausalLM": {"n_group": (1, CHANGES), "topk_group": (2, CHANGES)},
    "dots1/Dots1ForCausalLM": {
        **_KEYS,
        "sliding_window": (9, CHANGES),
        "layer_types": (["full_attention"] * 2, CHANGES),
    },
    "dots1-biased-limited/Dots1ForCausalLM": {"n_group": (1, CHANGES), "topk_group": (2, CHANGES)},
    "solar/SolarOpenForCausalLM": {**_KEYS, HEAD_KEY: ((2, 1, 20), CHANGES), "n_shared_experts": (0, UNCOVERED)},
    "solar-biased-tied/SolarOpenForCausalLM": {"n_group": (1, CHANGES), "topk_group": (2, CHANGES)},
    "exaone-moe/ExaoneMoeForCausalLM": {
        **_KEYS,
        HEAD_KEY: ((2, 1, 16), SHAPES),
        "sliding_window": (9, CHANGES),
        "layer_types": (["sliding_attention"] * 2, CHANGES),
        "num_shared_experts": (0, UNCOVERED),
    },
    "exaone-moe-limited-fused/ExaoneMoeForCausalLM": {"n_group": (1, CHANGES), "topk_group": (2, CHANGES)},
    "ernie-moe-alone-fused/Ernie4_5_MoeForCausalLM": {"moe_layer_start_index": (2, UNCOVERED)},
    "ernie-moe/Ernie4_5_MoeForCausalLM": {**RMS_KEYS, "moe_k": (1, CHANGES), "moe_norm_min": (0.1, CHANGES)},
    "hyv3/HYV3ForCausalLM": {
        **RMS_KEYS,
        HEAD_KEY: ((2, 1, 16), SHAPES),
        "num_experts_per_tok": (1, CHANGES),
        "router_scaling_factor": (0.5, CHANGES),
        "num_shared_experts": (0, UNCOVERED),
    },
    "afmoe/AfmoeForCausalLM": {
        **RMS_KEYS,
        HEAD_KEY: ((2, 1, 16), SHAPES),
        "num_experts_per_tok": (1, CHANGES),
        "route_scale": (1.0, CHANGES),
        "mup_enabled": (True, CHANGES),
        "sliding_window": (9, CHANGES),
        "layer_types": (["sliding_attention"] * 2, CHANGES),
        "num_dense_layers": (2, UNCOVERED),
    },
    "minimax2/MiniMaxM2ForCausalLM": {
        **RMS_KEYS,
        "num_experts_per_tok": (1, CHANGES),
        HEAD_KEY: ((2, 1, 20), CHANGES),
        "rope_parameters": ({**_HALF, "rope_theta": 500.0}, CHANGES),
    },
}
TIED = (
    "solar-biased-tied/SolarOpenForCausalLM",
    "exaone-moe-tied/ExaoneMoeForCausalLM",
    "glm4moe-biased-tied/Glm4MoeForCausalLM",
    "ernie-moe/Ernie4_5_MoeForCausalLM",
    "minimax2-whole-tied/MiniMaxM2ForCausalLM",
    "hyv3-biased-tied/HYV3ForCausalLM",
    "afmoe-biased-tied/AfmoeForCausalLM",
)
