"""Encoder-decoders that write what they hear, but for Whisper."""

import transformers as T

from families import CAUSAL_KEYS, CHANGES

_SPEECH_TO_TEXT = {
    "vocab_size": 40,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 18,
    "num_conv_layers": 3,
    "conv_kernel_sizes": (5, 3, 4),
    "conv_channels": 14,
    "input_feat_per_channel": 5,
    "input_channels": 2,
    "max_target_positions": 20,
}

FAMILIES = {
    "speech-to-text": (
        "Speech2Text",
        ("ForConditionalGeneration", "Model"),
        T.Speech2TextConfig,
        _SPEECH_TO_TEXT,
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ()

KEYS = {
    "speech-to-text/Speech2TextForConditionalGeneration": {
        **CAUSAL_KEYS,
        "encoder_attention_heads": (2, CHANGES),
        "decoder_attention_heads": (2, CHANGES),
        "activation_function": ("gelu", CHANGES),
        "scale_embedding": (False, CHANGES),
        "pad_token_id": (7, CHANGES),
    },
}
TIED: tuple[str, ...] = ("speech-to-text/Speech2TextForConditionalGeneration",)
