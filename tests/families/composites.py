"""Models made of two others: an encoder of texts or of pictures, and a decoder that looks at it."""

import transformers as T

from families import CAUSAL_KEYS, CHANGES, KEEPS, SHAPES, SMALL, UNCOVERED, within
from families.vision import LAYER_KEYS, PICTURE_KEYS

_PICTURES = {
    "model_type": "vit",
    "hidden_size": 20,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 16,
    "image_size": 8,
    "patch_size": 4,
}
_DONUT = {
    "model_type": "donut-swin",
    "image_size": [8, 12],
    "patch_size": 2,
    "embed_dim": 12,
    "depths": [2, 1],
    "num_heads": [3, 4],
    "window_size": 2,
    "mlp_ratio": 1.0,
}
_WRITES = {"is_decoder": True, "add_cross_attention": True}
_BERT = {**SMALL, "model_type": "bert", "intermediate_size": 18}
_GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 40,
    "n_embd": 24,
    "n_head": 4,
    "n_layer": 3,
    "n_inner": 18,
    "n_positions": 32,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "add_cross_attention": True,
}
_BART = {
    "vocab_size": 40,
    "d_model": 24,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 18,
    "max_position_embeddings": 32,
}
_TROCR = {**_BART, "model_type": "trocr", "cross_attention_hidden_size": 20}
_SINES = {
    **_BART,
    "model_type": "trocr",
    "use_learned_position_embeddings": False,
    "layernorm_embedding": False,
    "scale_embedding": True,
    "activation_function": "relu",
    "tie_word_embeddings": False,
}
_ROBERTA = {**_BERT, "model_type": "roberta"}


def _texts(encoder, decoder):
    config = {"encoder": encoder, "decoder": decoder, "decoder_start_token_id": 3, "pad_token_id": 1}
    return "EncoderDecoder", ("Model",), T.EncoderDecoderConfig, config


def _pictures(encoder, decoder):
    config = {"encoder": encoder, "decoder": decoder, "decoder_start_token_id": 3, "pad_token_id": 1}
    return "VisionEncoderDecoder", ("Model",), T.VisionEncoderDecoderConfig, config


def _both(vision, text):
    config = {"vision_config": vision, "text_config": text, "projection_dim": 14}
    return "VisionTextDualEncoder", ("Model",), T.VisionTextDualEncoderConfig, config


FAMILIES = {
    "bert2bert": _texts({**_BERT, "vocab_size": 37}, {**_BERT, **_WRITES, "intermediate_size": 16}),
    "roberta2gpt2": _texts({**_ROBERTA, "hidden_size": 20}, _GPT2),
    "trocr": _pictures({**_PICTURES, "qkv_bias": False}, _TROCR),
    "trocr-sines-untied": _pictures({**_PICTURES, "model_type": "deit"}, _SINES),
    "vit2gpt2": _pictures({**_PICTURES, "hidden_size": 24}, _GPT2),
    "vit-bert": _both({**_PICTURES, "pooler_act": "relu"}, _BERT),
    "clip-roberta": _both({**_PICTURES, "model_type": "clip_vision_model"}, _ROBERTA),
    "donut": _pictures(_DONUT, {**_BART, "model_type": "mbart"}),
}
FLOAT32_PARTS = ()

_BERT_KEYS = {
    "num_attention_heads": (2, CHANGES),
    "hidden_act": ("relu", CHANGES),
    "layer_norm_eps": (0.1, CHANGES),
    "position_embedding_type": ("relative_key", KEEPS),
}
_GPT2_KEYS = {
    **CAUSAL_KEYS,
    "n_head": (2, CHANGES),
    "activation_function": ("relu", CHANGES),
    "layer_norm_epsilon": (0.1, CHANGES),
    "scale_attn_weights": (False, CHANGES),
    "scale_attn_by_inverse_layer_idx": (True, CHANGES),
    "add_cross_attention": (False, UNCOVERED),
}
_BART_KEYS = {
    **CAUSAL_KEYS,
    "decoder_attention_heads": (2, CHANGES),
    "activation_function": ("relu", CHANGES),
    "scale_embedding": (True, CHANGES),
}
KEYS = {
    "bert2bert/EncoderDecoderModel": {
        **within("encoder", _BERT_KEYS),
        **within("decoder", _BERT_KEYS | CAUSAL_KEYS),
        "encoder.is_decoder": (True, CHANGES),
        "decoder.is_decoder": (False, UNCOVERED),
        "decoder.add_cross_attention": (False, UNCOVERED),
        "decoder.tie_word_embeddings": (False, SHAPES),
        "tie_encoder_decoder": (True, UNCOVERED),
    },
    "roberta2gpt2/EncoderDecoderModel": {
        "encoder.pad_token_id": (3, CHANGES),
        **within("decoder", _GPT2_KEYS),
    },
    "trocr/VisionEncoderDecoderModel": {
        **within("encoder", LAYER_KEYS | PICTURE_KEYS),
        "encoder.pooler_act": ("relu", KEEPS),  # nothing reads it
        **within("decoder", _BART_KEYS),
        "decoder.tie_word_embeddings": (False, SHAPES),
        "decoder.use_learned_position_embeddings": (False, SHAPES),
        "decoder.layernorm_embedding": (False, SHAPES),
        "decoder.cross_attention_hidden_size": (None, SHAPES),
    },
    "trocr-sines-untied/VisionEncoderDecoderModel": {"decoder.pad_token_id": (7, CHANGES)},
    "vit-bert/VisionTextDualEncoderModel": {
        **within("text_config", _BERT_KEYS),
        "text_config.is_decoder": (True, CHANGES),
        **within("vision_config", LAYER_KEYS | PICTURE_KEYS),
        "vision_config.pooler_act": ("tanh", CHANGES),
        "vision_config.pooler_output_size": (12, UNCOVERED),
    },
    "clip-roberta/VisionTextDualEncoderModel": {
        "text_config.pad_token_id": (3, CHANGES),
        **within("vision_config", LAYER_KEYS | PICTURE_KEYS),
    },
    "vit2gpt2/VisionEncoderDecoderModel": within("decoder", _GPT2_KEYS),
    "donut/VisionEncoderDecoderModel": {
        "encoder.num_heads": ([4, 3], SHAPES),
        "encoder.hidden_act": ("relu", CHANGES),
        "encoder.layer_norm_eps": (0.1, CHANGES),
        "encoder.patch_size": (4, SHAPES),
        "encoder.window_size": (3, SHAPES),
        "encoder.use_absolute_embeddings": (True, UNCOVERED),
        **within("decoder", _BART_KEYS),
    },
}
TIED = ()
