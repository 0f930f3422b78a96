"""Cohere's decoders."""

import transformers as T

from families import CHANGES, UNCOVERED
from families.rmsnorm_decoders import GROUPED, RMS_KEYS, WINDOW_KEYS

_COMMAND = {**GROUPED, "logit_scale": 0.5}
_COMMAND2 = {**_COMMAND, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
_MOE = {
    **_COMMAND2,
    "head_dim": 6,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 12,
    "num_shared_experts": 2,
}
# in the first layer an FFN, and a rotary embedding, although no window slides
_SPARSE = {"layer_types": ["full_attention"] * 2, "mlp_layer_types": ["dense", "sparse"], "rms_norm_eps": 1e-6}
_UNTIED = {"attention_bias": True, "tie_word_embeddings": False}

FAMILIES = {
    "cohere": ("Cohere", ("ForCausalLM", "Model"), T.CohereConfig, _COMMAND),
    "cohere-qk-norm": ("Cohere", ("ForCausalLM",), T.CohereConfig, {**_COMMAND, "use_qk_norm": True}),
    "cohere-biased-untied": ("Cohere", ("ForCausalLM",), T.CohereConfig, {**_COMMAND, **_UNTIED}),
    "cohere2": ("Cohere2", ("ForCausalLM", "Model"), T.Cohere2Config, _COMMAND2),
    "cohere2-biased-untied": ("Cohere2", ("ForCausalLM",), T.Cohere2Config, {**_COMMAND2, **_UNTIED}),
    "cohere2-moe": ("Cohere2Moe", ("ForCausalLM", "Model"), T.Cohere2MoeConfig, _MOE),
    "cohere2-moe-dense-rms": (
        "Cohere2Moe",
        ("ForCausalLM",),
        T.Cohere2MoeConfig,
        {
            **_MOE,
            **_SPARSE,
            **_UNTIED,
            "prefix_dense_intermediate_size": 14,
            "num_shared_experts": 0,
            "expert_selection_fn": "sigmoid",
        },
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("cohere",)  # norms and rotary angles

_KEYS = {key: row for key, row in RMS_KEYS.items() if key != "rms_norm_eps"} | {
    "layer_norm_eps": (0.1, CHANGES),
    "logit_scale": (1.0, CHANGES),
}
KEYS = {
    "cohere/CohereForCausalLM": _KEYS,
    "cohere2/Cohere2ForCausalLM": _KEYS | WINDOW_KEYS | {"layer_types": (["full_attention"] * 2, CHANGES)},
    "cohere2-moe/Cohere2MoeForCausalLM": {
        **_KEYS,
        **WINDOW_KEYS,
        "layer_types": (["full_attention"] * 2, CHANGES),
        "num_experts_per_tok": (1, CHANGES),
        "expert_selection_fn": ("sigmoid", CHANGES),
        "shared_expert_combination_strategy": ("sum", CHANGES),
        "rms_norm_eps": (1e-6, CHANGES),
        "mlp_layer_types": (["dense"] * 2, UNCOVERED),
    },
    "cohere2-moe-dense-rms/Cohere2MoeForCausalLM": {
        "norm_topk_prob": (False, CHANGES),
        "prefix_dense_sliding_window_pattern": (4, CHANGES),
        "rms_norm_eps": (0.1, CHANGES),
    },
}
TIED = ("cohere2-moe/Cohere2MoeForCausalLM", "cohere/CohereForCausalLM", "cohere2/Cohere2ForCausalLM")
