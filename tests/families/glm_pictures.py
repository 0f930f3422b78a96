"""GLM's decoders that read pictures beside text."""

import transformers as T

from families import CHANGES, FAILS, KEEPS, SHAPES, UNCOVERED, within
from families.rmsnorm_decoders import GROUPED, HEAD_KEY, RMS_KEYS

_TOWER = {
    "depth": 2,
    "num_heads": 2,
    "hidden_size": 16,
    "out_hidden_size": GROUPED["hidden_size"],
    "intermediate_size": 12,
    "image_size": 16,
    "patch_size": 4,
    "spatial_merge_size": 2,
}
_HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
_GLM = {
    "text_config": {
        "model_type": "glm4v_text",
        **GROUPED,
        "hidden_size": 32,
        "rope_parameters": {**_HALF, "mrope_section": [1, 1, 0]},
    },
    "vision_config": {**_TOWER, "out_hidden_size": 32},
    "image_token_id": 7,
    "video_token_id": 8,
    "image_start_token_id": 9,
    "image_end_token_id": 10,
    "video_start_token_id": 11,
    "video_end_token_id": 12,
}
_MOE = {
    **_GLM,
    "text_config": {
        "model_type": "glm4v_moe_text",
        **GROUPED,
        "head_dim": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
        "rope_parameters": {**_HALF, "mrope_section": [1, 1, 0]},
    },
    "vision_config": {"model_type": "glm4v_moe_vision", **_TOWER, "attention_bias": True},
    "tie_word_embeddings": True,
}
_WHOLE = ("ForConditionalGeneration",)

FAMILIES = {
    "glm4v": ("Glm4v", _WHOLE, T.Glm4vConfig, _GLM),
    "glm4v-moe-tied": ("Glm4vMoe", _WHOLE, T.Glm4vMoeConfig, _MOE),
    "glm46v": ("Glm46V", _WHOLE, T.Glm46VConfig, _GLM),
}
FLOAT32_PARTS: tuple[str, ...] = ("glm4v", "glm46v")

_KEYS = {
    **within(
        "text_config",
        {
            **RMS_KEYS,
            HEAD_KEY: ((2, 1, 16), FAILS),  # the frequencies are told apart by rows, columns and frames
            "rope_parameters": ({**_HALF, "rope_theta": 50.0, "mrope_section": [1, 1, 0]}, CHANGES),
        },
    ),
    **within(
        "vision_config",
        {
            "num_heads": (4, CHANGES),
            "hidden_act": ("relu", CHANGES),
            "rms_norm_eps": (0.1, CHANGES),
            "rope_parameters": ({"rope_type": "axial", "rope_theta": 10.0}, CHANGES),
            "image_size": (24, SHAPES),
        },
    ),
    "image_token_id": (5, FAILS),
    "video_token_id": (11, KEEPS),  # read where there are videos
}
KEYS = {
    "glm4v/Glm4vForConditionalGeneration": {**_KEYS, "text_config.model_type": ("llama", UNCOVERED)},
    "glm4v-moe-tied/Glm4vMoeForConditionalGeneration": {
        **_KEYS,
        **within(
            "text_config",
            {
                "num_experts_per_tok": (1, CHANGES),
                "routed_scaling_factor": (0.5, CHANGES),
                "n_group": (2, CHANGES),
                "topk_group": (2, FAILS),  # there is one
                "norm_topk_prob": (False, CHANGES),
            },
        ),
    },
    "glm46v/Glm46VForConditionalGeneration": _KEYS,
}
TIED = ("glm4v-moe-tied/Glm4vMoeForConditionalGeneration",)
