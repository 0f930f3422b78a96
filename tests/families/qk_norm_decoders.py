"""Decoders with a norm on queries and keys."""

import transformers as T

from families import CHANGES, KEEPS, LINEAR_ROPES, PADDING_KEYS, SHAPES, UNCOVERED
from families.rmsnorm_decoders import (
    ANSWERING,
    GEMMA2_KEYS,
    GROUPED,
    HEAD_KEY,
    LAYER_KEYS,
    RMS_KEYS,
)

GEMMA3 = {**GROUPED, "head_dim": 8, "sliding_window": 12, "query_pre_attn_scalar": 7}
GEMMA3["layer_types"] = ["sliding_attention", "full_attention"]

_EXAONE = {**GROUPED, "head_dim": 8, "sliding_window": None, "layer_types": ["full_attention"] * 2}
_HUNYUAN = {**GROUPED, "head_dim": 8}
_DOGE = {**GROUPED, "keep_window_size": 12}

FAMILIES = {
    "qwen3": ("Qwen3", ANSWERING, T.Qwen3Config, {**GROUPED, "head_dim": 8}),
    "gemma3": ("Gemma3", ("ForCausalLM",), T.Gemma3TextConfig, GEMMA3),
    "gemma3-text": ("Gemma3Text", ("ForSequenceClassification", "Model"), T.Gemma3TextConfig, GEMMA3),
    "olmo2": ("Olmo2", ("ForCausalLM", "ForSequenceClassification", "Model"), T.Olmo2Config, GROUPED),
    "olmo3": (
        "Olmo3",
        ("ForCausalLM", "ForSequenceClassification", "Model"),
        T.Olmo3Config,
        {**GROUPED, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "exaone4": ("Exaone4", ANSWERING, T.Exaone4Config, _EXAONE),
    "exaone4-sliding-tied": (
        "Exaone4",
        ("ForCausalLM",),
        T.Exaone4Config,
        {**_EXAONE, "sliding_window": 5, "layer_types": ["sliding_attention"] * 2, "tie_word_embeddings": True},
    ),
    "exaone4-hybrid": (
        "Exaone4",
        ("ForCausalLM",),
        T.Exaone4Config,
        {**_EXAONE, "sliding_window": 5, "layer_types": ["full_attention", "sliding_attention"]},
    ),
    "doge": ("Doge", ("ForCausalLM", "ForSequenceClassification", "Model"), T.DogeConfig, _DOGE),
    "doge-biased-tied": (
        "Doge",
        ("ForCausalLM",),
        T.DogeConfig,
        {**_DOGE, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "hunyuan": (
        "HunYuanDenseV1",
        ("ForCausalLM", "ForSequenceClassification", "Model"),
        T.HunYuanDenseV1Config,
        _HUNYUAN,
    ),
    "hunyuan-biased-tied": (
        "HunYuanDenseV1",
        ("ForCausalLM",),
        T.HunYuanDenseV1Config,
        {**_HUNYUAN, "attention_bias": True, "tie_word_embeddings": True},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = (
    "qwen3/",
    "gemma3",
    "olmo2",
    "olmo3",
    "exaone4",
    "hunyuan",
    "doge",
)  # RMSNorm and rotary angles

_NORMED = {HEAD_KEY: ((2, 1, 16), SHAPES)}  # a gain a coordinate
GEMMA3_KEYS = {
    **GEMMA2_KEYS,
    **_NORMED,
    "use_bidirectional_attention": (True, CHANGES),
    "rope_parameters": (LINEAR_ROPES, CHANGES),
    "attn_logit_softcapping": (1.0, KEEPS),  # of Gemma 2; nothing reads it here
}
KEYS = {
    "qwen3/Qwen3ForCausalLM": RMS_KEYS | LAYER_KEYS | _NORMED,
    "qwen3/Qwen3ForSequenceClassification": PADDING_KEYS,
    "gemma3/Gemma3ForCausalLM": GEMMA3_KEYS,
    "gemma3-text/Gemma3TextForSequenceClassification": PADDING_KEYS,
    "olmo2/Olmo2ForCausalLM": RMS_KEYS,
    "olmo2/Olmo2ForSequenceClassification": PADDING_KEYS,
    "olmo3/Olmo3ForCausalLM": {
        **RMS_KEYS,
        "rope_parameters": (LINEAR_ROPES, CHANGES),
        "sliding_window": (9, CHANGES),
        "layer_types": (["full_attention"] * 2, CHANGES),
    },
    "olmo3/Olmo3ForSequenceClassification": PADDING_KEYS,
    "exaone4/Exaone4ForCausalLM": {**RMS_KEYS, **_NORMED, "sliding_window": (5, CHANGES)},
    "exaone4-sliding-tied/Exaone4ForCausalLM": {
        "sliding_window": (9, CHANGES),
        "layer_types + sliding_window": ((["full_attention"] * 2, None), CHANGES),
    },
    "exaone4/Exaone4ForSequenceClassification": PADDING_KEYS,
    "doge/DogeForCausalLM": {
        **{key: row for key, row in RMS_KEYS.items() if key != HEAD_KEY},
        "num_attention_heads": (2, SHAPES),
        "sliding_window": (5, CHANGES),
        "keep_window_size": (9, CHANGES),
        "is_moe": (True, UNCOVERED),
    },
    "doge/DogeForSequenceClassification": PADDING_KEYS,
    "hunyuan/HunYuanDenseV1ForCausalLM": RMS_KEYS | _NORMED,
    "hunyuan/HunYuanDenseV1ForSequenceClassification": PADDING_KEYS,
}
TIED = (
    "gemma3/Gemma3ForCausalLM",
    "exaone4-sliding-tied/Exaone4ForCausalLM",
    "hunyuan-biased-tied/HunYuanDenseV1ForCausalLM",
    "doge-biased-tied/DogeForCausalLM",
)
