"""DiffLlama."""

import transformers as T

from families import PADDING_KEYS, SHAPES, UNCOVERED
from families.rmsnorm_decoders import ANSWERING, GROUPED, HEAD_KEY, RMS_KEYS

_DIFF = {**GROUPED, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 6}

FAMILIES = {
    "diffllama": ("DiffLlama", ANSWERING, T.DiffLlamaConfig, _DIFF),
    "diffllama-biased-tied": (
        "DiffLlama",
        ("ForCausalLM",),
        T.DiffLlamaConfig,
        {**_DIFF, "attention_bias": True, "tie_word_embeddings": True},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("diffllama",)  # RMSNorm, rotary angles, how much is subtracted

KEYS = {
    "diffllama/DiffLlamaForCausalLM": {
        **{key: row for key, row in RMS_KEYS.items() if key not in (HEAD_KEY, "num_key_value_heads")},
        HEAD_KEY: ((4, 2, 12), SHAPES),
        "num_key_value_heads": (1, UNCOVERED),
    },
    "diffllama/DiffLlamaForSequenceClassification": PADDING_KEYS,
}
TIED = ("diffllama-biased-tied/DiffLlamaForCausalLM",)
