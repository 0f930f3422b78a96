"""Decoders with RMSNorm besides Llama."""

import transformers as T

from families import CAUSAL_KEYS, CHANGES, KEEPS, LINEAR_ROPE, PADDING_KEYS, SHAPES, SMALL, UNCOVERED

HEADS = ("ForCausalLM", "ForSequenceClassification", "ForTokenClassification", "Model")
ANSWERING = (*HEADS, "ForQuestionAnswering")
GROUPED = {**SMALL, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GEMMA = {**GROUPED, "head_dim": 8}
GEMMA2 = {**_GEMMA, "sliding_window": 12, "query_pre_attn_scalar": 7}

_SEED = {**GROUPED, "head_dim": 8}
GRANITE_FACTORS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.7,
    "logits_scaling": 2.0,
}
_GRANITE = {**GROUPED, **GRANITE_FACTORS}
_MINISTRAL = {**GROUPED, "head_dim": 6, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
_CWM = {**_MINISTRAL, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
# the factor on the queries grows from the fourth token on
_GROWING = {"original_max_position_embeddings": 4, "llama_4_scaling_beta": 0.5}
MINISTRAL3 = {**GROUPED, "head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, **_GROWING}}
MINISTRAL3["sliding_window"] = 5
_SMOL = {**GROUPED, "no_rope_layers": [1, 0], "use_sliding_window": True, "sliding_window": 5}
_SMOL["layer_types"] = ["sliding_attention", "full_attention"]
# the first layer turns queries and keys, the second does not
_SWASH = {**_GRANITE, "sliding_window": 5, "layer_rope_theta": [500.0, 0], "tie_word_embeddings": False}
_SWASH_MOE = {**_SWASH, "num_local_experts": 4, "num_experts_per_tok": 2}

FAMILIES = {
    "granite": ("Granite", ("ForCausalLM", "Model"), T.GraniteConfig, _GRANITE),
    "granite-biased": (
        "Granite",
        ("ForCausalLM",),
        T.GraniteConfig,
        {**_GRANITE, "attention_bias": True, "mlp_bias": True},
    ),
    "granite-swa": ("GraniteSWA", ("ForCausalLM", "Model"), T.GraniteSWAConfig, _SWASH),
    "granite-swa-biased-tied": (
        "GraniteSWA",
        ("ForCausalLM",),
        T.GraniteSWAConfig,
        {**_SWASH, "attention_bias": True, "mlp_bias": True, "layer_rope_theta": None, "tie_word_embeddings": True},
    ),
    "granite-moe-swa": ("GraniteMoeSWA", ("ForCausalLM", "Model"), T.GraniteMoeSWAConfig, _SWASH_MOE),
    "granite-moe-swa-shared": (
        "GraniteMoeSWA",
        ("ForCausalLM",),
        T.GraniteMoeSWAConfig,
        {**_SWASH_MOE, "shared_intermediate_size": 10, "tie_word_embeddings": True},
    ),
    "seed-oss": ("SeedOss", ANSWERING, T.SeedOssConfig, _SEED),
    "seed-oss-out-biased": (
        "SeedOss",
        ("ForCausalLM",),
        T.SeedOssConfig,
        {**_SEED, "attention_bias": False, "attention_out_bias": True},
    ),
    "seed-oss-biased": (
        "SeedOss",
        ("ForCausalLM",),
        T.SeedOssConfig,
        {**_SEED, "attention_out_bias": True, "mlp_bias": True},
    ),
    "mistral": ("Mistral", ANSWERING, T.MistralConfig, {**GROUPED, "sliding_window": 5}),
    "ministral": ("Ministral", ANSWERING, T.MinistralConfig, _MINISTRAL),
    "cwm": ("Cwm", ("ForCausalLM", "Model"), T.CwmConfig, _CWM),
    "cwm-biased-tied": (
        "Cwm",
        ("ForCausalLM",),
        T.CwmConfig,
        {**_CWM, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "ministral3": ("Ministral3", ANSWERING, T.Ministral3Config, MINISTRAL3),
    "smollm3": ("SmolLM3", ANSWERING, T.SmolLM3Config, _SMOL),
    "smollm3-biased": (
        "SmolLM3",
        ("ForCausalLM",),
        T.SmolLM3Config,
        {**_SMOL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    ),
    "smollm3-turned": ("SmolLM3", ("ForCausalLM",), T.SmolLM3Config, {**_SMOL, "no_rope_layers": [1, 1]}),
    "qwen2": ("Qwen2", ANSWERING, T.Qwen2Config, GROUPED),
    "phi3": ("Phi3", HEADS, T.Phi3Config, GROUPED),
    "qwen2-unbiased": (
        "Qwen2",
        ("ForTokenClassification",),
        T.Qwen2Config,
        {**GROUPED, "token_classification_bias": False},
    ),
    "phi3-partial": (
        "Phi3",
        ("ForCausalLM",),
        T.Phi3Config,
        {**GROUPED, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.7}},
    ),
    "gemma": ("Gemma", HEADS, T.GemmaConfig, _GEMMA),
    "gemma2": ("Gemma2", HEADS, T.Gemma2Config, GEMMA2),
    "vaultgemma": ("VaultGemma", ("ForCausalLM", "Model"), T.VaultGemmaConfig, GEMMA2),
    "vaultgemma-biased-untied": (
        "VaultGemma",
        ("ForCausalLM",),
        T.VaultGemmaConfig,
        {**GEMMA2, "attention_bias": True, "tie_word_embeddings": False},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = (
    "granite",
    "seed-oss",
    "mistral",
    "ministral",
    "smollm3",
    "qwen2/",
    "qwen2-unbiased",
    "phi3",
    "gemma/",
    "gemma2",
    "cwm",
    "vaultgemma",
)  # RMSNorm and rotary angles

HEAD_KEY = "num_attention_heads + num_key_value_heads + head_dim"
RMS_KEYS = {
    **CAUSAL_KEYS,
    HEAD_KEY: ((2, 1, 12), CHANGES),
    "num_key_value_heads": (4, SHAPES),
    "hidden_act": ("gelu", CHANGES),
    "rms_norm_eps": (0.1, CHANGES),
    "rope_parameters": (LINEAR_ROPE, CHANGES),
}
WINDOW_KEYS = {"sliding_window": (9, CHANGES)}
LAYER_KEYS = {"layer_types + use_sliding_window + sliding_window": ((["sliding_attention"] * 2, True, 5), CHANGES)}
GEMMA_KEYS = {
    **RMS_KEYS,
    HEAD_KEY: ((2, 1, 16), CHANGES),
    "hidden_act": ("relu", CHANGES),
    "use_bidirectional_attention": (True, KEEPS),  # read where a kernel makes its own mask
}
GEMMA2_KEYS = {key: row for key, row in GEMMA_KEYS.items() if key != "hidden_act"} | {
    "hidden_activation": ("relu", CHANGES),
    "query_pre_attn_scalar": (16, CHANGES),
    "attn_logit_softcapping": (1.0, CHANGES),
    "final_logit_softcapping": (1.0, CHANGES),
    "sliding_window": (15, CHANGES),
    "layer_types": (["full_attention"] * 2, CHANGES),
}
GRANITE_KEYS = {factor: (1.0, CHANGES) for factor in GRANITE_FACTORS}
_SWASH_KEYS = {
    **RMS_KEYS,
    **WINDOW_KEYS,
    HEAD_KEY: ((2, 1, 12), SHAPES),  # a sink a head
    "layer_types": (["full_attention"] * 2, CHANGES),
    "layer_rope_theta": ([9.0, 0], CHANGES),
}
KEYS = {
    "granite/GraniteForCausalLM": RMS_KEYS | GRANITE_KEYS,
    "granite-swa/GraniteSWAForCausalLM": {**_SWASH_KEYS, **GRANITE_KEYS},
    "granite-moe-swa/GraniteMoeSWAForCausalLM": {**_SWASH_KEYS, **GRANITE_KEYS, "num_experts_per_tok": (1, CHANGES)},
    "seed-oss/SeedOssForCausalLM": {**RMS_KEYS, HEAD_KEY: ((2, 1, 16), CHANGES)},
    "seed-oss/SeedOssForSequenceClassification": PADDING_KEYS,
    "mistral/MistralForCausalLM": RMS_KEYS | WINDOW_KEYS,
    "mistral/MistralForSequenceClassification": PADDING_KEYS,
    "ministral/MinistralForCausalLM": RMS_KEYS | WINDOW_KEYS | {"layer_types": (["full_attention"] * 2, CHANGES)},
    "ministral/MinistralForSequenceClassification": PADDING_KEYS,
    "cwm/CwmForCausalLM": RMS_KEYS | WINDOW_KEYS | {"layer_types": (["full_attention"] * 2, CHANGES)},
    "ministral3/Ministral3ForCausalLM": {
        **RMS_KEYS,
        **WINDOW_KEYS,
        HEAD_KEY: ((2, 1, 16), CHANGES),
        "rope_parameters": (MINISTRAL3["rope_parameters"] | {"llama_4_scaling_beta": 0.1}, CHANGES),
    },
    "ministral3/Ministral3ForSequenceClassification": PADDING_KEYS,
    "smollm3/SmolLM3ForCausalLM": {
        **RMS_KEYS,
        **WINDOW_KEYS,
        "layer_types": (["full_attention"] * 2, CHANGES),
        "use_sliding_window": (False, KEEPS),  # read where a kernel makes its own mask
        "no_rope_layers": ([1, 1], CHANGES),
    },
    "smollm3/SmolLM3ForSequenceClassification": PADDING_KEYS,
    "smollm3-biased/SmolLM3ForCausalLM": {"no_rope_layers": ([1], SHAPES)},  # of one of two layers
    "qwen2/Qwen2ForCausalLM": RMS_KEYS | LAYER_KEYS,
    "qwen2/Qwen2ForSequenceClassification": PADDING_KEYS,
    "phi3/Phi3ForCausalLM": {
        **RMS_KEYS,
        **WINDOW_KEYS,
        "rope_parameters": ({"rope_type": "default", "rope_theta": 500.0}, CHANGES),
    },
    "phi3-partial/Phi3ForCausalLM": {
        "rope_parameters": (
            {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.0},
            UNCOVERED,
        ),
    },
    "phi3/Phi3ForSequenceClassification": PADDING_KEYS,
    "gemma/GemmaForCausalLM": GEMMA_KEYS,
    "gemma/GemmaForSequenceClassification": PADDING_KEYS,
    "gemma2/Gemma2ForCausalLM": GEMMA2_KEYS,
    "gemma2/Gemma2ForSequenceClassification": PADDING_KEYS,
    "vaultgemma/VaultGemmaForCausalLM": {
        key: row for key, row in GEMMA2_KEYS.items() if key != "use_bidirectional_attention"
    },
}
TIED = (
    "granite-swa-biased-tied/GraniteSWAForCausalLM",
    "granite-moe-swa-shared/GraniteMoeSWAForCausalLM",
    "gemma/GemmaForCausalLM",
    "gemma2/Gemma2ForCausalLM",
    "smollm3/SmolLM3ForCausalLM",
    "cwm-biased-tied/CwmForCausalLM",
    "vaultgemma/VaultGemmaForCausalLM",
)
