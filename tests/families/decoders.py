"""GPT-2, GPT-BigCode and Llama."""

import transformers as T

from families import CAUSAL_KEYS, CHANGES, DECODER_HEADS, LINEAR_ROPE, PADDING_KEYS, SHAPES, SMALL, UNCOVERED

_GPT2 = {"vocab_size": 40, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_inner": 20, "n_positions": 32}
_MPT = {"vocab_size": 40, "d_model": 24, "n_layers": 2, "n_heads": 4, "max_seq_len": 32, "pad_token_id": 0}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

FAMILIES = {
    "gpt2": (
        "GPT2",
        ("LMHeadModel", *DECODER_HEADS, "ForQuestionAnswering"),
        T.GPT2Config,
        {**_GPT2, "pad_token_id": 0},
    ),
    "gpt2-untied": ("GPT2", ("LMHeadModel",), T.GPT2Config, {**_GPT2, "tie_word_embeddings": False}),
    "gptbigcode": ("GPTBigCode", ("ForCausalLM", *DECODER_HEADS), T.GPTBigCodeConfig, {**_GPT2, "pad_token_id": 0}),
    "gptbigcode-apart-untied": (
        "GPTBigCode",
        ("ForCausalLM",),
        T.GPTBigCodeConfig,
        {**_GPT2, "multi_query": False, "tie_word_embeddings": False},
    ),
    "mpt": ("Mpt", ("ForCausalLM", *DECODER_HEADS, "ForQuestionAnswering"), T.MptConfig, _MPT),
    "mpt-untied": ("Mpt", ("ForCausalLM",), T.MptConfig, {**_MPT, "n_heads": 3, "tie_word_embeddings": False}),
    "llama-gqa": (
        "Llama",
        ("ForCausalLM", *DECODER_HEADS, "ForQuestionAnswering"),
        T.LlamaConfig,
        {**SMALL, "num_key_value_heads": 2, "pad_token_id": 0},
    ),
    "llama-mha-biased": (
        "Llama",
        ("ForCausalLM",),
        T.LlamaConfig,
        {**SMALL, "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    ),
    "llama3-scaled": (
        "Llama",
        ("ForCausalLM",),
        T.LlamaConfig,
        {**SMALL, "num_key_value_heads": 2, "rope_parameters": _LLAMA3_ROPE},
    ),
    "llama-mqa-tied": (
        "Llama",
        ("ForCausalLM",),
        T.LlamaConfig,
        {**SMALL, "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("llama",)  # RMSNorm and rotary angles
KEYS = {
    "gpt2/GPT2LMHeadModel": {
        **CAUSAL_KEYS,
        "n_head": (2, CHANGES),
        "activation_function": ("relu", CHANGES),
        "layer_norm_epsilon": (0.1, CHANGES),
        "scale_attn_weights": (False, CHANGES),
        "scale_attn_by_inverse_layer_idx": (True, CHANGES),
        "add_cross_attention": (True, UNCOVERED),
    },
    "gpt2/GPT2ForSequenceClassification": PADDING_KEYS,
    "gptbigcode/GPTBigCodeForCausalLM": {
        **CAUSAL_KEYS,
        "n_head": (2, SHAPES),
        "activation_function": ("relu", CHANGES),
        "layer_norm_epsilon": (0.1, CHANGES),
        "scale_attn_weights": (False, CHANGES),
    },
    "gptbigcode-apart-untied/GPTBigCodeForCausalLM": {
        "n_head": (2, CHANGES),
        "add_cross_attention": (True, UNCOVERED),
    },
    "gptbigcode/GPTBigCodeForSequenceClassification": PADDING_KEYS,
    "mpt/MptForCausalLM": {
        **CAUSAL_KEYS,
        "n_heads": (2, CHANGES),
        "layer_norm_epsilon": (0.1, CHANGES),
        "attn_config.softmax_scale": (1.0, CHANGES),
        "attn_config.clip_qkv": (6.0, UNCOVERED),
    },
    "mpt/MptForSequenceClassification": PADDING_KEYS,
    "llama-gqa/LlamaForCausalLM": {
        **CAUSAL_KEYS,
        # alone, the number of key-value heads would change the shapes
        "num_attention_heads + num_key_value_heads + head_dim": ((2, 1, 12), CHANGES),
        "num_key_value_heads": (4, SHAPES),
        "hidden_act": ("gelu", CHANGES),
        "rms_norm_eps": (0.1, CHANGES),
        "rope_theta + rope_parameters": ((500.0, None), CHANGES),
        "rope_parameters": (LINEAR_ROPE, CHANGES),
        "rope_scaling + rope_parameters": (({"type": "linear", "factor": 4.0}, None), CHANGES),
    },
    "llama-gqa/LlamaForSequenceClassification": PADDING_KEYS,
}
TIED = (
    "mpt/MptForCausalLM",
    "gpt2/GPT2LMHeadModel",
    "gptbigcode/GPTBigCodeForCausalLM",
    "llama-mqa-tied/LlamaForCausalLM",
)
