"""Decoders with LayerNorms."""

import transformers as T

from families import CAUSAL_KEYS, CHANGES, DECODER_HEADS, KEEPS, LINEAR_ROPE, PADDING_KEYS, SHAPES, SMALL, UNCOVERED

_PAD = {**SMALL, "pad_token_id": 0}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_PARTIAL = {"rope_parameters": {**_ROPE, "partial_rotary_factor": 0.7}}  # 4 of 6 coordinates
_FALCON = {"vocab_size": 40, "hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "ffn_hidden_size": 20}
_OPT = {**SMALL, "ffn_dim": 20, "pad_token_id": 1}
_ANSWERING = ("ForCausalLM", *DECODER_HEADS, "ForQuestionAnswering")
_CLASSES = ("Model", "ForSequenceClassification")

FAMILIES = {
    "gptneox": ("GPTNeoX", _ANSWERING, T.GPTNeoXConfig, {**_PAD, **_PARTIAL}),
    # of 6 coordinates of a head 2 are turned
    "gptneox-narrow": ("GPTNeoX", ("ForCausalLM",), T.GPTNeoXConfig, {**_PAD, **_PARTIAL, "head_dim": 4}),
    "gptneox-sequential-tied": (
        "GPTNeoX",
        ("ForCausalLM",),
        T.GPTNeoXConfig,
        {
            **SMALL,
            "rope_parameters": {**_ROPE, "partial_rotary_factor": 1.0},
            "use_parallel_residual": False,
            "attention_bias": False,
            "tie_word_embeddings": True,
        },
    ),
    "gpt1": (
        "OpenAIGPT",
        ("LMHeadModel", "ForSequenceClassification", "Model"),
        T.OpenAIGPTConfig,
        {"vocab_size": 40, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 32, "pad_token_id": 0},
    ),
    "ctrl": (
        "CTRL",
        ("LMHeadModel", "ForSequenceClassification", "Model"),
        T.CTRLConfig,
        {"vocab_size": 40, "n_embd": 24, "n_layer": 2, "n_head": 4, "dff": 20, "n_positions": 32, "pad_token_id": 0},
    ),
    "codegen": (
        "CodeGen",
        ("ForCausalLM", "Model"),
        T.CodeGenConfig,
        {
            "vocab_size": 40,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 8,
            "n_inner": 20,
            "n_positions": 32,
            "rotary_dim": 2,
            "tie_word_embeddings": False,
        },
    ),
    "gptj": (
        "GPTJ",
        ("ForCausalLM", *_CLASSES, "ForQuestionAnswering"),
        T.GPTJConfig,
        {
            "vocab_size": 40,
            "n_embd": 24,
            "n_layer": 2,
            "n_head": 4,
            "n_inner": 20,
            "n_positions": 32,
            "rotary_dim": 4,
            "pad_token_id": 0,
        },
    ),
    "gptneo": (
        "GPTNeo",
        _ANSWERING,
        T.GPTNeoConfig,
        {
            "vocab_size": 40,
            "hidden_size": 24,
            "num_layers": 2,
            "num_heads": 4,
            "intermediate_size": 20,
            "max_position_embeddings": 32,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 3,
            "pad_token_id": 0,
        },
    ),
    "opt": ("OPT", ("ForCausalLM", *_CLASSES, "ForQuestionAnswering"), T.OPTConfig, _OPT),
    "opt-350m": (
        "OPT",
        ("ForCausalLM", *_CLASSES),
        T.OPTConfig,
        {**_OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 10},
    ),
    "opt-galactica": (
        "OPT",
        ("ForCausalLM",),
        T.OPTConfig,
        {**_OPT, "enable_bias": False, "layer_norm_elementwise_affine": False, "activation_function": "gelu"},
    ),
    "biogpt": (
        "BioGpt",
        ("ForCausalLM", *DECODER_HEADS),
        T.BioGptConfig,
        {**_PAD, "max_position_embeddings": 32},
    ),
    "bloom": (
        "Bloom",
        _ANSWERING,
        T.BloomConfig,
        {"vocab_size": 40, "hidden_size": 24, "n_layer": 2, "n_head": 4, "pad_token_id": 0},
    ),
    "falcon-7b": (
        "Falcon",
        _ANSWERING,
        T.FalconConfig,
        {**_FALCON, "tie_word_embeddings": False, "pad_token_id": 0},
    ),
    "falcon-40b": (
        "Falcon",
        ("ForCausalLM",),
        T.FalconConfig,
        {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    ),
    "falcon-11b": (
        "Falcon",
        ("ForCausalLM",),
        T.FalconConfig,
        {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon-rw": (
        "Falcon",
        ("ForCausalLM",),
        T.FalconConfig,
        {**_FALCON, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "phi": ("Phi", ("ForCausalLM", *DECODER_HEADS), T.PhiConfig, {**_PAD, **_PARTIAL}),
    "phi-qk-norm": ("Phi", ("ForCausalLM",), T.PhiConfig, {**SMALL, **_PARTIAL, "qk_layernorm": True}),
    "persimmon": ("Persimmon", ("ForCausalLM", *DECODER_HEADS), T.PersimmonConfig, {**_PAD, **_PARTIAL}),
    "persimmon-plain-tied": (
        "Persimmon",
        ("ForCausalLM",),
        T.PersimmonConfig,
        {**SMALL, **_PARTIAL, "qk_layernorm": False, "tie_word_embeddings": True},
    ),
    "stablelm": (
        "StableLm",
        ("ForCausalLM", *DECODER_HEADS),
        T.StableLmConfig,
        {**_PAD, **_PARTIAL, "num_key_value_heads": 2, "use_qkv_bias": True},
    ),
    "stablelm-12b": (
        "StableLm",
        ("ForCausalLM",),
        T.StableLmConfig,
        {**SMALL, **_PARTIAL, "num_key_value_heads": 2, "use_parallel_residual": True, "qk_layernorm": True},
    ),
    "starcoder2": (
        "Starcoder2",
        ("ForCausalLM", *DECODER_HEADS),
        T.Starcoder2Config,
        {**_PAD, "num_key_value_heads": 2},
    ),
    "starcoder2-plain": (
        "Starcoder2",
        ("ForCausalLM",),
        T.Starcoder2Config,
        # of which its embedding makes nothing
        {**SMALL, **_PARTIAL, "use_bias": False, "hidden_act": "relu", "tie_word_embeddings": False},
    ),
    "olmo1": ("Olmo", ("ForCausalLM", *_CLASSES), T.OlmoConfig, {**_PAD, "num_key_value_heads": 2}),
    "olmo1-biased-tied": (
        "Olmo",
        ("ForCausalLM",),
        T.OlmoConfig,
        {**_PAD, "attention_bias": True, "tie_word_embeddings": True},
    ),
}
# softmax; norms and rotary angles of OLMo
FLOAT32_PARTS: tuple[str, ...] = ("codegen", "gptj", "gptneo/", "bloom", "olmo1")

_OTHER_ROPE = {"rope_parameters": (LINEAR_ROPE | {"partial_rotary_factor": 0.7}, CHANGES)}
_NORM_KEYS = {**CAUSAL_KEYS, "hidden_act": ("relu", CHANGES), "layer_norm_eps": (0.1, CHANGES)}
KEYS = {
    "gptneox/GPTNeoXForCausalLM": {
        **_NORM_KEYS,
        **_OTHER_ROPE,
        "num_attention_heads": (2, CHANGES),
        "head_dim": (4, CHANGES),  # only the rotary embedding reads it
        "use_parallel_residual": (False, CHANGES),
    },
    "gptneox/GPTNeoXForSequenceClassification": PADDING_KEYS,
    # pairs from the whole head, of which some are not turned
    "gptneox/GPTNeoXForTokenClassification": {
        "rope_parameters": ({**_PARTIAL["rope_parameters"], "rope_type": "proportional"}, UNCOVERED),
    },
    "biogpt/BioGptForCausalLM": {
        **CAUSAL_KEYS,
        "num_attention_heads": (2, CHANGES),
        "hidden_act": ("relu", CHANGES),
        "scale_embedding": (False, CHANGES),
    },
    "biogpt/BioGptForSequenceClassification": PADDING_KEYS,
    "gpt1/OpenAIGPTLMHeadModel": {
        "n_head": (2, CHANGES),
        "afn": ("relu", CHANGES),
        "layer_norm_epsilon": (0.1, CHANGES),
    },
    "gpt1/OpenAIGPTForSequenceClassification": PADDING_KEYS,
    "codegen/CodeGenForCausalLM": {
        **CAUSAL_KEYS,
        "n_head": (4, CHANGES),
        "rotary_dim": (4, CHANGES),
        "activation_function": ("relu", CHANGES),
        "layer_norm_epsilon": (0.1, CHANGES),
    },
    "gptj/GPTJForCausalLM": {
        **CAUSAL_KEYS,
        "n_head": (2, CHANGES),
        "rotary_dim": (2, CHANGES),
        "activation_function": ("relu", CHANGES),
        "layer_norm_epsilon": (0.1, CHANGES),
    },
    "gptj/GPTJForSequenceClassification": PADDING_KEYS,
    "gptneo/GPTNeoForCausalLM": {
        "is_causal": (False, KEEPS),  # a mask of its own is added
        "num_heads": (2, CHANGES),
        "activation_function": ("relu", CHANGES),
        "layer_norm_epsilon": (0.1, CHANGES),
        "attention_layers": (["global", "global"], CHANGES),  # made of attention_types where it is missing
        "window_size": (2, CHANGES),
    },
    "gptneo/GPTNeoForSequenceClassification": PADDING_KEYS,
    "opt/OPTForCausalLM": {
        **CAUSAL_KEYS,
        "num_attention_heads": (2, CHANGES),
        "activation_function": ("gelu", CHANGES),
        "do_layer_norm_before": (False, SHAPES),
        "_remove_final_layer_norm": (True, SHAPES),
    },
    "opt/OPTForSequenceClassification": PADDING_KEYS,
    "bloom/BloomForCausalLM": {
        **CAUSAL_KEYS,
        "n_head": (2, CHANGES),
        "layer_norm_epsilon": (0.1, CHANGES),
        "apply_residual_connection_post_layernorm": (True, CHANGES),
    },
    "bloom/BloomForSequenceClassification": PADDING_KEYS,
    "falcon-7b/FalconForCausalLM": {
        **CAUSAL_KEYS,
        "num_attention_heads": (2, SHAPES),
        "activation": ("relu", CHANGES),
        "layer_norm_epsilon": (0.1, CHANGES),
        "alibi": (True, CHANGES),
        "rope_parameters": (LINEAR_ROPE, CHANGES),
    },
    "falcon-7b/FalconForSequenceClassification": PADDING_KEYS,
    "phi/PhiForCausalLM": {
        **_NORM_KEYS,
        **_OTHER_ROPE,
        "num_attention_heads + num_key_value_heads": ((2, 2), CHANGES),
    },
    "phi/PhiForSequenceClassification": PADDING_KEYS,
    "ctrl/CTRLLMHeadModel": {**CAUSAL_KEYS, "n_head": (2, CHANGES), "layer_norm_epsilon": (0.1, CHANGES)},
    "ctrl/CTRLForSequenceClassification": PADDING_KEYS,
    "persimmon/PersimmonForCausalLM": {**_NORM_KEYS, **_OTHER_ROPE, "num_attention_heads": (2, SHAPES)},
    "persimmon/PersimmonForSequenceClassification": PADDING_KEYS,
    "persimmon-plain-tied/PersimmonForCausalLM": {"num_attention_heads": (2, CHANGES)},
    "stablelm/StableLmForCausalLM": {
        **_NORM_KEYS,
        **_OTHER_ROPE,
        "num_attention_heads + num_key_value_heads": ((2, 1), CHANGES),
    },
    "stablelm/StableLmForSequenceClassification": PADDING_KEYS,
    "starcoder2/Starcoder2ForCausalLM": {
        **{key: _NORM_KEYS[key] for key in ("is_causal", "hidden_act")},
        "num_attention_heads + num_key_value_heads": ((2, 1), CHANGES),
        "norm_epsilon": (0.1, CHANGES),
        "rope_parameters": (LINEAR_ROPE, CHANGES),
        "sliding_window": (3, CHANGES),
    },
    "starcoder2/Starcoder2ForSequenceClassification": PADDING_KEYS,
    "olmo1/OlmoForCausalLM": {
        **CAUSAL_KEYS,
        "num_attention_heads + num_key_value_heads": ((2, 1), CHANGES),
        "hidden_act": ("gelu", CHANGES),
        "rope_parameters": (LINEAR_ROPE, CHANGES),
        "clip_qkv": (8.0, UNCOVERED),
    },
    "olmo1/OlmoForSequenceClassification": PADDING_KEYS,
}
TIED = (
    "gpt1/OpenAIGPTLMHeadModel",
    "ctrl/CTRLLMHeadModel",
    "gptneox-sequential-tied/GPTNeoXForCausalLM",
    "opt/OPTForCausalLM",
    "opt-350m/OPTForCausalLM",
    "biogpt/BioGptForCausalLM",
    "bloom/BloomForCausalLM",
    "starcoder2/Starcoder2ForCausalLM",
    "persimmon-plain-tied/PersimmonForCausalLM",
    "gptneo/GPTNeoForCausalLM",
    "falcon-rw/FalconForCausalLM",
    "olmo1-biased-tied/OlmoForCausalLM",
)
