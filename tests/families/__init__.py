"""Tiny configurations, one module a group of families: all that the generic suite needs to know of a family.

Each module has ``FAMILIES``: name -> (class prefix, heads, config class, options), and ``FLOAT32_PARTS``: the
beginnings of the names of cases where Transformers computes parts in float32 always.

``KEYS`` says of every config key that changes the function at equal shapes what Transformers makes of another value:
case -> key -> (value, effect). "a + b" names keys that change together. ``TIED`` are cases whose head repeats the
embeddings and would, untied, be a tensor of its own.
"""

CHANGES = "changes"  # the tensors stay valid and the function becomes another
KEEPS = "keeps"  # the tensors stay valid and the function stays: the key is read elsewhere, or only in training
SHAPES = "shapes"  # the tensors are no longer those of the config: this model alone is refused, by its headers
UNCOVERED = "uncovered"  # this model alone is refused: the declaration does not cover the value
FAILS = "fails"  # Transformers refuses to build the model, or to run it on a probe, but its headers do not tell

SMALL = {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "vocab_size": 40,
    "max_position_embeddings": 32,
}
ENCODER_HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
ANSWERING_HEADS = (*ENCODER_HEADS, "ForQuestionAnswering")
PAIRED_HEADS = ("ForPreTraining", "ForNextSentencePrediction")
CHOOSING_HEADS = (*ANSWERING_HEADS, "ForMultipleChoice")
CAUSAL_HEADS = (*CHOOSING_HEADS, "ForCausalLM")
DECODER_HEADS = ("ForSequenceClassification", "ForTokenClassification", "Model")
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
LINEAR_ROPES = dict.fromkeys(("full_attention", "sliding_attention"), LINEAR_ROPE)  # of models that have two
PADDING_KEYS = {"pad_token_id": (7, CHANGES)}  # of a decoder that classifies
CAUSAL_KEYS = {"is_causal": (False, CHANGES)}  # of a decoder: every token sees all others


def within(config: str, keys: dict) -> dict:
    """The same keys, of a config within the config."""
    return {" + ".join(f"{config}.{key}" for key in keys_.split(" + ")): row for keys_, row in keys.items()}
