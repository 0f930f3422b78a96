"""Decoders with RMSNorm whose rotary embedding turns neighbours."""

import transformers as T

from families import CHANGES, LINEAR_ROPE, PADDING_KEYS, UNCOVERED
from families.rmsnorm_decoders import GROUPED, HEAD_KEY, HEADS, RMS_KEYS

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
# 6 of 10 coordinates of a head: Transformers rounds 5 up to whole pairs
_GLM = {**GROUPED, "head_dim": 10, "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5}}
_WHOLE = {**_GLM, "rope_parameters": {**_ROPE, "partial_rotary_factor": 1.0}, "attention_bias": False}
_ERNIE = {**GROUPED, "head_dim": 8}
_HELIUM = {**GROUPED, "head_dim": 6}

FAMILIES = {
    "glm": ("Glm", HEADS, T.GlmConfig, _GLM),
    "glm-whole-tied": ("Glm", ("ForCausalLM",), T.GlmConfig, {**_WHOLE, "tie_word_embeddings": True}),
    "glm4": ("Glm4", HEADS, T.Glm4Config, _GLM),
    "glm4-whole-tied": ("Glm4", ("ForCausalLM",), T.Glm4Config, {**_WHOLE, "tie_word_embeddings": True}),
    "ernie4_5": ("Ernie4_5", ("ForCausalLM", "Model"), T.Ernie4_5Config, {**_ERNIE, "tie_word_embeddings": False}),
    "ernie4_5-biased-tied": ("Ernie4_5", ("ForCausalLM",), T.Ernie4_5Config, {**_ERNIE, "use_bias": True}),
    "helium": ("Helium", HEADS, T.HeliumConfig, _HELIUM),
    "helium-biased-tied": (
        "Helium",
        ("ForCausalLM",),
        T.HeliumConfig,
        {**_HELIUM, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("glm", "ernie4_5", "helium")  # RMSNorm and rotary angles

_GLM_KEYS = {**RMS_KEYS, HEAD_KEY: ((2, 1, 20), CHANGES)}
_GLM_KEYS["rope_parameters"] = (LINEAR_ROPE | {"partial_rotary_factor": 0.5}, CHANGES)
KEYS = {
    "glm/GlmForCausalLM": _GLM_KEYS,
    "glm/GlmForSequenceClassification": PADDING_KEYS,
    "glm-whole-tied/GlmForCausalLM": {"rope_parameters": ({**_ROPE, "partial_rotary_factor": 0.0}, UNCOVERED)},
    "glm4/Glm4ForCausalLM": _GLM_KEYS,
    "glm4/Glm4ForSequenceClassification": PADDING_KEYS,
    "ernie4_5/Ernie4_5ForCausalLM": {**RMS_KEYS, HEAD_KEY: ((2, 1, 16), CHANGES)},
    "helium/HeliumForCausalLM": RMS_KEYS,
    "helium/HeliumForSequenceClassification": PADDING_KEYS,
}
TIED = (
    "glm-whole-tied/GlmForCausalLM",
    "glm4-whole-tied/Glm4ForCausalLM",
    "ernie4_5-biased-tied/Ernie4_5ForCausalLM",
    "helium-biased-tied/HeliumForCausalLM",
)
