"""ModernBERT and its decoder."""

import transformers as T

from families import CHANGES, CHOOSING_HEADS, LINEAR_ROPES, PADDING_KEYS, SMALL

_MODERNBERT = {
    **SMALL,
    "local_attention": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "cls_token_id": 1,
    "eos_token_id": 2,
    "sep_token_id": 2,
}
_BIASED = {
    "attention_bias": True,
    "mlp_bias": True,
    "norm_bias": True,
    "classifier_bias": True,
    "tie_word_embeddings": False,
}
_CAUSAL_HEADS = ("ForCausalLM", "Model", "ForSequenceClassification")

FAMILIES = {
    "modernbert": ("ModernBert", CHOOSING_HEADS, T.ModernBertConfig, _MODERNBERT),
    "modernbert-offsets": ("ModernBert", ("ForMaskedLM",), T.ModernBertConfig, {**_MODERNBERT, "norm_bias": True}),
    "modernbert-biased": (
        "ModernBert",
        ("ForMaskedLM", "ForSequenceClassification"),
        T.ModernBertConfig,
        {**_MODERNBERT, **_BIASED, "classifier_pooling": "mean"},
    ),
    "modernbert-decoder": ("ModernBertDecoder", _CAUSAL_HEADS, T.ModernBertDecoderConfig, _MODERNBERT),
    "modernbert-decoder-biased": (
        "ModernBertDecoder",
        ("ForCausalLM", "ForSequenceClassification"),
        T.ModernBertDecoderConfig,
        {**_MODERNBERT, **_BIASED},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("modernbert",)  # rotary angles
_KEYS = {
    "num_attention_heads": (2, CHANGES),
    "hidden_activation": ("relu", CHANGES),
    "norm_eps": (0.1, CHANGES),
    "layer_types": (["full_attention"] * 2, CHANGES),
    "rope_parameters": (LINEAR_ROPES, CHANGES),
    "classifier_activation": ("relu", CHANGES),
}
KEYS = {
    "modernbert/ModernBertForMaskedLM": {**_KEYS, "local_attention": (12, CHANGES)},
    "modernbert/ModernBertForSequenceClassification": {"classifier_pooling": ("mean", CHANGES)},
    "modernbert-decoder/ModernBertDecoderForCausalLM": {**_KEYS, "sliding_window": (2, CHANGES)},
    "modernbert-decoder/ModernBertDecoderForSequenceClassification": PADDING_KEYS,
}
TIED = ("modernbert/ModernBertForMaskedLM", "modernbert-decoder/ModernBertDecoderForCausalLM")
