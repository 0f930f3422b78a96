"""Decoders that read pictures beside text."""

import transformers as T

from families import CHANGES, FAILS, KEEPS, PADDING_KEYS, SHAPES, UNCOVERED, within
from families.gated_delta import EXPERTS, MIXED, MIXED_KEYS, MIXTURE, ROPE
from families.latent_decoders import LARGE4, LARGE4_KEYS, MISTRAL4
from families.qk_norm_decoders import GEMMA3, GEMMA3_KEYS
from families.rmsnorm_decoders import (
    GEMMA2,
    GEMMA2_KEYS,
    GEMMA_KEYS,
    GROUPED,
    HEAD_KEY,
    MINISTRAL3,
    RMS_KEYS,
    WINDOW_KEYS,
)
from families.rmsnorm_decoders import LAYER_KEYS as QWEN_KEYS
from families.vision import LAYER_KEYS as VIT_KEYS


def _turned(theta: float, *sections: int) -> dict:
    """A rotary embedding for the frame, the row and the column of a patch."""
    return {"rope_type": "default", "rope_theta": theta, "mrope_section": [*sections]}


_TOWER = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 12, "patch_size": 4}
GEMMA3_PICTURES = {
    "text_config": GEMMA3,
    "vision_config": {**_TOWER, "image_size": 16},
    "mm_tokens_per_image": 4,
    "image_token_index": 7,
}
_MISTRAL3 = {
    "text_config": {"model_type": "mistral", **GROUPED, "head_dim": 8, "sliding_window": 5},
    "vision_config": {"model_type": "pixtral", **_TOWER, "image_size": 16},
    "image_token_index": 7,
}
_LARGE4 = {
    **LARGE4,
    "num_hidden_layers": 3,
    "no_rope_layers": [1, 0, 1],
    "indexer_types": ["full", "full", "shared"],
    "final_logit_softcapping": 2.0,
}
_PALIGEMMA = {
    "text_config": {"model_type": "gemma", **GROUPED, "head_dim": 8},
    "vision_config": {**_TOWER, "image_size": 8},
    "projection_dim": GROUPED["hidden_size"],
    "image_token_index": 7,
    "tie_word_embeddings": False,
}
_PALIGEMMA2 = {"text_config": {"model_type": "gemma2", **GEMMA2}, "tie_word_embeddings": True}
_IDEFICS = {
    "text_config": {"model_type": "llama", **GROUPED},
    "vision_config": {**_TOWER, "image_size": 16},
    "scale_factor": 2,
    "image_token_id": 7,
    "tie_word_embeddings": False,
}
_QWEN_TOWER = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2}
_IDS = {"image_token_id": 7, "video_token_id": 8, "vision_start_token_id": 9, "vision_end_token_id": 10}
_QWEN2 = {
    "text_config": {**GROUPED, "rope_parameters": _turned(1e4, 1, 1, 1)},
    "vision_config": {**_QWEN_TOWER, "embed_dim": 16, "mlp_ratio": 2, "hidden_size": GROUPED["hidden_size"]},
    **_IDS,
}
_PADDLE = {
    # of the decoder's config a tie counts, too
    "text_config": {**GROUPED, "head_dim": 8, "rope_parameters": _turned(1e4, 2, 1, 1), "tie_word_embeddings": False},
    "vision_config": {**_TOWER, "image_size": 16},
    **_IDS,
    "tie_word_embeddings": False,
}
_PADDLE_BIASED = {"text_config": {**_PADDLE["text_config"], "use_bias": True}, "tie_word_embeddings": True}
_QWEN25_TOWER = {
    **_QWEN_TOWER,
    "hidden_size": 16,
    "intermediate_size": 12,
    "out_hidden_size": GROUPED["hidden_size"],
    "window_size": 8,  # a token
    "fullatt_block_indexes": [1],
}
_QWEN3_TOWER = {
    **_QWEN_TOWER,
    "hidden_size": 16,
    "intermediate_size": 12,
    "out_hidden_size": GROUPED["hidden_size"],
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}
QWEN25 = {"text_config": {**GROUPED, "rope_parameters": _turned(1e4, 1, 1, 1)}, "vision_config": _QWEN25_TOWER, **_IDS}
_QWEN3 = {
    "text_config": {**GROUPED, "head_dim": 8, "rope_parameters": _turned(1e4, 2, 1, 1)},
    "vision_config": _QWEN3_TOWER,
    **_IDS,
}
_QWEN35_TOWER = {key: value for key, value in _QWEN3_TOWER.items() if key != "deepstack_visual_indexes"}
_MIXED = {"head_dim": 12, "rope_parameters": {**ROPE, "mrope_section": [1, 1, 1]}}
_QWEN35 = {"text_config": {**MIXED, **_MIXED}, "vision_config": _QWEN35_TOWER, **_IDS}
_QWEN35_MOE = {**_QWEN35, "text_config": {**MIXTURE, **_MIXED}}
_QWEN3_MOE = {**_QWEN3, "text_config": {**_QWEN3["text_config"], **EXPERTS}}
_DENSE = {
    **_QWEN3_MOE,
    "text_config": {**_QWEN3_MOE["text_config"], "mlp_only_layers": [0]},
    "tie_word_embeddings": True,
}
_WHOLE = ("ForConditionalGeneration",)
_CLASSIFYING = (*_WHOLE, "ForSequenceClassification")

FAMILIES = {
    "gemma3-pictures": ("Gemma3", _CLASSIFYING, T.Gemma3Config, GEMMA3_PICTURES),
    "mistral3": ("Mistral3", _WHOLE, T.Mistral3Config, {**_MISTRAL3, "tie_word_embeddings": False}),
    "mistral3-ministral-biased-tied": (
        "Mistral3",
        _WHOLE,
        T.Mistral3Config,
        {**_MISTRAL3, "text_config": {"model_type": "ministral3", **MINISTRAL3}, "multimodal_projector_bias": True},
    ),
    "mistral3-mistral4": (
        "Mistral3",
        _WHOLE,
        T.Mistral3Config,
        {**_MISTRAL3, "text_config": {"model_type": "mistral4", **MISTRAL4}, "tie_word_embeddings": False},
    ),
    "mistral-large4-pictures": ("MistralLarge4", _WHOLE, T.MistralLarge4Config, {**_MISTRAL3, "text_config": _LARGE4}),
    "paligemma": ("PaliGemma", _WHOLE, T.PaliGemmaConfig, _PALIGEMMA),
    "paligemma2-tied": ("PaliGemma", _WHOLE, T.PaliGemmaConfig, {**_PALIGEMMA, **_PALIGEMMA2}),
    "idefics3": ("Idefics3", _WHOLE, T.Idefics3Config, _IDEFICS),
    "smolvlm-tied": ("SmolVLM", _WHOLE, T.SmolVLMConfig, {**_IDEFICS, "tie_word_embeddings": True}),
    "qwen2-vl": ("Qwen2VL", _WHOLE, T.Qwen2VLConfig, _QWEN2),
    "qwen2-vl-tied": ("Qwen2VL", _WHOLE, T.Qwen2VLConfig, {**_QWEN2, "tie_word_embeddings": True}),
    "paddleocr-vl": ("PaddleOCRVL", _WHOLE, T.PaddleOCRVLConfig, _PADDLE),
    "paddleocr-vl-biased-tied": ("PaddleOCRVL", _WHOLE, T.PaddleOCRVLConfig, {**_PADDLE, **_PADDLE_BIASED}),
    "qwen2.5-vl": ("Qwen2_5_VL", _WHOLE, T.Qwen2_5_VLConfig, QWEN25),
    "qwen2.5-vl-tied": ("Qwen2_5_VL", _WHOLE, T.Qwen2_5_VLConfig, {**QWEN25, "tie_word_embeddings": True}),
    "qwen3-vl": ("Qwen3VL", _WHOLE, T.Qwen3VLConfig, _QWEN3),
    "qwen3-vl-moe": ("Qwen3VLMoe", _WHOLE, T.Qwen3VLMoeConfig, _QWEN3_MOE),
    "qwen3-vl-moe-dense-tied": ("Qwen3VLMoe", _WHOLE, T.Qwen3VLMoeConfig, _DENSE),
    "qwen3.5-pictures": ("Qwen3_5", _CLASSIFYING, T.Qwen3_5Config, _QWEN35),
    "qwen3.5-pictures-tied": ("Qwen3_5", _WHOLE, T.Qwen3_5Config, {**_QWEN35, "tie_word_embeddings": True}),
    "qwen3.5-moe-pictures-fused": ("Qwen3_5Moe", _WHOLE, T.Qwen3_5MoeConfig, _QWEN35_MOE),
    "qwen3.5-moe-pictures-tied": (
        "Qwen3_5Moe",
        _WHOLE,
        T.Qwen3_5MoeConfig,
        {**_QWEN35_MOE, "tie_word_embeddings": True},
    ),
    "qwen3-vl-tied": ("Qwen3VL", _WHOLE, T.Qwen3VLConfig, {**_QWEN3, "tie_word_embeddings": True}),
}
FLOAT32_PARTS: tuple[str, ...] = (
    "gemma3-pictures",
    "paligemma",
    "idefics3",
    "smolvlm",
    "mistral3",
    "mistral-large4-pictures",
    "paddleocr-vl",
    "qwen2-vl",
    "qwen2.5-vl",
    "qwen3-vl",
)

_TEXT = within("text_config", RMS_KEYS)
QWEN2_TEXT = {
    **_TEXT,
    "text_config.num_attention_heads + text_config.num_key_value_heads + text_config.rope_parameters": (
        (2, 1, _turned(1e4, 2, 2, 2)),
        CHANGES,
    ),
    "text_config.rope_parameters": (_turned(10.0, 1, 1, 1), CHANGES),
    **within("text_config", QWEN_KEYS),
}
del QWEN2_TEXT[f"text_config.{HEAD_KEY.replace(' + ', ' + text_config.')}"]
_VIT_ONLY = {"num_attention_heads": (4, CHANGES), "image_size": (24, SHAPES), "patch_size": (2, SHAPES)}
_VIT = within("vision_config", VIT_KEYS | _VIT_ONLY)
_IMAGE = {"image_token_index": (5, FAILS)}
_AXIAL = {"vision_config.rope_parameters": ({"rope_type": "axial", "rope_theta": 10.0}, CHANGES)}
QWEN_PICTURES = {
    **_AXIAL,
    **within("vision_config", {"num_heads": (4, CHANGES), "hidden_act": ("relu", CHANGES)}),
    "image_token_id": (5, FAILS),
    "video_token_id": (11, KEEPS),  # read where there are videos
}
_ROPE = {"rope_type": "default", "rope_theta": 10.0}
# what is not said is true; read where a kernel makes its own mask
_PREFIX = {"text_config.use_bidirectional_attention": (False, KEEPS)}
_IDEFICS_KEYS = {
    "text_config.model_type": ("mistral", UNCOVERED),
    **_TEXT,
    **within("text_config", {HEAD_KEY: ((2, 1, 12), CHANGES)}),
    **_VIT,
    "image_token_id": (5, FAILS),
}
# of the text alone, which has fewer layers, and groups of experts
_OF_TWO_LAYERS = ("num_key_value_heads", "kv_source_layers", "no_rope_layers", "indexer_types", "n_group", "topk_group")
KEYS = {
    "gemma3-pictures/Gemma3ForSequenceClassification": within("text_config", PADDING_KEYS),
    "qwen3.5-pictures/Qwen3_5ForSequenceClassification": within("text_config", PADDING_KEYS),
    "gemma3-pictures/Gemma3ForConditionalGeneration": {
        **within("text_config", GEMMA3_KEYS),
        "text_config.final_logit_softcapping": (1.0, KEEPS),  # of the decoder alone
        **_VIT,
        "mm_tokens_per_image": (1, FAILS),
        **_IMAGE,
    },
    "mistral3/Mistral3ForConditionalGeneration": {
        **_TEXT,
        **within("text_config", {HEAD_KEY: ((2, 1, 16), CHANGES), **WINDOW_KEYS}),
        "vision_config.num_attention_heads + vision_config.head_dim": ((4, 4), CHANGES),
        "vision_config.hidden_act": ("relu", CHANGES),
        **_AXIAL,
        "projector_hidden_act": ("relu", CHANGES),
        "vision_feature_layer": (-2, UNCOVERED),
        "text_config.model_type": ("gemma", UNCOVERED),
        "vision_config.model_type": ("siglip_vision_model", UNCOVERED),
        **_IMAGE,
    },
    "mistral3-mistral4/Mistral3ForConditionalGeneration": within(
        "text_config",
        {
            "num_experts_per_tok": (1, CHANGES),
            "routed_scaling_factor": (0.5, CHANGES),
            "norm_topk_prob": (False, CHANGES),
            "rope_interleave": (False, CHANGES),
            "n_group + topk_group": ((2, 2), KEEPS),  # all groups
        },
    ),
    "mistral-large4-pictures/MistralLarge4ForConditionalGeneration": {
        **within("text_config", {key: row for key, row in LARGE4_KEYS.items() if key not in _OF_TWO_LAYERS}),
        "text_config.no_rope_layers": ([1, 1, 1], SHAPES),
        "text_config.indexer_types": (["full", "shared", "shared"], SHAPES),
        "text_config.n_group + text_config.topk_group": ((2, 2), KEEPS),  # all groups
        "vision_config.num_attention_heads + vision_config.head_dim": ((4, 4), CHANGES),
        "vision_config.hidden_act": ("relu", CHANGES),
        "text_config.final_logit_softcapping": (3.0, CHANGES),
        "projector_hidden_act": ("relu", CHANGES),
        "vision_feature_layer": (-2, UNCOVERED),
        **_AXIAL,
        **_IMAGE,
    },
    "paligemma/PaliGemmaForConditionalGeneration": {
        "text_config.model_type": ("llama", UNCOVERED),
        **within("text_config", GEMMA_KEYS),
        "text_config.final_logit_softcapping": (1.0, CHANGES),
        **_PREFIX,
        **_VIT,
        **_IMAGE,
    },
    "paligemma2-tied/PaliGemmaForConditionalGeneration": within("text_config", GEMMA2_KEYS) | _PREFIX,
    "idefics3/Idefics3ForConditionalGeneration": _IDEFICS_KEYS,
    "smolvlm-tied/SmolVLMForConditionalGeneration": _IDEFICS_KEYS,
    "qwen2-vl/Qwen2VLForConditionalGeneration": {**QWEN2_TEXT, **QWEN_PICTURES},
    "paddleocr-vl/PaddleOCRVLForConditionalGeneration": {
        **within("text_config", {key: row for key, row in RMS_KEYS.items() if key != HEAD_KEY}),
        "text_config.rope_parameters": (_turned(10.0, 2, 1, 1), CHANGES),
        **within("text_config", {f"{HEAD_KEY} + rope_parameters": ((2, 1, 16, _turned(1e4, 4, 2, 2)), CHANGES)}),
        **within("vision_config", VIT_KEYS),
        "vision_config.num_attention_heads": (4, CHANGES),
        **_AXIAL,
        "image_token_id": (5, FAILS),
        "video_token_id": (11, KEEPS),  # read where there are videos
    },
    "qwen2.5-vl/Qwen2_5_VLForConditionalGeneration": {
        **QWEN2_TEXT,
        **QWEN_PICTURES,
        "vision_config.window_size": (16, CHANGES),
        "vision_config.fullatt_block_indexes": ([0], CHANGES),
        "vision_config.tokens_per_second": (2, KEEPS),  # of videos
    },
    "qwen3-vl/Qwen3VLForConditionalGeneration": {
        **_TEXT,
        **within("text_config", {HEAD_KEY: ((2, 1, 16), SHAPES)}),
        **QWEN_PICTURES,
        "vision_config.deepstack_visual_indexes": ([1], CHANGES),
    },
}
_MIXED_KEYS = {**within("text_config", MIXED_KEYS), **QWEN_PICTURES}
KEYS |= {
    "qwen3-vl-moe/Qwen3VLMoeForConditionalGeneration": {
        **KEYS["qwen3-vl/Qwen3VLForConditionalGeneration"],
        "text_config.num_experts_per_tok": (1, CHANGES),
    },
    "qwen3.5-pictures/Qwen3_5ForConditionalGeneration": _MIXED_KEYS,
    "qwen3.5-moe-pictures-fused/Qwen3_5MoeForConditionalGeneration": {
        **_MIXED_KEYS,
        "text_config.num_experts_per_tok": (1, CHANGES),
    },
}
TIED: tuple[str, ...] = (
    "gemma3-pictures/Gemma3ForConditionalGeneration",
    "paligemma2-tied/PaliGemmaForConditionalGeneration",
    "smolvlm-tied/SmolVLMForConditionalGeneration",
    "mistral3-ministral-biased-tied/Mistral3ForConditionalGeneration",
    "qwen2-vl-tied/Qwen2VLForConditionalGeneration",
    "paddleocr-vl-biased-tied/PaddleOCRVLForConditionalGeneration",
    "qwen2.5-vl-tied/Qwen2_5_VLForConditionalGeneration",
    "qwen3-vl-moe-dense-tied/Qwen3VLMoeForConditionalGeneration",
    "qwen3.5-pictures-tied/Qwen3_5ForConditionalGeneration",
    "qwen3.5-moe-pictures-tied/Qwen3_5MoeForConditionalGeneration",
    "qwen3-vl-tied/Qwen3VLForConditionalGeneration",
)
