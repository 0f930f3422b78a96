"""Mixtures of experts, in both layouts of their files."""

import transformers as T

from families import CHANGES, KEEPS, LINEAR_ROPES, PADDING_KEYS, SHAPES, UNCOVERED
from families.rmsnorm_decoders import (
    ANSWERING,
    GRANITE_FACTORS,
    GRANITE_KEYS,
    GROUPED,
    HEAD_KEY,
    HEADS,
    LAYER_KEYS,
    RMS_KEYS,
    WINDOW_KEYS,
)

_EXPERTS = {**GROUPED, "intermediate_size": 12, "num_experts_per_tok": 2}
_QWEN = {**_EXPERTS, "num_experts": 4, "moe_intermediate_size": 8}
_MIXTRAL = {**_EXPERTS, "num_local_experts": 4}
_SHARED = {**_QWEN, "shared_expert_intermediate_size": 10}
_OSS = {**_EXPERTS, "num_local_experts": 4, "head_dim": 8, "sliding_window": 5, "swiglu_limit": 0.7}
_OSS["layer_types"] = ["sliding_attention", "full_attention"]
_OSS["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
_HUNYUAN = {**_EXPERTS, "head_dim": 8, "num_experts": 4, "moe_topk": 2}
del _HUNYUAN["num_experts_per_tok"]
_GRANITE = {**_EXPERTS, **GRANITE_FACTORS, "num_local_experts": 4}
_MELLUM = {**_QWEN, "head_dim": 8, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
_PHI = {**GROUPED, "num_local_experts": 4, "router_jitter_noise": 0.4}

FAMILIES = {
    "mixtral": ("Mixtral", ANSWERING, T.MixtralConfig, _MIXTRAL),
    "mixtral-fused": ("Mixtral", ("ForCausalLM", "Model"), T.MixtralConfig, _MIXTRAL),
    "qwen2moe": ("Qwen2Moe", ANSWERING, T.Qwen2MoeConfig, _SHARED),
    "qwen2moe-dense-fused": ("Qwen2Moe", ("ForCausalLM",), T.Qwen2MoeConfig, {**_SHARED, "mlp_only_layers": [0]}),
    "qwen3moe": ("Qwen3Moe", ANSWERING, T.Qwen3MoeConfig, {**_QWEN, "norm_topk_prob": True}),
    "qwen3moe-dense": ("Qwen3Moe", ("ForCausalLM",), T.Qwen3MoeConfig, {**_QWEN, "decoder_sparse_step": 2}),
    "olmoe": ("Olmoe", ("ForCausalLM", "Model"), T.OlmoeConfig, {**_EXPERTS, "num_experts": 4}),
    "mellum": ("Mellum", ("ForCausalLM", "Model"), T.MellumConfig, _MELLUM),
    "mellum-dense-tied": (
        "Mellum",
        ("ForCausalLM",),
        T.MellumConfig,
        {**_MELLUM, "mlp_layer_types": ["dense", "sparse"], "attention_bias": True, "tie_word_embeddings": True},
    ),
    "flex-olmo": ("FlexOlmo", ("ForCausalLM", "Model"), T.FlexOlmoConfig, {**_EXPERTS, "num_experts": 4}),
    "gptoss": ("GptOss", HEADS, T.GptOssConfig, _OSS),
    "gptoss-unbiased-tied": (
        "GptOss",
        ("ForCausalLM",),
        T.GptOssConfig,
        {**_OSS, "attention_bias": False, "tie_word_embeddings": True},
    ),
    "hunyuan-moe": (
        "HunYuanMoEV1",
        ("ForCausalLM", "ForSequenceClassification", "Model"),
        T.HunYuanMoEV1Config,
        _HUNYUAN,
    ),
    "hunyuan-moe-fused": ("HunYuanMoEV1", ("ForCausalLM",), T.HunYuanMoEV1Config, _HUNYUAN),
    "hunyuan-moe-biased-tied": (
        "HunYuanMoEV1",
        ("ForCausalLM",),
        T.HunYuanMoEV1Config,
        {**_HUNYUAN, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "granite-moe": ("GraniteMoe", ("ForCausalLM", "Model"), T.GraniteMoeConfig, _GRANITE),
    "granite-moe-biased-fused": (
        "GraniteMoe",
        ("ForCausalLM",),
        T.GraniteMoeConfig,
        {**_GRANITE, "attention_bias": True},
    ),
    "granite-moe-shared": (
        "GraniteMoeShared",
        ("ForCausalLM", "Model"),
        T.GraniteMoeSharedConfig,
        {**_GRANITE, "shared_intermediate_size": 10, "tie_word_embeddings": True},
    ),
    "granite-moe-unshared": ("GraniteMoeShared", ("ForCausalLM",), T.GraniteMoeSharedConfig, _GRANITE),
    "phimoe": ("Phimoe", ("ForCausalLM", "ForSequenceClassification", "Model"), T.PhimoeConfig, _PHI),
    "phimoe-biased": (
        "Phimoe",
        ("ForCausalLM",),
        T.PhimoeConfig,
        {**_PHI, "attention_bias": True, "lm_head_bias": True},
    ),
    "phimoe-tied": ("Phimoe", ("ForCausalLM",), T.PhimoeConfig, {**_PHI, "tie_word_embeddings": True}),
    "phimoe-fused": ("Phimoe", ("ForCausalLM",), T.PhimoeConfig, _PHI),
}
FLOAT32_PARTS: tuple[str, ...] = (
    "mixtral",
    "qwen2moe",
    "qwen3moe",
    "olmoe",
    "mellum",
    "flex-olmo",
    "gptoss",
    "hunyuan-moe",
    "granite-moe",
)  # RMSNorm, routers and rotary angles

_KEYS = {**RMS_KEYS, "num_experts_per_tok": (1, CHANGES)}
KEYS = {
    "mixtral/MixtralForCausalLM": _KEYS | WINDOW_KEYS,
    "mixtral/MixtralForSequenceClassification": PADDING_KEYS,
    "qwen2moe/Qwen2MoeForCausalLM": {**_KEYS, **LAYER_KEYS, "norm_topk_prob": (True, CHANGES)},
    "qwen2moe/Qwen2MoeForSequenceClassification": PADDING_KEYS,
    "qwen3moe/Qwen3MoeForCausalLM": {
        **_KEYS,
        HEAD_KEY: ((2, 1, 12), SHAPES),  # a gain a coordinate of a head
        "norm_topk_prob": (False, CHANGES),
        "use_sliding_window + sliding_window": ((True, 9), CHANGES),
    },
    "qwen3moe/Qwen3MoeForSequenceClassification": PADDING_KEYS,
    "olmoe/OlmoeForCausalLM": {**_KEYS, "norm_topk_prob": (True, CHANGES), "clip_qkv": (8.0, UNCOVERED)},
    "mellum/MellumForCausalLM": {
        **_KEYS,
        **WINDOW_KEYS,
        HEAD_KEY: ((2, 1, 16), SHAPES),  # a gain a coordinate of a head
        "norm_topk_prob": (False, CHANGES),
        "layer_types": (["full_attention"] * 2, CHANGES),
        "rope_parameters": (LINEAR_ROPES, CHANGES),
    },
    "flex-olmo/FlexOlmoForCausalLM": {
        **_KEYS,
        "norm_topk_prob": (True, KEEPS),  # a factor on what experts put out, which the norm behind them ignores
    },
    "gptoss/GptOssForCausalLM": {
        **_KEYS,
        **WINDOW_KEYS,
        HEAD_KEY: ((2, 1, 16), SHAPES),  # a sink a head
        "hidden_act": ("gelu", KEEPS),  # the activation has no name
        "swiglu_alpha": (1.0, CHANGES),
        "swiglu_limit": (2.0, CHANGES),
        "layer_types": (["full_attention"] * 2, CHANGES),
    },
    "gptoss/GptOssForSequenceClassification": PADDING_KEYS,
    "hunyuan-moe/HunYuanMoEV1ForCausalLM": {
        **RMS_KEYS,
        HEAD_KEY: ((2, 1, 16), SHAPES),  # a gain a coordinate of a head
        "moe_topk": (1, CHANGES),
    },
    "hunyuan-moe/HunYuanMoEV1ForSequenceClassification": PADDING_KEYS,
    "phimoe/PhimoeForCausalLM": {
        **RMS_KEYS,
        **WINDOW_KEYS,
        "router_jitter_noise": (0.1, CHANGES),
        "rope_parameters": ({"rope_type": "default", "rope_theta": 500.0}, CHANGES),
    },
    "phimoe/PhimoeForSequenceClassification": PADDING_KEYS,
    "granite-moe/GraniteMoeForCausalLM": _KEYS | GRANITE_KEYS,
    "granite-moe-shared/GraniteMoeSharedForCausalLM": _KEYS | GRANITE_KEYS,
}
TIED = (
    "mellum-dense-tied/MellumForCausalLM",
    "gptoss-unbiased-tied/GptOssForCausalLM",
    "hunyuan-moe-biased-tied/HunYuanMoEV1ForCausalLM",
    "granite-moe-shared/GraniteMoeSharedForCausalLM",
    "phimoe-tied/PhimoeForCausalLM",
)
