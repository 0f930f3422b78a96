"""A decoder with experts in attention, too."""

import transformers as T

from families import CAUSAL_KEYS, CHANGES, LINEAR_ROPE, PADDING_KEYS, SHAPES
from families.rmsnorm_decoders import GROUPED

_JETMOE = {
    **{key: size for key, size in GROUPED.items() if key != "num_attention_heads"},
    "kv_channels": 6,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}

FAMILIES = {
    "jetmoe": ("JetMoe", ("ForCausalLM", "ForSequenceClassification", "Model"), T.JetMoeConfig, _JETMOE),
    "jetmoe-tied": ("JetMoe", ("ForCausalLM",), T.JetMoeConfig, {**_JETMOE, "tie_word_embeddings": True}),
}
FLOAT32_PARTS: tuple[str, ...] = ("jetmoe",)  # RMSNorm, routers and rotary angles

KEYS = {
    "jetmoe/JetMoeForCausalLM": {
        **CAUSAL_KEYS,
        "num_key_value_heads + kv_channels": ((1, 12), CHANGES),
        "num_local_experts": (8, SHAPES),
        "num_experts_per_tok": (1, CHANGES),
        "activation_function": ("gelu", CHANGES),
        "rms_norm_eps": (0.1, CHANGES),
        "rope_parameters": (LINEAR_ROPE, CHANGES),
    },
    "jetmoe/JetMoeForSequenceClassification": PADDING_KEYS,
}
TIED = ("jetmoe-tied/JetMoeForCausalLM",)
