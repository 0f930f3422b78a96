"""T5Gemma 1 and 2."""

import transformers as T

from families import CHANGES, FAILS, KEEPS, SHAPES, UNCOVERED, within
from families.qk_norm_decoders import GEMMA3, GEMMA3_KEYS
from families.rmsnorm_decoders import GEMMA2, GEMMA2_KEYS
from families.vision_language import GEMMA3_PICTURES

_DECODER = {**GEMMA2, "hidden_size": 20, "intermediate_size": 12}
_T5GEMMA = {"encoder": GEMMA2, "decoder": _DECODER, "vocab_size": 40}
_T5GEMMA2 = {
    "encoder": {**GEMMA3_PICTURES, "eoi_token_index": 9},
    "decoder": GEMMA3,
    "image_token_index": 7,
}
_HEADS = ("ForConditionalGeneration", "Model", "ForSequenceClassification", "ForTokenClassification")

FAMILIES = {
    "t5gemma": ("T5Gemma", _HEADS, T.T5GemmaConfig, {**_T5GEMMA, "num_labels": 3}),
    "t5gemma-encoder": ("T5Gemma", ("EncoderModel",), T.T5GemmaConfig, {**_T5GEMMA, "is_encoder_decoder": False}),
    "t5gemma2": ("T5Gemma2", _HEADS, T.T5Gemma2Config, {**_T5GEMMA2, "num_labels": 3}),
    "t5gemma2-biased-untied": (
        "T5Gemma2",
        ("ForConditionalGeneration",),
        T.T5Gemma2Config,
        {**_T5GEMMA2, "decoder": {**GEMMA3, "attention_bias": True}, "tie_word_embeddings": False},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("t5gemma",)  # RMSNorm and rotary angles

_STACK = {key: row for key, row in GEMMA2_KEYS.items() if key != "use_bidirectional_attention"}
_KEYS = within("decoder", _STACK) | within("encoder", {key: row for key, row in _STACK.items() if key != "is_causal"})
_STACK2 = {key: row for key, row in GEMMA3_KEYS.items() if key != "use_bidirectional_attention"}
_TOWER = {
    "num_attention_heads": (4, CHANGES),
    "hidden_act": ("relu", CHANGES),
    "layer_norm_eps": (0.1, CHANGES),
    "image_size": (24, SHAPES),
    "patch_size": (2, SHAPES),
}
_SHIFTED = {"decoder.pad_token_id": (5, CHANGES), "decoder.bos_token_id": (7, CHANGES)}
KEYS = {
    "t5gemma/T5GemmaForConditionalGeneration": {
        **_KEYS,
        "encoder.final_logit_softcapping": (1.0, KEEPS),  # of a head
        "encoder.pad_token_id": (5, KEEPS),  # read where no mask is given
        "is_encoder_decoder": (False, UNCOVERED),
    },
    "t5gemma-encoder/T5GemmaEncoderModel": {"is_encoder_decoder": (True, UNCOVERED)},
    "t5gemma/T5GemmaForSequenceClassification": {**_SHIFTED, "pad_token_id": (7, CHANGES)},
    "t5gemma/T5GemmaForTokenClassification": {
        **_SHIFTED,
        "decoder.bos_token_id": (7, KEEPS),  # where the decoder has tokens of its own, as here
    },
    "t5gemma2/T5Gemma2ForConditionalGeneration": {
        **within("decoder", _STACK2),
        **within("encoder.text_config", {key: row for key, row in _STACK2.items() if key != "is_causal"}),
        "encoder.text_config.final_logit_softcapping": (1.0, KEEPS),  # of a head
        **within("encoder.vision_config", _TOWER),
        "encoder.mm_tokens_per_image": (1, FAILS),
        "encoder.eoi_token_index": (10, CHANGES),
        "image_token_index": (5, FAILS),
    },
    "t5gemma2/T5Gemma2ForSequenceClassification": {
        "decoder.bos_token_id": (7, CHANGES),
        "pad_token_id": (7, CHANGES),
    },
    "t5gemma2/T5Gemma2ForTokenClassification": {"decoder.bos_token_id": (7, KEEPS)},
}
TIED = ("t5gemma/T5GemmaForConditionalGeneration", "t5gemma2/T5Gemma2ForConditionalGeneration")
