"""Decoders with multi-head latent attention."""

import transformers as T

from families import CHANGES, PADDING_KEYS, SHAPES, UNCOVERED
from families.rmsnorm_decoders import GROUPED, HEAD_KEY, HEADS, RMS_KEYS

# sizes that rope is added to are even: of odd ones Transformers can view no complex numbers in float32
_LATENT = {
    **GROUPED,
    "num_key_value_heads": 4,
    "kv_lora_rank": 10,
    "q_lora_rank": 9,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 3,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 8,
    "n_shared_experts": 2,
}
_ALL = {**_LATENT, "first_k_dense_replace": 0, "q_lora_rank": None, "attention_bias": True, "tie_word_embeddings": True}
_GROUPS = {"n_group": 2, "topk_group": 1}
_ONE = {"n_group": 1, "topk_group": 1}
_FLASH = {key: value for key, value in _LATENT.items() if key != "first_k_dense_replace"}
MISTRAL4 = {**_LATENT, "first_k_dense_replace": 0}
# the factor on the queries grows from the fourth token on; other types of embedding would be one of the whole head
_GROWING = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4}
MISTRAL4["rope_parameters"] = {**_GROWING, "llama_4_scaling_beta": 0.5}
_YOUTU = {**GROUPED, **{key: _LATENT[key] for key in _LATENT if key.endswith(("_rank", "_head_dim"))}}
# Transformers zeroes the row of padding as it loads the model, whatever the file says
_YOUTU |= {"num_key_value_heads": 4, "pad_token_id": None}
_MINICPM = {**_YOUTU, "pad_token_id": 0, "scale_emb": 3, "scale_depth": 0.9, "dim_model_base": 16}
SPARSE = {**_LATENT, "index_topk": 4, "index_n_heads": 2, "index_head_dim": 7}
# it may say it of more layers than there are
_GLM5 = {
    **SPARSE,
    **_GROUPS,
    "indexer_types": ["full", "shared", "full"],
    "attention_bias": True,
    "tie_word_embeddings": True,
}
# of two layers one has a rotary embedding, the other experts; queries of both grow
LARGE4 = {key: value for key, value in SPARSE.items() if key != "q_lora_rank"}
LARGE4 |= {"no_rope_layers": [1, 0], "index_n_heads": 3, "rope_parameters": _GROWING}
_V2_HEADS = ("ForCausalLM", "ForSequenceClassification", "Model")

FAMILIES = {
    "deepseek2": ("DeepseekV2", _V2_HEADS, T.DeepseekV2Config, _LATENT),
    "deepseek2-limited": (
        "DeepseekV2",
        ("ForCausalLM",),
        T.DeepseekV2Config,
        {**_LATENT, **_GROUPS, "topk_method": "group_limited_greedy", "mlp_bias": True},
    ),
    # as many groups are chosen as experts, so that no expert is ruled out
    "deepseek2-direct-tied": (
        "DeepseekV2",
        ("ForCausalLM",),
        T.DeepseekV2Config,
        {**_ALL, "n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy"},
    ),
    "deepseek3": ("DeepseekV3", HEADS, T.DeepseekV3Config, {**_LATENT, **_GROUPS}),
    "deepseek3-direct-tied": (
        "DeepseekV3",
        ("ForCausalLM",),
        T.DeepseekV3Config,
        {**_ALL, **_ONE, "rope_interleave": False},
    ),
    "deepseek3-biased-fused": (
        "DeepseekV3",
        ("ForCausalLM",),
        T.DeepseekV3Config,
        {**_LATENT, **_ONE, "attention_bias": True},
    ),
    "glm4moelite": ("Glm4MoeLite", ("ForCausalLM", "Model"), T.Glm4MoeLiteConfig, _FLASH),
    "glm4moelite-direct-tied": (
        "Glm4MoeLite",
        ("ForCausalLM",),
        T.Glm4MoeLiteConfig,
        {**_FLASH, **_GROUPS, "q_lora_rank": None, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "mistral4": ("Mistral4", HEADS, T.Mistral4Config, MISTRAL4),
    "mistral4-biased-tied": (
        "Mistral4",
        ("ForCausalLM",),
        T.Mistral4Config,
        {**MISTRAL4, **_GROUPS, "first_k_dense_replace": 1, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "deepseek32": ("DeepseekV32", ("ForCausalLM", "Model"), T.DeepseekV32Config, {**SPARSE, **_GROUPS}),
    "glm5-shared-biased-tied": ("GlmMoeDsa", ("ForCausalLM", "Model"), T.GlmMoeDsaConfig, _GLM5),
    "mistral-large4-biased": (
        "MistralLarge4Text",
        ("Model",),
        T.MistralLarge4TextConfig,
        {**LARGE4, **_GROUPS, "attention_bias": True},
    ),
    "youtu": ("Youtu", ("ForCausalLM", "Model"), T.YoutuConfig, _YOUTU),
    "youtu-direct-untied": (
        "Youtu",
        ("ForCausalLM",),
        T.YoutuConfig,
        {**_YOUTU, "q_lora_rank": None, "attention_bias": True, "tie_word_embeddings": False},
    ),
    "minicpm3": ("MiniCPM3", _V2_HEADS, T.MiniCPM3Config, _MINICPM),
    "minicpm3-direct-biased-untied": (
        "MiniCPM3",
        ("ForCausalLM",),
        T.MiniCPM3Config,
        {**_MINICPM, "q_lora_rank": None, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = (
    "deepseek",
    "glm4moelite",
    "mistral4",
    "mistral-large4",
    "glm5",
    "youtu",
    "minicpm3",
)  # RMSNorm, routers and rotary angles

_KEYS = {
    **{key: row for key, row in RMS_KEYS.items() if key != "num_key_value_heads"},
    HEAD_KEY: ((2, 2, 4), SHAPES),
    "num_key_value_heads": (2, UNCOVERED),
    "num_experts_per_tok": (1, CHANGES),
    "routed_scaling_factor": (0.5, CHANGES),
}
_V3_KEYS = {**_KEYS, "norm_topk_prob": (False, CHANGES), "rope_interleave": (False, CHANGES)}
_SPARSE_KEYS = {
    **_KEYS,
    HEAD_KEY: ((2, 2, 2), SHAPES),
    "norm_topk_prob": (False, CHANGES),
    "index_topk": (8, CHANGES),
    "n_group": (1, CHANGES),
    "topk_group": (2, CHANGES),
}
LARGE4_KEYS = {
    **{key: row for key, row in _SPARSE_KEYS.items() if key != "norm_topk_prob"},
    "rope_parameters": (_GROWING | {"factor": 8.0}, CHANGES),
    "no_rope_layers": ([1, 1], SHAPES),
    "kv_source_layers": ([0, 0], UNCOVERED),
    "indexer_types": (["full", "shared"], SHAPES),
}
KEYS = {
    "deepseek2/DeepseekV2ForCausalLM": {
        **_KEYS,
        "topk_method + n_group + topk_group": (("group_limited_greedy", 2, 1), CHANGES),
    },
    "deepseek2-limited/DeepseekV2ForCausalLM": {"n_group": (4, CHANGES), "topk_group": (2, CHANGES)},
    "deepseek2/DeepseekV2ForSequenceClassification": PADDING_KEYS,
    "deepseek3/DeepseekV3ForCausalLM": {
        **_V3_KEYS,
        "n_group": (1, CHANGES),
        "topk_group": (2, CHANGES),
    },
    "deepseek3/DeepseekV3ForSequenceClassification": PADDING_KEYS,
    "glm4moelite/Glm4MoeLiteForCausalLM": {
        **_V3_KEYS,
        HEAD_KEY: ((2, 2, 2), SHAPES),  # the last is what is rotated
        "mlp_layer_types": (["dense"] * 2, UNCOVERED),
    },
    "glm4moelite-direct-tied/Glm4MoeLiteForCausalLM": {"n_group": (1, CHANGES), "topk_group": (2, CHANGES)},
    "mistral4/Mistral4ForCausalLM": {
        **_V3_KEYS,
        HEAD_KEY: ((2, 2, 20), SHAPES),
        "rope_parameters": (MISTRAL4["rope_parameters"] | {"llama_4_scaling_beta": 0.1}, CHANGES),
    },
    "mistral4-biased-tied/Mistral4ForCausalLM": {"n_group": (1, CHANGES), "topk_group": (2, CHANGES)},
    "mistral4/Mistral4ForSequenceClassification": PADDING_KEYS,
    "deepseek32/DeepseekV32ForCausalLM": _SPARSE_KEYS,
    "glm5-shared-biased-tied/GlmMoeDsaForCausalLM": _SPARSE_KEYS,
    "mistral-large4-biased/MistralLarge4TextModel": LARGE4_KEYS,
    "youtu/YoutuForCausalLM": {
        **{key: row for key, row in _KEYS.items() if not key.startswith(("num_experts", "routed"))},
        "rope_interleave": (False, CHANGES),
    },
    "minicpm3/MiniCPM3ForCausalLM": {
        **{key: row for key, row in _KEYS.items() if not key.startswith(("num_experts", "routed"))},
        "scale_emb": (1, CHANGES),
        "scale_depth": (1.4, CHANGES),
        "dim_model_base": (12, CHANGES),
    },
    "minicpm3/MiniCPM3ForSequenceClassification": PADDING_KEYS,
}
TIED = (
    "deepseek2-direct-tied/DeepseekV2ForCausalLM",
    "deepseek3-direct-tied/DeepseekV3ForCausalLM",
    "glm4moelite-direct-tied/Glm4MoeLiteForCausalLM",
    "mistral4-biased-tied/Mistral4ForCausalLM",
    "glm5-shared-biased-tied/GlmMoeDsaForCausalLM",
    "youtu/YoutuForCausalLM",
    "minicpm3/MiniCPM3ForCausalLM",
)
