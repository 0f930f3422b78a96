"""Decoders of gated delta nets and gated attention."""

import transformers as T

from families import CHANGES, PADDING_KEYS, SHAPES
from families.rmsnorm_decoders import ANSWERING, GROUPED, HEAD_KEY, RMS_KEYS

ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
MIXED = {
    **GROUPED,
    "head_dim": 8,
    "rope_parameters": ROPE,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
    "linear_conv_kernel_dim": 3,
    "rms_norm_eps": 0.1,  # what a query finds may be next to nothing: rounding would grow with it
}
_TURNED = {**ROPE, "partial_rotary_factor": 1.0}
_EQUAL = {"linear_num_value_heads": 2, "attention_bias": True, "rope_parameters": _TURNED, "tie_word_embeddings": True}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 10,
}
MIXTURE = {key: value for key, value in MIXED.items() if key != "intermediate_size"} | EXPERTS

FAMILIES = {
    "qwen3.5": ("Qwen3_5", ("ForCausalLM",), T.Qwen3_5TextConfig, MIXED),
    "qwen3.5-equal-biased-tied": ("Qwen3_5", ("ForCausalLM",), T.Qwen3_5TextConfig, {**MIXED, **_EQUAL}),
    "qwen3.5-text": ("Qwen3_5Text", ("ForSequenceClassification", "Model"), T.Qwen3_5TextConfig, MIXED),
    "qwen3.5-moe": ("Qwen3_5Moe", ("ForCausalLM",), T.Qwen3_5MoeTextConfig, {**MIXTURE, "rms_norm_eps": 0.2}),
    "qwen3.5-moe-fused": ("Qwen3_5Moe", ("ForCausalLM",), T.Qwen3_5MoeTextConfig, {**MIXTURE, "rms_norm_eps": 0.2}),
    "qwen3.5-moe-tied": (
        "Qwen3_5Moe",
        ("ForCausalLM",),
        T.Qwen3_5MoeTextConfig,
        {**MIXTURE, "tie_word_embeddings": True},
    ),
    "qwen3.5-moe-text": ("Qwen3_5MoeText", ("Model",), T.Qwen3_5MoeTextConfig, {**MIXTURE, "rms_norm_eps": 0.2}),
    "qwen3-next": ("Qwen3Next", ANSWERING, T.Qwen3NextConfig, {**MIXED, **EXPERTS}),
    "qwen3-next-dense-biased-tied": (
        "Qwen3Next",
        ("ForCausalLM",),
        T.Qwen3NextConfig,
        {**MIXED, **EXPERTS, **_EQUAL, "mlp_only_layers": [0], "norm_topk_prob": False},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("qwen3.5", "qwen3-next")  # RMSNorm, rotary angles, the memory of delta nets

MIXED_KEYS = {
    **RMS_KEYS,
    HEAD_KEY: ((2, 1, 16), SHAPES),  # a gain a coordinate
    "rms_norm_eps": (1e-6, CHANGES),
    "linear_num_key_heads + linear_key_head_dim": ((4, 4), CHANGES),
    "layer_types": (["full_attention", "linear_attention"], SHAPES),
}
_MIXTURE_KEYS = {**MIXED_KEYS, "num_experts_per_tok": (1, CHANGES)}
KEYS = {
    "qwen3.5/Qwen3_5ForCausalLM": MIXED_KEYS,
    "qwen3.5-text/Qwen3_5TextForSequenceClassification": PADDING_KEYS,
    "qwen3.5-moe/Qwen3_5MoeForCausalLM": _MIXTURE_KEYS,
    "qwen3-next/Qwen3NextForCausalLM": {**_MIXTURE_KEYS, "norm_topk_prob": (False, CHANGES)},
    "qwen3-next/Qwen3NextForSequenceClassification": PADDING_KEYS,
}
TIED = (
    "qwen3.5-equal-biased-tied/Qwen3_5ForCausalLM",
    "qwen3.5-moe-tied/Qwen3_5MoeForCausalLM",
    "qwen3-next-dense-biased-tied/Qwen3NextForCausalLM",
)
