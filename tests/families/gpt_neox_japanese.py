"""GPT-NeoX-Japanese."""

import transformers as T

from families import CAUSAL_KEYS, CHANGES, LINEAR_ROPE, SMALL, UNCOVERED

_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.7}  # 4 of 6 coordinates
_JAPANESE = {key: value for key, value in SMALL.items() if key != "intermediate_size"} | {
    "intermediate_multiple_size": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

FAMILIES = {
    "gptneox-japanese": (
        "GPTNeoXJapanese",
        ("ForCausalLM", "Model"),
        T.GPTNeoXJapaneseConfig,
        {**_JAPANESE, "rope_parameters": _ROPE},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ()

KEYS = {
    "gptneox-japanese/GPTNeoXJapaneseForCausalLM": {
        **CAUSAL_KEYS,
        "num_attention_heads": (2, CHANGES),
        "hidden_act": ("relu", CHANGES),
        "layer_norm_eps": (0.1, CHANGES),
        "rope_parameters": (LINEAR_ROPE | {"partial_rotary_factor": 0.7}, CHANGES),
        "head_dim": (4, UNCOVERED),
    },
}
TIED = ("gptneox-japanese/GPTNeoXJapaneseForCausalLM",)
