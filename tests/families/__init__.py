"""Tiny configurations, one module a group of families: all that the generic suite needs to know of a family.

Each module has ``FAMILIES``: name -> (class prefix, heads, config class, options), and ``FLOAT32_PARTS``: the
beginnings of the names of cases where Transformers computes parts in float32 always.
"""

SMALL = {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "vocab_size": 40,
    "max_position_embeddings": 32,
}
ENCODER_HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
DECODER_HEADS = ("ForSequenceClassification", "ForTokenClassification", "Model")
