"""Pre-norm encoders with the heads of BERT and RoBERTa, and an encoder of Llama's layers."""

import transformers as T

from families import CAUSAL_HEADS, CHANGES, ENCODER_HEADS, KEEPS, LINEAR_ROPE, PAIRED_HEADS, SHAPES, SMALL, UNCOVERED
from families.rmsnorm_decoders import GROUPED, HEAD_KEY

_ROBERTA = {**SMALL, "pad_token_id": 1}
_UNTIED = {"tie_word_embeddings": False, "hidden_act": "relu"}
_ESM = {**_ROBERTA, "mask_token_id": 3, "eos_token_id": 2}
_EURO = {**GROUPED, "mask_token_id": 3}

FAMILIES = {
    "megatron-bert": ("MegatronBert", (*PAIRED_HEADS, *CAUSAL_HEADS), T.MegatronBertConfig, SMALL),
    "megatron-bert-untied-relu": ("MegatronBert", ("ForMaskedLM",), T.MegatronBertConfig, {**SMALL, **_UNTIED}),
    "xlm-roberta-xl": ("XLMRobertaXL", CAUSAL_HEADS, T.XLMRobertaXLConfig, _ROBERTA),
    "roberta-prelayernorm": ("RobertaPreLayerNorm", CAUSAL_HEADS, T.RobertaPreLayerNormConfig, _ROBERTA),
    "esm": ("Esm", ENCODER_HEADS, T.EsmConfig, {**_ESM, "position_embedding_type": "rotary", "token_dropout": True}),
    "esm-untied": (
        "Esm",
        ("ForMaskedLM",),
        T.EsmConfig,
        {**_ESM, "position_embedding_type": "rotary", "tie_word_embeddings": False},
    ),
    "esm-1b": ("Esm", ("ForMaskedLM",), T.EsmConfig, {**_ESM, "emb_layer_norm_before": True}),
    "eurobert": ("EuroBert", ENCODER_HEADS, T.EuroBertConfig, _EURO),
    "eurobert-biased-tied": (
        "EuroBert",
        ("ForMaskedLM", "ForSequenceClassification"),
        T.EuroBertConfig,
        {
            **_EURO,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "classifier_pooling": "mean",
        },
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("eurobert", "esm/", "esm-untied")

_BERT_KEYS = {
    "num_attention_heads": (2, CHANGES),
    "hidden_act": ("relu", CHANGES),
    "layer_norm_eps": (0.1, CHANGES),
    "is_decoder": (True, CHANGES),
    "add_cross_attention": (True, UNCOVERED),
}
_ROBERTA_KEYS = {**_BERT_KEYS, "pad_token_id": (3, CHANGES)}
KEYS = {
    "megatron-bert/MegatronBertForMaskedLM": _BERT_KEYS,
    "xlm-roberta-xl/XLMRobertaXLForMaskedLM": _ROBERTA_KEYS,
    "roberta-prelayernorm/RobertaPreLayerNormForMaskedLM": _ROBERTA_KEYS,
    "esm/EsmForMaskedLM": {
        "num_attention_heads": (2, SHAPES),  # of the head for contacts
        "layer_norm_eps": (0.1, CHANGES),
        "is_decoder": (True, CHANGES),
        "add_cross_attention": (True, UNCOVERED),
        "rope_theta": (10.0, KEEPS),  # the file has the frequencies
        "token_dropout": (False, CHANGES),
        "mask_token_id": (5, CHANGES),
        "position_embedding_type": ("relative_key", UNCOVERED),
    },
    "esm-1b/EsmForMaskedLM": {"pad_token_id": (3, CHANGES)},
    "eurobert/EuroBertForMaskedLM": {
        HEAD_KEY: ((2, 1, 12), CHANGES),
        "hidden_act": ("gelu", CHANGES),
        "rms_norm_eps": (0.1, CHANGES),
        "rope_parameters": (LINEAR_ROPE, CHANGES),
        "is_causal": (True, KEEPS),  # its attention never is
    },
    "eurobert/EuroBertForSequenceClassification": {"classifier_pooling": ("bos", CHANGES)},
}
TIED: tuple[str, ...] = (
    "megatron-bert/MegatronBertForMaskedLM",
    "megatron-bert/MegatronBertForPreTraining",
    "xlm-roberta-xl/XLMRobertaXLForMaskedLM",
    "roberta-prelayernorm/RobertaPreLayerNormForMaskedLM",
    "esm/EsmForMaskedLM",
    "esm-1b/EsmForMaskedLM",
    "eurobert-biased-tied/EuroBertForMaskedLM",
)
