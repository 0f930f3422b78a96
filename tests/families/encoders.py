"""Post-norm encoders."""

import transformers as T

from families import (
    ANSWERING_HEADS,
    CAUSAL_HEADS,
    CAUSAL_KEYS,
    CHANGES,
    CHOOSING_HEADS,
    DECODER_HEADS,
    ENCODER_HEADS,
    FAILS,
    KEEPS,
    PAIRED_HEADS,
    SHAPES,
    SMALL,
    UNCOVERED,
)

_ALBERT = {**SMALL, "embedding_size": 10, "num_hidden_layers": 3}
_MOBILE_BERT = {**SMALL, "embedding_size": 10, "intra_bottleneck_size": 16, "num_feedforward_networks": 3}
_LAYOUT_LM_V3 = {
    **{**SMALL, "pad_token_id": 1, "max_2d_position_embeddings": 16, "coordinate_size": 5, "shape_size": 2},
    **{"rel_pos_bins": 8, "max_rel_pos": 12, "rel_2d_pos_bins": 10, "max_rel_2d_pos": 500},
    **{"input_size": 8, "patch_size": 4, "num_channels": 2},
}
_BIG_BIRD_HEADS = ("ForPreTraining", *ENCODER_HEADS, "ForMultipleChoice")
_ROC_BERT = {
    **SMALL,
    "shape_vocab_size": 13,
    "shape_embed_dim": 6,
    "pronunciation_vocab_size": 11,
    "pronunciation_embed_dim": 5,
}
_BIG_BIRD = {**SMALL, "num_random_blocks": 1}

FAMILIES = {
    "bert": ("Bert", (*PAIRED_HEADS, *CHOOSING_HEADS), T.BertConfig, SMALL),
    "bert-untied-relu": (
        "Bert",
        ("ForMaskedLM",),
        T.BertConfig,
        {**SMALL, "tie_word_embeddings": False, "hidden_act": "relu"},
    ),
    "bert-causal": ("Bert", ("LMHeadModel",), T.BertConfig, {**SMALL, "is_decoder": True}),
    "roberta": ("Roberta", CAUSAL_HEADS, T.RobertaConfig, {**SMALL, "pad_token_id": 1}),
    "xlm-roberta": (
        "XLMRoberta",
        CAUSAL_HEADS,
        T.XLMRobertaConfig,
        {**SMALL, "pad_token_id": 1},
    ),
    "ernie": ("Ernie", (*PAIRED_HEADS, *CAUSAL_HEADS), T.ErnieConfig, {**SMALL, "use_task_id": True}),
    "ernie-without-tasks": ("Ernie", ("ForMaskedLM",), T.ErnieConfig, {**SMALL, "tie_word_embeddings": False}),
    "data2vec-text": ("Data2VecText", CAUSAL_HEADS, T.Data2VecTextConfig, {**SMALL, "pad_token_id": 1}),
    "camembert": ("Camembert", CAUSAL_HEADS, T.CamembertConfig, {**SMALL, "pad_token_id": 1}),
    "mpnet": ("MPNet", CHOOSING_HEADS, T.MPNetConfig, SMALL),
    "mpnet-untied-relu": (
        "MPNet",
        ("ForMaskedLM",),
        T.MPNetConfig,
        {**SMALL, "tie_word_embeddings": False, "hidden_act": "relu"},
    ),
    "mobilebert": ("MobileBert", (*PAIRED_HEADS, *CHOOSING_HEADS), T.MobileBertConfig, _MOBILE_BERT),
    "mobilebert-untied-norms": (
        "MobileBert",
        ("ForMaskedLM",),
        T.MobileBertConfig,
        {**_MOBILE_BERT, "tie_word_embeddings": False, "normalization_type": "layer_norm", "trigram_input": False},
    ),
    "distilbert": (
        "DistilBert",
        CHOOSING_HEADS,
        T.DistilBertConfig,
        {
            "vocab_size": 40,
            "dim": 24,
            "n_heads": 4,
            "n_layers": 2,
            "hidden_dim": 20,
            "max_position_embeddings": 32,
        },
    ),
    "electra": (
        "Electra",
        ("ForPreTraining", *CAUSAL_HEADS),
        T.ElectraConfig,
        {**SMALL, "embedding_size": 10},
    ),
    "electra-untied": (
        "Electra",
        ("ForMaskedLM",),
        T.ElectraConfig,
        {**SMALL, "embedding_size": 10, "tie_word_embeddings": False},
    ),
    "electra-wide-leaky-relu": (
        "Electra",
        ("ForPreTraining", "ForMaskedLM"),
        T.ElectraConfig,
        {**SMALL, "embedding_size": 24, "hidden_act": "leaky_relu"},
    ),
    "rembert": (
        "RemBert",
        CAUSAL_HEADS,
        T.RemBertConfig,
        {**SMALL, "input_embedding_size": 10, "output_embedding_size": 14},
    ),
    "roformer": ("RoFormer", (*ANSWERING_HEADS, "ForCausalLM"), T.RoFormerConfig, {**SMALL, "embedding_size": 10}),
    "roformer-wide": ("RoFormer", ("ForMaskedLM",), T.RoFormerConfig, SMALL),
    "layoutlm": ("LayoutLM", ANSWERING_HEADS, T.LayoutLMConfig, {**SMALL, "max_2d_position_embeddings": 16}),
    "tapas": (
        "Tapas",
        ("ForMaskedLM", "ForSequenceClassification", "Model"),
        T.TapasConfig,
        {**SMALL, "type_vocab_sizes": [3, 7, 9, 2, 5, 6, 4]},
    ),
    "layoutlmv3": ("LayoutLMv3", (*DECODER_HEADS, "ForQuestionAnswering"), T.LayoutLMv3Config, _LAYOUT_LM_V3),
    "layoutlmv3-words": (
        "LayoutLMv3",
        ("ForTokenClassification",),
        T.LayoutLMv3Config,
        {**_LAYOUT_LM_V3, "num_labels": 11, "visual_embed": False, "has_spatial_attention_bias": False},
    ),
    "roc-bert": ("RoCBert", ("ForPreTraining", *CAUSAL_HEADS), T.RoCBertConfig, _ROC_BERT),
    "roc-bert-added-untied": (
        "RoCBert",
        ("ForMaskedLM",),
        T.RoCBertConfig,
        {
            **{**_ROC_BERT, "concat_input": False, "shape_embed_dim": 24, "pronunciation_embed_dim": 24},
            "tie_word_embeddings": False,
        },
    ),
    "big-bird": (
        "BigBird",
        ("ForPreTraining", *ENCODER_HEADS, "ForMultipleChoice"),
        T.BigBirdConfig,
        {**_BIG_BIRD, "block_size": 2},
    ),
    "big-bird-causal": ("BigBird", ("ForCausalLM",), T.BigBirdConfig, {**_BIG_BIRD, "attention_type": "original_full"}),
    "longformer": ("Longformer", CHOOSING_HEADS, T.LongformerConfig, {**SMALL, "attention_window": 4}),
    "bert-generation": (
        "BertGeneration",
        ("Decoder", "Encoder"),
        T.BertGenerationConfig,
        {**SMALL, "is_decoder": True},
    ),
    "dpr": ("DPR", ("Reader", "ContextEncoder", "QuestionEncoder"), T.DPRConfig, SMALL),
    "albert": ("Albert", ("ForPreTraining", *CHOOSING_HEADS), T.AlbertConfig, _ALBERT),
    "albert-groups-untied": (
        "Albert",
        ("ForMaskedLM",),
        T.AlbertConfig,
        {**_ALBERT, "num_hidden_groups": 2, "inner_group_num": 2, "tie_word_embeddings": False},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("longformer",)

_KEYS = {
    "num_attention_heads": (2, CHANGES),
    "hidden_act": ("relu", CHANGES),
    "layer_norm_eps": (0.1, CHANGES),
}
_BERT_KEYS = {
    **_KEYS,
    "position_embedding_type": ("relative_key", KEEPS),  # Transformers 5 has absolute positions only
    "is_decoder": (True, CHANGES),
    "add_cross_attention": (True, UNCOVERED),
}
_ROBERTA_KEYS = {**_BERT_KEYS, "pad_token_id": (3, CHANGES)}
_NO_DECODER_KEYS = {"is_decoder": (True, KEEPS), "add_cross_attention": (True, KEEPS)}
KEYS = {
    "bert/BertForMaskedLM": _BERT_KEYS,
    "bert-causal/BertLMHeadModel": {"is_decoder": (False, CHANGES), **CAUSAL_KEYS},
    "roberta/RobertaForMaskedLM": _ROBERTA_KEYS,
    "xlm-roberta/XLMRobertaForMaskedLM": _ROBERTA_KEYS,
    "camembert/CamembertForMaskedLM": _ROBERTA_KEYS,
    "data2vec-text/Data2VecTextForMaskedLM": _ROBERTA_KEYS,
    "ernie/ErnieForMaskedLM": _BERT_KEYS,
    "mpnet/MPNetForMaskedLM": {**_KEYS, "num_attention_heads": (2, SHAPES)},  # of the position bias
    "mobilebert/MobileBertForMaskedLM": {
        **_KEYS,
        "hidden_act": ("gelu", CHANGES),
        "normalization_type": ("layer_norm", CHANGES),
        "use_bottleneck": (False, UNCOVERED),
    },
    "distilbert/DistilBertForMaskedLM": {
        **_NO_DECODER_KEYS,
        "n_heads": (2, CHANGES),
        "activation": ("relu", CHANGES),
    },
    "electra/ElectraForPreTraining": _BERT_KEYS,
    "electra/ElectraForMultipleChoice": {
        "summary_type": ("mean", CHANGES),
        "summary_activation": ("relu", CHANGES),
        "summary_use_proj": (False, UNCOVERED),
    },
    "rembert/RemBertForMaskedLM": _BERT_KEYS,
    "roformer/RoFormerForMaskedLM": {
        **_BERT_KEYS,
        "num_attention_heads": (2, SHAPES),
        "rotary_value": (True, UNCOVERED),
    },
    "layoutlm/LayoutLMForMaskedLM": _KEYS,
    "tapas/TapasForMaskedLM": {
        **_KEYS,
        "reset_position_index_per_cell": (False, CHANGES),
        "add_cross_attention": (True, UNCOVERED),
    },
    "layoutlmv3/LayoutLMv3ForSequenceClassification": {
        **{**_KEYS, "num_attention_heads": (2, SHAPES)},
        "pad_token_id": (3, CHANGES),
        "max_rel_pos": (30, CHANGES),
        "max_rel_2d_pos": (50, CHANGES),
        "has_relative_attention_bias": (False, UNCOVERED),
    },
    "roc-bert/RoCBertForMaskedLM": {
        **_KEYS,
        "is_decoder": (True, CHANGES),
        "concat_input": (False, UNCOVERED),
        "enable_shape": (False, SHAPES),
        "enable_pronunciation": (False, SHAPES),
    },
    "roc-bert-added-untied/RoCBertForMaskedLM": {
        "enable_shape": (False, CHANGES),
        "enable_pronunciation": (False, CHANGES),
    },
    "big-bird/BigBirdForMaskedLM": {
        **_KEYS,
        "attention_type": ("original_full", CHANGES),
        "block_size": (4, CHANGES),
        "num_random_blocks": (2, CHANGES),
        "rescale_embeddings": (True, CHANGES),
        "use_bias": (False, UNCOVERED),
    },
    "big-bird-causal/BigBirdForCausalLM": {"is_decoder": (True, CHANGES)},
    "longformer/LongformerForMaskedLM": {**_KEYS, "pad_token_id": (3, CHANGES), "attention_window": (8, CHANGES)},
    "longformer/LongformerForQuestionAnswering": {"sep_token_id": (3, KEEPS)},  # a probe leaves no mask to the config
    "bert-generation/BertGenerationDecoder": {
        **_KEYS,
        "is_decoder": (False, CHANGES),
        "is_causal": (False, CHANGES),
        "add_cross_attention": (True, UNCOVERED),
    },
    "dpr/DPRContextEncoder": {"pad_token_id": (7, KEEPS)},
    "dpr/DPRReader": {**_BERT_KEYS, "is_decoder": (True, FAILS), "projection_dim": (8, UNCOVERED)},
    "albert/AlbertForMaskedLM": {**_KEYS, **_NO_DECODER_KEYS, "num_hidden_layers": (5, CHANGES)},
}
TIED = (
    "bert/BertForMaskedLM",
    "bert/BertForPreTraining",
    "roberta/RobertaForMaskedLM",
    "xlm-roberta/XLMRobertaForMaskedLM",
    "camembert/CamembertForMaskedLM",
    "data2vec-text/Data2VecTextForMaskedLM",
    "ernie/ErnieForMaskedLM",
    "mpnet/MPNetForMaskedLM",
    "mobilebert/MobileBertForMaskedLM",
    "distilbert/DistilBertForMaskedLM",
    "electra/ElectraForMaskedLM",
    "roformer/RoFormerForMaskedLM",
    "layoutlm/LayoutLMForMaskedLM",
    "tapas/TapasForMaskedLM",
    "bert-generation/BertGenerationDecoder",
    "big-bird/BigBirdForMaskedLM",
    "roc-bert/RoCBertForMaskedLM",
    "longformer/LongformerForMaskedLM",
    "albert/AlbertForMaskedLM",
    "albert/AlbertForPreTraining",
)
