"""Decoders that hear sounds beside text."""

import transformers as T

from families import CHANGES, FAILS, SHAPES, UNCOVERED, within
from families.rmsnorm_decoders import GROUPED, HEAD_KEY, LAYER_KEYS, RMS_KEYS

_EAR = {"num_mel_bins": 5, "max_source_positions": 12}
_VOXTRAL = {
    "text_config": {"model_type": "llama", **GROUPED, "head_dim": 6},
    "audio_config": {
        **_EAR,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 32,
    },
    "audio_token_id": 7,
}
_QWEN2 = {
    "text_config": {"model_type": "qwen2", **GROUPED},
    "audio_config": {
        **_EAR,
        "d_model": 8,
        "encoder_attention_heads": 2,
        "encoder_layers": 2,
        "encoder_ffn_dim": 12,
    },
    "audio_token_index": 7,
}
_QWEN3 = {
    "text_config": {"model_type": "qwen3", **GROUPED, "head_dim": 6},
    "audio_config": {
        "num_mel_bins": 9,
        "d_model": 8,
        "encoder_attention_heads": 2,
        "encoder_layers": 2,
        "encoder_ffn_dim": 12,
        "downsample_hidden_size": 6,
        "n_window_infer": 200,
        "output_dim": 24,
    },
    "audio_token_id": 7,
}
_WHOLE = ("ForConditionalGeneration",)

FAMILIES = {
    "voxtral": ("Voxtral", _WHOLE, T.VoxtralConfig, _VOXTRAL),
    "qwen2-audio": ("Qwen2Audio", _WHOLE, T.Qwen2AudioConfig, _QWEN2),
    "qwen3-asr": ("Qwen3ASR", _WHOLE, T.Qwen3ASRConfig, _QWEN3),
}
FLOAT32_PARTS: tuple[str, ...] = ("voxtral", "qwen2-audio", "qwen3-asr")

_EAR_KEYS = {"activation_function": ("relu", CHANGES), "max_source_positions": (14, SHAPES)}
KEYS = {
    "voxtral/VoxtralForConditionalGeneration": {
        **within("text_config", {**RMS_KEYS, HEAD_KEY: ((2, 1, 12), CHANGES)}),
        **within("audio_config", {**_EAR_KEYS, "num_attention_heads": (4, CHANGES)}),
        "projector_hidden_act": ("relu", CHANGES),
        "audio_token_id": (5, FAILS),
        "tie_word_embeddings": (True, UNCOVERED),
        "text_config.model_type": ("gemma", UNCOVERED),
    },
    "qwen2-audio/Qwen2AudioForConditionalGeneration": {
        **within("text_config", {**RMS_KEYS, **LAYER_KEYS}),
        **within("audio_config", {**_EAR_KEYS, "encoder_attention_heads": (4, CHANGES)}),
        "audio_token_index": (5, FAILS),
        "audio_config.model_type": ("voxtral_encoder", UNCOVERED),
    },
    "qwen3-asr/Qwen3ASRForConditionalGeneration": {
        **within("text_config", {**RMS_KEYS, **LAYER_KEYS, HEAD_KEY: ((2, 1, 12), SHAPES)}),
        **within(
            "audio_config",
            {
                "activation_function": ("relu", CHANGES),
                "encoder_attention_heads": (4, CHANGES),
                "n_window": (49, FAILS),  # sounds are of so many frames, or of a multiple
                "n_window_infer": (100, CHANGES),
            },
        ),
        "audio_token_id": (5, FAILS),
        "tie_word_embeddings": (False, SHAPES),
        "text_config.model_type": ("qwen2", UNCOVERED),
    },
}
TIED: tuple[str, ...] = ("qwen3-asr/Qwen3ASRForConditionalGeneration",)
