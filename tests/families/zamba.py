"""Zamba 2, with adapters for every use of a shared block and without."""

import transformers as T

from families import CAUSAL_KEYS, CHANGES, SHAPES, SMALL, UNCOVERED
from families.rmsnorm_decoders import RMS_KEYS

_PLAIN, _HYBRID = "linear_attention", "hybrid"
_ZAMBA2 = {
    **SMALL,
    "num_hidden_layers": 4,
    "layers_block_type": [_HYBRID, _PLAIN, _HYBRID, _HYBRID],
    "num_mem_blocks": 2,
    "adapter_rank": 3,
    "use_shared_attention_adapter": True,
    "use_mem_rope": True,
    "mamba_expand": 1,
    "n_mamba_heads": 4,
    "mamba_ngroups": 2,
    "mamba_d_state": 4,
    "mamba_d_conv": 3,
    "rms_norm_eps": 20.0,  # branches follow each other without a residual: rounding would grow
}
_WITHOUT = {
    "use_shared_attention_adapter": False,
    "use_mem_rope": False,
    "add_bias_linear": True,
    "num_key_value_heads": 2,
    "num_mem_blocks": 1,
}

FAMILIES = {
    "zamba2": ("Zamba2", ("ForCausalLM", "Model"), T.Zamba2Config, _ZAMBA2),
    "zamba2-biased": ("Zamba2", ("ForCausalLM",), T.Zamba2Config, {**_ZAMBA2, **_WITHOUT}),
}
FLOAT32_PARTS: tuple[str, ...] = ("zamba2",)

KEYS = {
    "zamba2/Zamba2ForCausalLM": {
        **CAUSAL_KEYS,
        "rms_norm_eps": (1e-6, CHANGES),
        "hidden_act": ("relu", CHANGES),
        "num_attention_heads + num_key_value_heads + attention_head_dim": ((2, 2, 24), CHANGES),
        "use_mem_rope": (False, CHANGES),
        "rope_parameters": RMS_KEYS["rope_parameters"],
        "layers_block_type": ([_HYBRID, _HYBRID, _PLAIN, _HYBRID], SHAPES),
        "num_mem_blocks": (1, SHAPES),
        "mamba_ngroups + mamba_d_state": ((4, 2), CHANGES),
        "n_mamba_heads": (2, SHAPES),
        "time_step_min": (1.0, CHANGES),
        "tie_word_embeddings": (False, UNCOVERED),
    },
}
TIED: tuple[str, ...] = ()
