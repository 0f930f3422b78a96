"""T5Gemma."""

import transformers as T

from families import CHANGES, KEEPS, UNCOVERED, within
from families.rmsnorm_decoders import GEMMA2, GEMMA2_KEYS

_DECODER = {**GEMMA2, "hidden_size": 20, "intermediate_size": 12}
_T5GEMMA = {"encoder": GEMMA2, "decoder": _DECODER, "vocab_size": 40}
_HEADS = ("ForConditionalGeneration", "Model", "ForSequenceClassification", "ForTokenClassification")

FAMILIES = {
    "t5gemma": ("T5Gemma", _HEADS, T.T5GemmaConfig, {**_T5GEMMA, "num_labels": 3}),
    "t5gemma-encoder": ("T5Gemma", ("EncoderModel",), T.T5GemmaConfig, {**_T5GEMMA, "is_encoder_decoder": False}),
}
FLOAT32_PARTS: tuple[str, ...] = ("t5gemma",)  # RMSNorm and rotary angles

_STACK = {key: row for key, row in GEMMA2_KEYS.items() if key != "use_bidirectional_attention"}
_KEYS = within("decoder", _STACK) | within("encoder", {key: row for key, row in _STACK.items() if key != "is_causal"})
_SHIFTED = {"decoder.pad_token_id": (5, CHANGES), "decoder.bos_token_id": (7, CHANGES)}
KEYS = {
    "t5gemma/T5GemmaForConditionalGeneration": {
        **_KEYS,
        "encoder.final_logit_softcapping": (1.0, KEEPS),  # of a head
        "is_encoder_decoder": (False, UNCOVERED),
    },
    "t5gemma-encoder/T5GemmaEncoderModel": {"is_encoder_decoder": (True, UNCOVERED)},
    "t5gemma/T5GemmaForSequenceClassification": {**_SHIFTED, "pad_token_id": (7, CHANGES)},
    "t5gemma/T5GemmaForTokenClassification": {
        **_SHIFTED,
        "decoder.bos_token_id": (7, KEEPS),  # where the decoder has tokens of its own, as here
    },
}
TIED = ("t5gemma/T5GemmaForConditionalGeneration",)
