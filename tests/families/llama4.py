"""Llama 4."""

import transformers as T

from families import CHANGES, FAILS, SHAPES, UNCOVERED, within
from families.rmsnorm_decoders import GROUPED, HEAD_KEY, RMS_KEYS

_LLAMA4 = {
    **GROUPED,
    "head_dim": 8,
    "intermediate_size": 12,
    "intermediate_size_mlp": 14,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "no_rope_layers": [1, 0],
    "moe_layers": [1],
    "attention_chunk_size": 5,
    "floor_scale": 3,
    "attn_scale": 0.4,
}

_PICTURES = {
    "text_config": _LLAMA4,
    "vision_config": {
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "patch_size": 4,
        "image_size": 16,
        "projector_input_dim": 18,
        "projector_output_dim": 18,
        "vision_output_dim": 18,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "image_token_index": 7,
}

FAMILIES = {
    "llama4-pictures": ("Llama4", ("ForConditionalGeneration",), T.Llama4Config, _PICTURES),
    "llama4": ("Llama4", ("ForCausalLM",), T.Llama4TextConfig, _LLAMA4),
    "llama4-text": ("Llama4Text", ("Model",), T.Llama4TextConfig, {**_LLAMA4, "moe_layers": [0, 1]}),
    "llama4-biased-tied": (
        "Llama4",
        ("ForCausalLM",),
        T.Llama4TextConfig,
        {**_LLAMA4, "attention_bias": True, "use_qk_norm": False, "tie_word_embeddings": True},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("llama4",)  # RMSNorm, routers and rotary angles

_KEYS = {
    **RMS_KEYS,
    HEAD_KEY: ((2, 1, 16), CHANGES),
    "num_experts_per_tok": (1, CHANGES),
    "no_rope_layers": ([1, 1], CHANGES),
    "use_qk_norm": (False, CHANGES),
    "layer_types": (["full_attention"] * 2, CHANGES),
    "attention_chunk_size": (9, CHANGES),
    "attn_temperature_tuning": (False, CHANGES),
    "floor_scale": (5, CHANGES),
    "attn_scale": (0.1, CHANGES),
}
KEYS = {
    "llama4/Llama4ForCausalLM": _KEYS,
    "llama4-text/Llama4TextModel": {"no_rope_layers": ([1], SHAPES)},  # of one of two layers
    "llama4-pictures/Llama4ForConditionalGeneration": {
        **within("text_config", _KEYS),
        **within(
            "vision_config",
            {
                "num_attention_heads": (4, CHANGES),
                "rope_parameters": ({"rope_type": "default", "rope_theta": 10.0}, CHANGES),
                "image_size": (24, SHAPES),
                "patch_size": (2, SHAPES),
                "pixel_shuffle_ratio": (0.25, UNCOVERED),
                "vision_output_dim": (20, UNCOVERED),
            },
        ),
        "image_token_index": (5, FAILS),
        "tie_word_embeddings": (True, UNCOVERED),
    },
}
TIED = ("llama4-biased-tied/Llama4ForCausalLM",)
