"""Llama 3.2 that reads pictures."""

import transformers as T

from families import CHANGES, KEEPS, SHAPES, within
from families.rmsnorm_decoders import GROUPED, RMS_KEYS

_TEXT = {**GROUPED, "cross_attention_layers": [1]}
_WHOLE = {
    "text_config": _TEXT,
    "vision_config": {
        "hidden_size": 16,
        "attention_heads": 2,
        "num_hidden_layers": 2,
        "num_global_layers": 1,
        "intermediate_size": 12,
        "image_size": 8,
        "patch_size": 4,
        "intermediate_layers_indices": [1, 0],
        "vision_output_dim": 48,
        "max_num_tiles": 2,
        "supported_aspect_ratios": [[1, 1], [2, 1]],
    },
    "image_token_index": 40,
}

FAMILIES = {
    "mllama": ("Mllama", ("ForConditionalGeneration",), T.MllamaConfig, _WHOLE),
    "mllama-text": ("Mllama", ("ForCausalLM",), T.MllamaTextConfig, _TEXT),
}
FLOAT32_PARTS: tuple[str, ...] = ("mllama",)  # RMSNorm and rotary angles

_KEYS = {key: row for key, row in RMS_KEYS.items() if "head_dim" not in key}
_KEYS["num_attention_heads + num_key_value_heads"] = ((2, 1), SHAPES)  # a head's gains
KEYS = {
    "mllama/MllamaForConditionalGeneration": {
        **within("text_config", _KEYS),
        **within(
            "vision_config",
            {
                "attention_heads": (4, CHANGES),
                "hidden_act": ("relu", CHANGES),
                "norm_eps": (0.1, CHANGES),
                "intermediate_layers_indices": ([0, 1], CHANGES),
                "image_size": (12, SHAPES),
                "patch_size": (2, SHAPES),
            },
        ),
        "image_token_index": (41, KEEPS),  # what is no text is told apart before the model
    },
    "mllama-text/MllamaForCausalLM": _KEYS,
}
TIED: tuple[str, ...] = ()
