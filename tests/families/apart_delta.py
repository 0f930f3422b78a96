"""Decoders with delta nets whose queries, keys and values are tensors apart."""

import transformers as T

from families import CHANGES, SHAPES, UNCOVERED
from families.gated_delta import MIXED
from families.rmsnorm_decoders import GROUPED, HEAD_KEY, RMS_KEYS

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
_KIMI = {
    **GROUPED,
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "linear_num_heads": 3,
    "linear_head_dim": 5,
    "linear_conv_kernel_dim": 3,
    "kv_lora_rank": 10,
    "qk_rope_head_dim": 3,
    "qk_nope_head_dim": 6,
    "v_head_dim": 7,
    "moe_intermediate_size": 8,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "rms_norm_eps": 0.1,
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
    "kimi-linear": ("KimiLinear", ("ForCausalLM", "Model"), T.KimiLinearConfig, _KIMI),
    "kimi-linear-latent-biased": (
        "KimiLinear",
        ("ForCausalLM",),
        T.KimiLinearConfig,
        {**_KIMI, "q_lora_rank": 9, "attention_bias": True, "n_group": 2, "topk_group": 1},
    ),
}
# RMSNorm, routers, rotary angles, the memory of delta nets
FLOAT32_PARTS: tuple[str, ...] = ("olmo-hybrid", "kimi-linear")

KEYS = {
    "olmo-hybrid/OlmoHybridForCausalLM": {
        **{key: row for key, row in RMS_KEYS.items() if key != HEAD_KEY},
        "num_attention_heads + num_key_value_heads": ((2, 1), CHANGES),
        "rms_norm_eps": (1e-6, CHANGES),
        "linear_num_value_heads": (6, UNCOVERED),
        "linear_allow_neg_eigval": (False, CHANGES),
        "layer_types": (["linear_attention", "full_attention", "full_attention"], SHAPES),
    },
    "kimi-linear/KimiLinearForCausalLM": {
        **{
            key: row for key, row in RMS_KEYS.items() if key not in (HEAD_KEY, "num_key_value_heads", "rope_parameters")
        },
        "rms_norm_eps": (1e-6, CHANGES),
        "num_attention_heads + num_key_value_heads": ((2, 2), SHAPES),
        "num_key_value_heads": (2, UNCOVERED),
        "num_experts_per_token": (1, CHANGES),
        "moe_renormalize": (False, CHANGES),
        "routed_scaling_factor": (0.5, CHANGES),
        "layer_types": (["linear_attention", "full_attention", "full_attention"], SHAPES),
        "tie_word_embeddings": (True, UNCOVERED),
    },
    "kimi-linear-latent-biased/KimiLinearForCausalLM": {"num_expert_group": (1, CHANGES), "topk_group": (2, CHANGES)},
}
TIED = ("olmo-hybrid-still-biased-tied/OlmoHybridForCausalLM",)
