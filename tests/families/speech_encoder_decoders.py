"""Encoder-decoders that write what they hear, but for Whisper."""

import transformers as T

from families import CAUSAL_KEYS, CHANGES, FAILS, LINEAR_ROPE, UNCOVERED

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
_PARTLY = {"partial_rotary_factor": 0.7}  # 4 of 6 coordinates
_HEADS = tuple(f"{side}_num_{kind}_heads" for side in ("encoder", "decoder") for kind in ("attention", "key_value"))
_MOONSHINE = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 20,
    "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 3,
    "encoder_num_attention_heads": 4,
    "decoder_num_attention_heads": 4,
    "max_position_embeddings": 20,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, **_PARTLY},
}

FAMILIES = {
    "speech-to-text": (
        "Speech2Text",
        ("ForConditionalGeneration", "Model"),
        T.Speech2TextConfig,
        _SPEECH_TO_TEXT,
    ),
    "moonshine": ("Moonshine", ("ForConditionalGeneration", "Model"), T.MoonshineConfig, _MOONSHINE),
    "moonshine-untied": (
        "Moonshine",
        ("ForConditionalGeneration",),
        T.MoonshineConfig,
        {**_MOONSHINE, "encoder_hidden_act": "relu", "pad_head_dim_to_multiple_of": 8, "tie_word_embeddings": False},
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
    "moonshine/MoonshineForConditionalGeneration": {
        "is_causal": (False, FAILS),
        " + ".join(_HEADS): ((2, 2, 2, 2), CHANGES),
        **dict.fromkeys(_HEADS[1:], (2, UNCOVERED)),
        "encoder_hidden_act": ("relu", CHANGES),
        "decoder_hidden_act": ("relu", CHANGES),
        "rope_parameters": (LINEAR_ROPE | _PARTLY, CHANGES),
        "attention_bias": (True, UNCOVERED),
    },
}
TIED = ("speech-to-text/Speech2TextForConditionalGeneration", "moonshine/MoonshineForConditionalGeneration")
