"""Cohere's decoders."""

import transformers as T

from families import CHANGES
from families.rmsnorm_decoders import GROUPED, RMS_KEYS, WINDOW_KEYS

_COMMAND = {**GROUPED, "logit_scale": 0.5}
_COMMAND2 = {**_COMMAND, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
_UNTIED = {"attention_bias": True, "tie_word_embeddings": False}

FAMILIES = {
    "cohere": ("Cohere", ("ForCausalLM", "Model"), T.CohereConfig, _COMMAND),
    "cohere-qk-norm": ("Cohere", ("ForCausalLM",), T.CohereConfig, {**_COMMAND, "use_qk_norm": True}),
    "cohere-biased-untied": ("Cohere", ("ForCausalLM",), T.CohereConfig, {**_COMMAND, **_UNTIED}),
    "cohere2": ("Cohere2", ("ForCausalLM", "Model"), T.Cohere2Config, _COMMAND2),
    "cohere2-biased-untied": ("Cohere2", ("ForCausalLM",), T.Cohere2Config, {**_COMMAND2, **_UNTIED}),
}
FLOAT32_PARTS: tuple[str, ...] = ("cohere",)  # norms and rotary angles

_KEYS = {key: row for key, row in RMS_KEYS.items() if key != "rms_norm_eps"} | {
    "layer_norm_eps": (0.1, CHANGES),
    "logit_scale": (1.0, CHANGES),
}
KEYS = {
    "cohere/CohereForCausalLM": _KEYS,
    "cohere2/Cohere2ForCausalLM": _KEYS | WINDOW_KEYS | {"layer_types": (["full_attention"] * 2, CHANGES)},
}
TIED = ("cohere/CohereForCausalLM", "cohere2/Cohere2ForCausalLM")
