"""Gemma 4, text alone and with pictures beside it."""

import transformers as T

from families import CHANGES, FAILS, LINEAR_ROPES, SHAPES, UNCOVERED, within
from families.rmsnorm_decoders import GEMMA2_KEYS, GROUPED, HEAD_KEY

_PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 10000.0}
_TURNED = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
_KINDS = ["sliding_attention", "full_attention"]

_DENSE = {
    **GROUPED,
    "head_dim": 8,
    "global_head_dim": 12,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "layer_types": _KINDS,
    "sliding_window": 5,
    "rope_parameters": {**_TURNED, "full_attention": {**_PROPORTIONAL, "partial_rotary_factor": 0.34}},
    "final_logit_softcapping": 2.0,
}
# the first layer is read by no other
_SHARED = {
    **_DENSE,
    "num_hidden_layers": 5,
    "layer_types": [*_KINDS, "sliding_attention", *_KINDS],
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "attention_k_eq_v": False,
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 6,
    "vocab_size_per_layer_input": 40,
    "final_logit_softcapping": None,
    "rms_norm_eps": 0.01,  # so that layers do not enlarge the rounding of each other
}
_EXPERTS = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 12}
_UNTIED = {"tie_word_embeddings": False, "attention_bias": True}
_UNIFIED = {key: value for key, value in _SHARED.items() if "per_layer_input" not in key} | _UNTIED

_TOWER = {
    "hidden_size": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 2,
    "intermediate_size": 14,
    "patch_size": 2,
    "pooling_kernel_size": 2,
    "position_embedding_size": 6,
    "standardize": True,
}
_PICTURES = {
    "text_config": {**_DENSE, **_EXPERTS},
    "vision_config": _TOWER,
    "image_token_id": 7,
    "video_token_id": 8,
    "audio_token_id": 9,
}
# as the small models are
_CLIPPED = {
    **_PICTURES,
    "text_config": _SHARED,
    "vision_config": {**_TOWER, "standardize": False, "use_clipped_linears": True},
    "tie_word_embeddings": False,
}
_UNIFIED_PICTURES = {
    **_PICTURES,
    "text_config": {**_UNIFIED, "use_bidirectional_attention": "vision", "final_logit_softcapping": 4.0},
    "vision_config": {
        "patch_size": 2,
        "pooling_kernel_size": 2,
        "mm_embed_dim": 18,
        "output_proj_dims": 18,
        "mm_posemb_size": 4,
    },
    "audio_config": {"audio_embed_dim": 10},
    "tie_word_embeddings": True,
}
_EAR = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "subsampling_conv_channels": [12, 6],
    "conv_kernel_size": 3,
    "attention_chunk_size": 2,
    "attention_context_left": 3,
    "attention_logit_cap": 3.0,
    "output_proj_dims": 22,
}
_WHOLE = ("ForConditionalGeneration",)
_EMBEDDING = {key: value for key, value in _DENSE.items() if key not in ("attention_k_eq_v", "final_logit_softcapping")}
_EMBEDDING |= {"hidden_size_per_layer_input": 6, "embedding_dim": 10, "attention_bias": True}
_EMBEDDING_PICTURES = {
    **_PICTURES,
    "text_config": {**_EMBEDDING, "attention_bias": False},
    "audio_config": {"model_type": "gemma4_audio", **_EAR},
    "vision_config": {"model_type": "gemma4_vision", **_CLIPPED["vision_config"]},
}

FAMILIES = {
    "gemma4-pictures": ("Gemma4", _WHOLE, T.Gemma4Config, _PICTURES),
    "gemma4-unified-pictures": ("Gemma4Unified", _WHOLE, T.Gemma4UnifiedConfig, _UNIFIED_PICTURES),
    "gemma4-unified-pictures-mute": (
        "Gemma4Unified",
        _WHOLE,
        T.Gemma4UnifiedConfig,
        {**_UNIFIED_PICTURES, "audio_config": None},
    ),
    "gemma4-sounds": (
        "Gemma4",
        _WHOLE,
        T.Gemma4Config,
        {**_PICTURES, "text_config": _DENSE, "audio_config": {**_EAR, "use_clipped_linears": False}},
    ),
    "gemma4-sounds-clipped": (
        "Gemma4",
        _WHOLE,
        T.Gemma4Config,
        {**_CLIPPED, "text_config": _DENSE, "audio_config": _EAR},
    ),
    "gemma4-pictures-clipped": ("Gemma4", _WHOLE, T.Gemma4Config, _CLIPPED),
    "embeddinggemma2-biased": ("EmbeddingGemma2Text", ("Model",), T.EmbeddingGemma2TextConfig, _EMBEDDING),
    "embeddinggemma2-pictures": ("EmbeddingGemma2", ("Model",), T.EmbeddingGemma2Config, _EMBEDDING_PICTURES),
    "gemma4": ("Gemma4", ("ForCausalLM",), T.Gemma4TextConfig, _DENSE),
    "gemma4-text": ("Gemma4Text", ("Model",), T.Gemma4TextConfig, {**_SHARED, "use_double_wide_mlp": False}),
    "gemma4-experts": ("Gemma4", ("ForCausalLM",), T.Gemma4TextConfig, {**_DENSE, **_EXPERTS}),
    "gemma4-shared": ("Gemma4", ("ForCausalLM",), T.Gemma4TextConfig, _SHARED),
    "gemma4-untied-biased": ("Gemma4", ("ForCausalLM",), T.Gemma4TextConfig, {**_DENSE, **_UNTIED}),
    "gemma4-unified": ("Gemma4Unified", ("ForCausalLM",), T.Gemma4UnifiedTextConfig, _UNIFIED),
    "gemma4-unified-text": ("Gemma4UnifiedText", ("Model",), T.Gemma4UnifiedTextConfig, _UNIFIED),
}
FLOAT32_PARTS: tuple[str, ...] = ("gemma4", "embeddinggemma2")  # RMSNorm, routers and rotary angles

_OF_GEMMA2 = ("query_pre_attn_scalar", "attn_logit_softcapping")
_KEYS = {key: row for key, row in GEMMA2_KEYS.items() if key not in _OF_GEMMA2} | {
    HEAD_KEY: ((2, 1, 16), SHAPES),  # a gain a coordinate
    "sliding_window": (9, CHANGES),
    "use_bidirectional_attention": ("all", CHANGES),
    "rope_parameters": (LINEAR_ROPES, CHANGES),
    "layer_types": (["full_attention"] * 2, SHAPES),  # of other heads
}
_BARE_KEYS = {
    key: row
    for key, row in _KEYS.items()
    if key not in ("final_logit_softcapping", "use_bidirectional_attention", "is_causal")
}
_AXIAL = {"rope_type": "axial", "rope_theta": 10.0}
_TOWER_KEYS = {
    "num_attention_heads + num_key_value_heads + head_dim": ((2, 1, 16), SHAPES),
    "hidden_activation": ("relu", CHANGES),
    "rms_norm_eps": (0.1, CHANGES),
    "rope_parameters": (_AXIAL, CHANGES),
    "pooling_kernel_size": (4, FAILS),
}
_PICTURE_KEYS = {
    **within("text_config", _KEYS),
    **within("vision_config", _TOWER_KEYS),
    "image_token_id": (5, FAILS),
    "video_token_id": (11, CHANGES),  # of a text, too
    "audio_token_id": (12, CHANGES),
    "vision_config": (None, UNCOVERED),
}
_EAR_KEYS = {
    "hidden_act": ("relu", CHANGES),
    "rms_norm_eps": (0.1, CHANGES),
    "residual_weight": (1.0, CHANGES),
    "attention_chunk_size": (4, CHANGES),
    "attention_context_left": (2, CHANGES),
    "attention_context_right": (2, CHANGES),
    "attention_logit_cap": (1.0, CHANGES),
    "attention_invalid_logits_value": (0.0, CHANGES),
    "gradient_clipping": (0.1, CHANGES),
}
KEYS = {
    "gemma4-pictures/Gemma4ForConditionalGeneration": _PICTURE_KEYS | {"text_config.top_k_experts": (1, CHANGES)},
    "gemma4-unified-pictures/Gemma4UnifiedForConditionalGeneration": {
        **within("text_config", _KEYS),
        "text_config.layer_types": (["full_attention"] * 5, SHAPES),
        "text_config.num_kv_shared_layers": (3, SHAPES),
        "vision_config.rms_norm_eps": (0.1, CHANGES),
        "vision_config.output_proj_dims": (16, UNCOVERED),
        "audio_config.rms_norm_eps": (0.1, CHANGES),
        "image_token_id": (5, FAILS),
        "video_token_id": (11, CHANGES),
        "audio_token_id": (5, FAILS),
    },
    "gemma4-sounds/Gemma4ForConditionalGeneration": {
        **within("audio_config", _EAR_KEYS),
        "audio_token_id": (5, FAILS),
    },
    "gemma4-sounds-clipped/Gemma4ForConditionalGeneration": {
        "audio_config.use_clipped_linears": (False, CHANGES),
        "audio_config.num_attention_heads": (4, SHAPES),  # a scale a coordinate of a head
    },
    "gemma4-pictures-clipped/Gemma4ForConditionalGeneration": {
        "vision_config.use_clipped_linears": (False, CHANGES),
        "text_config.pad_token_id": (3, CHANGES),
        "text_config.num_kv_shared_layers": (3, SHAPES),
    },
    "embeddinggemma2-biased/EmbeddingGemma2TextModel": _BARE_KEYS,
    "embeddinggemma2-pictures/EmbeddingGemma2Model": {
        **within("text_config", _BARE_KEYS),
        **within("vision_config", _TOWER_KEYS),
        "vision_config.use_clipped_linears": (False, CHANGES),
        **within("audio_config", _EAR_KEYS),
        "audio_config.use_clipped_linears": (False, CHANGES),
        "image_token_id": (5, FAILS),
        "video_token_id": (11, CHANGES),
        "audio_token_id": (5, FAILS),
        "vision_config": (None, UNCOVERED),
    },
    "gemma4/Gemma4ForCausalLM": _KEYS,
    "gemma4-text/Gemma4TextModel": {"num_kv_shared_layers": (3, CHANGES)},
    "gemma4-experts/Gemma4ForCausalLM": {"top_k_experts": (1, CHANGES)},
    "gemma4-unified/Gemma4UnifiedForCausalLM": {
        **_KEYS,
        "layer_types": (["full_attention"] * 5, SHAPES),
        "num_kv_shared_layers": (3, SHAPES),  # whose class takes no tensors that it does not read
    },
}
TIED = (
    "gemma4-pictures/Gemma4ForConditionalGeneration",
    "gemma4-unified-pictures/Gemma4UnifiedForConditionalGeneration",
    "gemma4/Gemma4ForCausalLM",
    "gemma4-shared/Gemma4ForCausalLM",
)
