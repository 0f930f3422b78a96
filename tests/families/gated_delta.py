"""Decoders of gated delta nets and gated attention."""

import transformers as T

from families import CHANGES, PADDING_KEYS, SHAPES
from families.rmsnorm_decoders import GROUPED, HEAD_KEY, RMS_KEYS

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

FAMILIES = {
    "qwen3.5": ("Qwen3_5", ("ForCausalLM",), T.Qwen3_5TextConfig, MIXED),
    "qwen3.5-equal-biased-tied": ("Qwen3_5", ("ForCausalLM",), T.Qwen3_5TextConfig, {**MIXED, **_EQUAL}),
    "qwen3.5-text": ("Qwen3_5Text", ("ForSequenceClassification", "Model"), T.Qwen3_5TextConfig, MIXED),
}
FLOAT32_PARTS: tuple[str, ...] = ("qwen3.5",)  # RMSNorm, rotary angles, the memory of delta nets

MIXED_KEYS = {
    **RMS_KEYS,
    HEAD_KEY: ((2, 1, 16), SHAPES),  # a gain a coordinate
    "rms_norm_eps": (1e-6, CHANGES),
    "linear_num_key_heads + linear_key_head_dim": ((4, 4), CHANGES),
    "layer_types": (["full_attention", "linear_attention"], SHAPES),
}
KEYS = {
    "qwen3.5/Qwen3_5ForCausalLM": MIXED_KEYS,
    "qwen3.5-text/Qwen3_5TextForSequenceClassification": PADDING_KEYS,
}
TIED = ("qwen3.5-equal-biased-tied/Qwen3_5ForCausalLM",)
