"""GPT-2 and Llama."""

import transformers as T

from families import DECODER_HEADS, SMALL

_GPT2 = {"vocab_size": 40, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_inner": 20, "n_positions": 32}

FAMILIES = {
    "gpt2": ("GPT2", ("LMHeadModel", *DECODER_HEADS), T.GPT2Config, {**_GPT2, "pad_token_id": 0}),
    "gpt2-untied": ("GPT2", ("LMHeadModel",), T.GPT2Config, {**_GPT2, "tie_word_embeddings": False}),
    "llama-gqa": (
        "Llama",
        ("ForCausalLM", *DECODER_HEADS),
        T.LlamaConfig,
        {**SMALL, "num_key_value_heads": 2, "pad_token_id": 0},
    ),
    "llama-mha-biased": (
        "Llama",
        ("ForCausalLM",),
        T.LlamaConfig,
        {**SMALL, "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    ),
    "llama-mqa-tied": (
        "Llama",
        ("ForCausalLM",),
        T.LlamaConfig,
        {**SMALL, "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("llama",)  # RMSNorm and rotary angles
