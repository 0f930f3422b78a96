"""Decoders with mixers of Mamba and Mamba-2."""

import transformers as T

from families import CAUSAL_KEYS, CHANGES, KEEPS, PADDING_KEYS, SHAPES, UNCOVERED
from families.rmsnorm_decoders import GRANITE_FACTORS, GRANITE_KEYS, GROUPED, RMS_KEYS

_MIXER = {
    "mamba_expand": 1,
    "mamba_n_heads": 4,
    "mamba_n_groups": 2,
    "mamba_d_head": 6,
    "mamba_d_state": 4,
    "mamba_d_conv": 3,
    "rms_norm_eps": 0.1,  # what a head puts out may be next to nothing: rounding would grow with it
}
_GRANITE = {
    **GROUPED,
    **GRANITE_FACTORS,
    **_MIXER,
    "layer_types": ["linear_attention", "full_attention"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 12,
    "shared_intermediate_size": 10,
}
_TURNED = {"layer_types": ["full_attention"] * 2, "position_embedding_type": "rope", "num_local_experts": 0}
_BIASES = {"attention_bias": True, "mamba_proj_bias": True}
_BAMBA = {**GROUPED, **_MIXER, "attn_layer_indices": [1]}
_MAMBA = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "expand": 1,
    "num_heads": 4,
    "n_groups": 2,
    "head_dim": 6,
    "state_size": 4,
    "conv_kernel": 3,
    "layer_norm_epsilon": 0.1,
    "pad_token_id": 0,
}
_SELECTIVE = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "expand": 1,
    "state_size": 4,
    "time_step_rank": 6,
    "conv_kernel": 3,
    "layer_norm_epsilon": 0.1,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_JAMBA = {
    **GROUPED,
    "num_hidden_layers": 3,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 12,
    "mamba_expand": 1,
    "mamba_d_state": 4,
    "mamba_dt_rank": 6,
    "mamba_d_conv": 3,
    "rms_norm_eps": 0.1,
}
_NEMOTRON = {
    **GROUPED,
    "head_dim": 8,
    "layers_block_type": ["linear_attention", "full_attention", "mlp"],
    "mamba_num_heads": 4,
    "mamba_head_dim": 6,
    "n_groups": 2,
    "ssm_state_size": 4,
    "conv_kernel": 3,
    "layer_norm_epsilon": 0.1,
}
del _NEMOTRON["num_hidden_layers"]
_EXPERTS = {
    **_NEMOTRON,
    "layers_block_type": ["full_attention", "moe"],
    "n_routed_experts": 4,
    "moe_intermediate_size": 12,
    "moe_shared_expert_intermediate_size": 10,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.5,
}
_FALCON_FACTORS = {
    "embedding_multiplier": 3.0,
    "attention_in_multiplier": 0.8,
    "key_multiplier": 0.6,
    "attention_out_multiplier": 1.2,
    "ssm_in_multiplier": 0.9,
    "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
    "ssm_out_multiplier": 1.3,
    "mlp_multipliers": [0.7, 1.4],
    "lm_head_multiplier": 0.6,
}
_FALCON = {**GROUPED, **_MIXER, **_FALCON_FACTORS, "head_dim": 6, "mamba_d_ssm": 24, "mamba_rms_norm": True}

FAMILIES = {
    "mamba": ("Mamba", ("ForCausalLM", "Model"), T.MambaConfig, _SELECTIVE),
    "mamba-biased-tied": (
        "Mamba",
        ("ForCausalLM",),
        T.MambaConfig,
        {**_SELECTIVE, "use_bias": True, "use_conv_bias": False, "tie_word_embeddings": True},
    ),
    "falcon-mamba": (
        "FalconMamba",
        ("ForCausalLM", "Model"),
        T.FalconMambaConfig,
        {**_SELECTIVE, "mixer_rms_eps": 0.1},
    ),
    "mamba2": ("Mamba2", ("ForCausalLM", "Model"), T.Mamba2Config, _MAMBA),
    "mamba2-biased-tied": (
        "Mamba2",
        ("ForCausalLM",),
        T.Mamba2Config,
        {**_MAMBA, "use_bias": True, "use_conv_bias": False, "tie_word_embeddings": True},
    ),
    "nemotron-h": ("NemotronH", ("ForCausalLM", "Model"), T.NemotronHConfig, _NEMOTRON),
    "nemotron-h-experts": ("NemotronH", ("ForCausalLM",), T.NemotronHConfig, _EXPERTS),
    "nemotron-h-latent-biased-fused": (
        "NemotronH",
        ("ForCausalLM",),
        T.NemotronHConfig,
        {**_EXPERTS, "moe_latent_size": 8, "use_bias": True, "mlp_bias": True},
    ),
    "granite-hybrid": ("GraniteMoeHybrid", ("ForCausalLM", "Model"), T.GraniteMoeHybridConfig, _GRANITE),
    "granite-hybrid-biased-fused": (
        "GraniteMoeHybrid",
        ("ForCausalLM",),
        T.GraniteMoeHybridConfig,
        {**_GRANITE, **_BIASES, "mamba_conv_bias": False},
    ),
    "granite-hybrid-attention-tied": (
        "GraniteMoeHybrid",
        ("ForCausalLM",),
        T.GraniteMoeHybridConfig,
        {**_GRANITE, **_TURNED, "tie_word_embeddings": True},
    ),
    "bamba": ("Bamba", ("ForCausalLM", "Model"), T.BambaConfig, _BAMBA),
    "bamba-biased-tied": (
        "Bamba",
        ("ForCausalLM",),
        T.BambaConfig,
        {**_BAMBA, **_BIASES, "mlp_bias": True, "mamba_n_groups": 1, "tie_word_embeddings": True},
    ),
    "jamba": ("Jamba", ("ForCausalLM", "Model", "ForSequenceClassification"), T.JambaConfig, _JAMBA),
    "jamba-dense-biased-tied": (
        "Jamba",
        ("ForCausalLM",),
        T.JambaConfig,
        {**_JAMBA, "num_experts": 1, "mamba_proj_bias": True, "mamba_conv_bias": False, "tie_word_embeddings": True},
    ),
    "jamba-fused": ("Jamba", ("ForCausalLM",), T.JambaConfig, _JAMBA),
    "falcon-h1": ("FalconH1", ("ForCausalLM", "Model"), T.FalconH1Config, _FALCON),
    "falcon-h1-biased-tied": (
        "FalconH1",
        ("ForCausalLM",),
        T.FalconH1Config,
        {
            **_FALCON,
            **_BIASES,
            "mamba_rms_norm": False,
            "projectors_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ),
}
FLOAT32_PARTS: tuple[str, ...] = (
    "mamba",
    "falcon-mamba",
    "nemotron-h",
    "granite-hybrid",
    "bamba",
    "falcon-h1",
    "jamba",
)  # RMSNorm, routers, rotary angles, states

_MIXED_KEYS = {key: row for key, row in RMS_KEYS.items() if key != "rope_parameters"} | {
    "rms_norm_eps": (1e-6, CHANGES),
    "mamba_n_groups + mamba_d_state": ((1, 8), CHANGES),
    "time_step_limit": ((0.0, 0.5), CHANGES),
}
_MAMBA_KEYS = {
    "layer_norm_epsilon": (1e-6, CHANGES),
    "hidden_act": ("gelu", CHANGES),
    "rescale_prenorm_residual": (True, CHANGES),  # of loaded weights, too
}
KEYS = {
    "mamba/MambaForCausalLM": _MAMBA_KEYS,
    "falcon-mamba/FalconMambaForCausalLM": {**_MAMBA_KEYS, "mixer_rms_eps": (1e-6, CHANGES)},
    "mamba2/Mamba2ForCausalLM": {
        **_MAMBA_KEYS,
        "n_groups + state_size": ((1, 8), CHANGES),
        "time_step_limit": ((0.0, 0.5), CHANGES),
    },
    "nemotron-h/NemotronHForCausalLM": {
        **CAUSAL_KEYS,
        "n_groups + ssm_state_size": ((1, 8), CHANGES),
        "num_attention_heads + num_key_value_heads + head_dim": ((2, 1, 16), CHANGES),
        "layer_norm_epsilon": (1e-6, CHANGES),
        "mamba_hidden_act": ("gelu", CHANGES),
        "mlp_hidden_act": ("gelu", CHANGES),
        "time_step_min": (1.5, CHANGES),
        "layers_block_type": (["full_attention", "linear_attention", "mlp"], SHAPES),
        "tie_word_embeddings": (True, UNCOVERED),
    },
    "nemotron-h-experts/NemotronHForCausalLM": {
        "num_experts_per_tok": (1, CHANGES),
        "routed_scaling_factor": (1.0, CHANGES),
        "norm_topk_prob": (True, CHANGES),
        "n_group": (2, CHANGES),
        "n_group + topk_group": ((2, 2), KEEPS),
    },
    "granite-hybrid/GraniteMoeHybridForCausalLM": {
        **_MIXED_KEYS,
        **GRANITE_KEYS,
        "num_experts_per_tok": (1, CHANGES),
        "layer_types": (["full_attention", "linear_attention"], SHAPES),
    },
    "granite-hybrid-attention-tied/GraniteMoeHybridForCausalLM": {
        "position_embedding_type": (None, CHANGES),
        "rope_parameters": RMS_KEYS["rope_parameters"],
    },
    "bamba/BambaForCausalLM": {
        **_MIXED_KEYS,
        "rope_parameters": ({**RMS_KEYS["rope_parameters"][0], "partial_rotary_factor": 0.5}, CHANGES),
        "attn_layer_indices": ([0], SHAPES),
    },
    "jamba/JambaForCausalLM": {
        **CAUSAL_KEYS,
        "rms_norm_eps": (1e-6, CHANGES),
        "hidden_act": ("gelu", CHANGES),
        "num_attention_heads + num_key_value_heads": ((2, 1), CHANGES),
        "num_experts_per_tok": (1, CHANGES),
    },
    "jamba/JambaForSequenceClassification": PADDING_KEYS,
    "falcon-h1/FalconH1ForCausalLM": {
        **_MIXED_KEYS,
        "attention_in_multiplier + key_multiplier + attention_out_multiplier": ((1.0, 1.0, 1.0), CHANGES),
        "ssm_in_multiplier + ssm_multipliers + ssm_out_multiplier": ((1.0, [1.0] * 5, 1.0), CHANGES),
        "embedding_multiplier + mlp_multipliers + lm_head_multiplier": ((1.0, [1.0] * 2, 1.0), CHANGES),
        "rope_parameters": RMS_KEYS["rope_parameters"],
        "mamba_norm_before_gate": (False, CHANGES),
    },
}
TIED = (
    "jamba-dense-biased-tied/JambaForCausalLM",
    "mamba-biased-tied/MambaForCausalLM",
    "falcon-h1-biased-tied/FalconH1ForCausalLM",
    "mamba2-biased-tied/Mamba2ForCausalLM",
    "granite-hybrid-attention-tied/GraniteMoeHybridForCausalLM",
    "bamba-biased-tied/BambaForCausalLM",
)
