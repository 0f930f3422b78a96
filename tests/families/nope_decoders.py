"""Decoders some of whose layers have no rotary embedding."""

import transformers as T

from families import CHANGES, KEEPS, PADDING_KEYS
from families.rmsnorm_decoders import ANSWERING, GROUPED, RMS_KEYS, WINDOW_KEYS

_SLIDING = {**GROUPED, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
_SMOL = {**_SLIDING, "no_rope_layers": [1, 0], "use_sliding_window": True}
_COMMAND = {**GROUPED, "logit_scale": 0.5}
_COMMAND2 = {**_SLIDING, "logit_scale": 0.5}
_UNTIED = {"attention_bias": True, "tie_word_embeddings": False}

FAMILIES = {
    "smollm3": ("SmolLM3", ANSWERING, T.SmolLM3Config, _SMOL),
    "smollm3-biased": ("SmolLM3", ("ForCausalLM",), T.SmolLM3Config, {**_SMOL, **_UNTIED, "mlp_bias": True}),
    "smollm3-turned": ("SmolLM3", ("ForCausalLM",), T.SmolLM3Config, {**_SMOL, "no_rope_layers": [1, 1]}),
    "cohere": ("Cohere", ("ForCausalLM", "Model"), T.CohereConfig, _COMMAND),
    "cohere-qk-norm": ("Cohere", ("ForCausalLM",), T.CohereConfig, {**_COMMAND, "use_qk_norm": True}),
    "cohere-biased-untied": ("Cohere", ("ForCausalLM",), T.CohereConfig, {**_COMMAND, **_UNTIED}),
    "cohere2": ("Cohere2", ("ForCausalLM", "Model"), T.Cohere2Config, _COMMAND2),
    "cohere2-biased-untied": ("Cohere2", ("ForCausalLM",), T.Cohere2Config, {**_COMMAND2, **_UNTIED}),
}
FLOAT32_PARTS: tuple[str, ...] = ("smollm3", "cohere")  # norms and rotary angles

_COMMAND_KEYS = {key: row for key, row in RMS_KEYS.items() if key not in ("rms_norm_eps",)} | {
    "layer_norm_eps": (0.1, CHANGES),
    "logit_scale": (1.0, CHANGES),
}
KEYS = {
    "smollm3/SmolLM3ForCausalLM": {
        **RMS_KEYS,
        **WINDOW_KEYS,
        "layer_types": (["full_attention"] * 2, CHANGES),
        "use_sliding_window": (False, KEEPS),  # read where a kernel makes its own mask
        "no_rope_layers": ([1, 1], CHANGES),
    },
    "smollm3/SmolLM3ForSequenceClassification": PADDING_KEYS,
    "cohere/CohereForCausalLM": _COMMAND_KEYS,
    "cohere2/Cohere2ForCausalLM": {
        **_COMMAND_KEYS,
        **WINDOW_KEYS,
        "layer_types": (["full_attention"] * 2, CHANGES),
    },
}
TIED = ("smollm3/SmolLM3ForCausalLM", "cohere/CohereForCausalLM", "cohere2/Cohere2ForCausalLM")
