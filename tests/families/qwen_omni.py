"""Qwen2.5-Omni's thinker, which reads pictures and hears sounds beside text."""

from transformers import Qwen2_5OmniThinkerConfig

from families import CHANGES, KEEPS, within
from families.vision_language import QWEN2_TEXT, QWEN25, QWEN_PICTURES

_OMNI = {
    **QWEN25,
    "audio_config": {
        "num_mel_bins": 5,
        "max_source_positions": 12,
        "d_model": 8,
        "encoder_attention_heads": 2,
        "encoder_layers": 2,
        "encoder_ffn_dim": 12,
        "n_window": 6,
        "output_dim": 24,
    },
    "audio_token_id": 6,
    "audio_start_token_id": 11,
}

FAMILIES = {
    "qwen2.5-omni": (
        "Qwen2_5OmniThinker",
        ("ForConditionalGeneration",),
        Qwen2_5OmniThinkerConfig,
        _OMNI,
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("qwen2.5-omni",)

KEYS = {
    "qwen2.5-omni/Qwen2_5OmniThinkerForConditionalGeneration": {
        **QWEN2_TEXT,
        **QWEN_PICTURES,
        "vision_config.window_size": (16, CHANGES),
        "vision_config.fullatt_block_indexes": ([0], CHANGES),
        **within(
            "audio_config",
            {
                "activation_function": ("relu", CHANGES),
                "encoder_attention_heads": (4, CHANGES),
                "n_window": (4, CHANGES),
            },
        ),
        "audio_token_id": (5, CHANGES),
        "vision_start_token_id": (13, KEEPS),  # made-up texts have none
        "audio_start_token_id": (13, KEEPS),
        "position_id_per_seconds": (2, KEEPS),  # of videos
        "seconds_per_chunk": (1, KEEPS),
    },
}
TIED: tuple[str, ...] = ()
