"""Decoders like Llama whose FFN has no gate."""

import transformers as T

from families import CAUSAL_KEYS, CHANGES, LINEAR_ROPE, PADDING_KEYS, SHAPES
from families.rmsnorm_decoders import ANSWERING, GROUPED, HEAD_KEY, RMS_KEYS

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_APERTUS = {**GROUPED, "rope_parameters": _ROPE}
_NANOCHAT = {**GROUPED, "final_logit_softcapping": 3.0}
_NEMOTRON = {**GROUPED, "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5}}
_BIASED = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}

FAMILIES = {
    "arcee": ("Arcee", ANSWERING, T.ArceeConfig, GROUPED),
    "arcee-biased-tied": ("Arcee", ("ForCausalLM",), T.ArceeConfig, {**GROUPED, **_BIASED}),
    "arcee-relu": ("Arcee", ("ForCausalLM",), T.ArceeConfig, {**GROUPED, "hidden_act": "relu"}),
    "apertus": ("Apertus", ("ForCausalLM", "ForTokenClassification", "Model"), T.ApertusConfig, _APERTUS),
    "apertus-biased-tied": (
        "Apertus",
        ("ForCausalLM",),
        T.ApertusConfig,
        {**_APERTUS, "attention_bias": True, "hidden_act": "gelu", "tie_word_embeddings": True},
    ),
    "nanochat": ("NanoChat", ("ForCausalLM", "Model"), T.NanoChatConfig, _NANOCHAT),
    "nanochat-biased-tied": (
        "NanoChat",
        ("ForCausalLM",),
        T.NanoChatConfig,
        {**_NANOCHAT, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "nemotron": ("Nemotron", ANSWERING, T.NemotronConfig, {**_NEMOTRON, "head_dim": 12}),
    "nemotron-biased-tied": ("Nemotron", ("ForCausalLM",), T.NemotronConfig, {**_NEMOTRON, **_BIASED}),
    "jais2": ("Jais2", ("ForCausalLM", "Model"), T.Jais2Config, GROUPED),
    "jais2-relu-tied": (
        "Jais2",
        ("ForCausalLM",),
        T.Jais2Config,
        {**GROUPED, "attention_bias": False, "hidden_act": "relu", "tie_word_embeddings": True},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("arcee", "apertus", "nanochat")  # RMSNorm and rotary angles

KEYS = {
    "arcee/ArceeForCausalLM": RMS_KEYS,
    "arcee/ArceeForSequenceClassification": PADDING_KEYS,
    "apertus/ApertusForCausalLM": {
        **RMS_KEYS,
        HEAD_KEY: ((2, 1, 12), SHAPES),  # a gain a coordinate
        "hidden_act": ("gelu", SHAPES),  # xielu has tensors
    },
    "apertus-biased-tied/ApertusForCausalLM": {"hidden_act": ("relu", CHANGES)},
    "nanochat/NanoChatForCausalLM": {**RMS_KEYS, "final_logit_softcapping": (1.0, CHANGES)},
    "nemotron/NemotronForCausalLM": {
        **CAUSAL_KEYS,
        HEAD_KEY: ((2, 1, 24), CHANGES),
        "num_key_value_heads": (4, SHAPES),
        "hidden_act": ("gelu", CHANGES),
        "norm_eps": (0.1, CHANGES),
        "rope_parameters": (LINEAR_ROPE | {"partial_rotary_factor": 0.5}, CHANGES),
    },
    "nemotron/NemotronForSequenceClassification": PADDING_KEYS,
    "jais2/Jais2ForCausalLM": {
        **CAUSAL_KEYS,
        HEAD_KEY: ((2, 1, 12), CHANGES),
        "num_key_value_heads": (4, SHAPES),
        "hidden_act": ("gelu", CHANGES),
        "layer_norm_eps": (0.1, CHANGES),
        "rope_parameters": (LINEAR_ROPE, CHANGES),
    },
}
TIED = (
    "arcee-biased-tied/ArceeForCausalLM",
    "apertus-biased-tied/ApertusForCausalLM",
    "nanochat-biased-tied/NanoChatForCausalLM",
    "nemotron-biased-tied/NemotronForCausalLM",
    "jais2-relu-tied/Jais2ForCausalLM",
)
