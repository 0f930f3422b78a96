"""Vision transformers, and one that sees spectrograms."""

import transformers as T

from families import CHANGES, KEEPS, SHAPES

_PICTURE = {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "image_size": 8,
    "patch_size": 4,
    "num_labels": 3,
}
VIT = {**_PICTURE, "intermediate_size": 20}
_MASKED = {**VIT, "encoder_stride": 4}
DECODER = {
    "decoder_hidden_size": 12,
    "decoder_num_attention_heads": 3,
    "decoder_num_hidden_layers": 3,
    "decoder_intermediate_size": 16,
}
_DINO = {**_PICTURE, "mlp_ratio": 1}
_DINO3 = {**VIT, "num_attention_heads": 3}  # heads of a size that four divides
_DINO3_BIASES = {"query_bias": False, "key_bias": True, "proj_bias": False, "mlp_bias": False}
_AST = {**VIT, "num_mel_bins": 12, "max_length": 16, "frequency_stride": 3, "time_stride": 5}
_TEACHER = "ForImageClassificationWithTeacher"
_BEIT = {**VIT, "use_relative_position_bias": True}
_BEIT_SHARED = {**VIT, "use_shared_relative_position_bias": True, "use_absolute_position_embeddings": True}
_YOLOS = {**VIT, "image_size": [8, 8], "num_detection_tokens": 3}
_SWIN = {"image_size": 8, "patch_size": 2, "embed_dim": 12, "depths": [2, 1], "num_heads": [3, 4], "window_size": 2}
_SWIN |= {"mlp_ratio": 1.0, "num_labels": 3}

FAMILIES = {
    "vit": ("ViT", ("ForImageClassification", "Model"), T.ViTConfig, VIT),
    "vit-masked": ("ViT", ("ForMaskedImageModeling",), T.ViTConfig, _MASKED),
    "vit-wide-heads": ("ViT", ("ForImageClassification",), T.ViTConfig, {**VIT, "head_dim": 8}),
    "vit-msn": ("ViTMSN", ("ForImageClassification", "Model"), T.ViTMSNConfig, {**VIT, "hidden_act": "relu"}),
    "vit-mae": ("ViTMAE", ("ForPreTraining", "Model"), T.ViTMAEConfig, {**VIT, **DECODER, "mask_ratio": 0.5}),
    "vit-mae-unbiased": ("ViTMAE", ("ForPreTraining",), T.ViTMAEConfig, {**VIT, **DECODER, "qkv_bias": False}),
    "deit-masked": ("DeiT", ("ForMaskedImageModeling",), T.DeiTConfig, _MASKED),
    "deit": ("DeiT", ("ForImageClassification", _TEACHER, "Model"), T.DeiTConfig, VIT),
    "dinov2": ("Dinov2", ("ForImageClassification",), T.Dinov2Config, _DINO),
    "dinov2-masked": ("Dinov2", ("Model",), T.Dinov2Config, _DINO),
    "dinov2-swiglu": (
        "Dinov2",
        ("ForImageClassification",),
        T.Dinov2Config,
        {**_DINO, "use_mask_token": False, "use_swiglu_ffn": True},
    ),
    "dinov2-registers": (
        "Dinov2WithRegisters",
        ("ForImageClassification", "Model"),
        T.Dinov2WithRegistersConfig,
        {**_DINO, "num_register_tokens": 3},
    ),
    "dinov2-registers-swiglu": (
        "Dinov2WithRegisters",
        ("ForImageClassification",),
        T.Dinov2WithRegistersConfig,
        {**_DINO, "use_swiglu_ffn": True},
    ),
    "dinov3": ("DINOv3ViT", ("Model",), T.DINOv3ViTConfig, {**_DINO3, "num_register_tokens": 3}),
    "dinov3-gated": (
        "DINOv3ViT",
        ("Model",),
        T.DINOv3ViTConfig,
        {**_DINO3, "use_gated_mlp": True, "hidden_act": "silu", "num_register_tokens": 2, **_DINO3_BIASES},
    ),
    "ast": ("AST", ("ForAudioClassification", "Model"), T.ASTConfig, _AST),
    "ast-unbiased": ("AST", ("ForAudioClassification",), T.ASTConfig, {**_AST, "qkv_bias": False}),
    "beit": ("Beit", ("ForImageClassification",), T.BeitConfig, _BEIT),
    "beit-masked": ("Beit", ("Model",), T.BeitConfig, {**_BEIT, "use_mask_token": True}),
    "beit-shared": ("Beit", ("ForImageClassification",), T.BeitConfig, {**_BEIT_SHARED, "use_mean_pooling": False}),
    "data2vec-vision": ("Data2VecVision", ("ForImageClassification", "Model"), T.Data2VecVisionConfig, _BEIT),
    "ijepa": ("IJepa", ("ForImageClassification", "Model"), T.IJepaConfig, VIT),
    "yolos": (
        "Yolos",
        ("ForObjectDetection",),
        T.YolosConfig,
        {**VIT, "image_size": [8, 8], "num_detection_tokens": 3},
    ),
    "swin": ("Swin", ("ForImageClassification",), T.SwinConfig, _SWIN),
    "swin-absolute": (
        "Swin",
        ("ForImageClassification",),
        T.SwinConfig,
        {**_SWIN, "use_absolute_embeddings": True, "qkv_bias": False},
    ),
    "swin2": ("Swinv2", ("ForImageClassification",), T.Swinv2Config, {**_SWIN, "depths": [1, 1]}),
}
FLOAT32_PARTS: tuple[str, ...] = ()

LAYER_KEYS = {"num_attention_heads": (2, CHANGES), "hidden_act": ("relu", CHANGES), "layer_norm_eps": (0.1, CHANGES)}
PICTURE_KEYS = {"image_size": (16, SHAPES), "patch_size": (2, SHAPES)}
_KEYS = LAYER_KEYS | PICTURE_KEYS
_SWIN_KEYS = {"hidden_act": ("relu", CHANGES), "layer_norm_eps": (0.1, CHANGES), "patch_size": (4, SHAPES)}
KEYS = {
    "vit/ViTForImageClassification": {
        **_KEYS,
        "pooler_act": ("relu", KEEPS),  # there is no pooler
        "is_causal": (True, CHANGES),
    },
    "vit/ViTModel": {"pooler_act": ("relu", CHANGES)},
    "vit-msn/ViTMSNForImageClassification": {**_KEYS, "hidden_act": ("gelu", CHANGES)},
    "vit-mae/ViTMAEModel": {**_KEYS, "mask_ratio": (0.25, CHANGES)},
    "vit-mae/ViTMAEForPreTraining": {
        **_KEYS,
        "mask_ratio": (0.25, CHANGES),
        "decoder_num_attention_heads": (2, CHANGES),
    },
    "dinov2-registers/Dinov2WithRegistersForImageClassification": _KEYS,
    "dinov3/DINOv3ViTModel": {
        **LAYER_KEYS,
        "num_attention_heads": (2, CHANGES),
        "rope_theta": (10.0, CHANGES),
        "patch_size": (2, SHAPES),
    },
    "ast/ASTForAudioClassification": {
        **LAYER_KEYS,
        "patch_size": (2, SHAPES),
        "frequency_stride": (4, CHANGES),
        "time_stride": (4, SHAPES),
        **dict.fromkeys(("num_mel_bins", "max_length"), (40, SHAPES)),
    },
    "deit/DeiTForImageClassificationWithTeacher": {**_KEYS, "pooler_act": ("relu", KEEPS)},
    "deit/DeiTModel": {"pooler_act": ("relu", CHANGES)},
    "dinov2/Dinov2ForImageClassification": _KEYS,
    "dinov2-swiglu/Dinov2ForImageClassification": {"hidden_act": ("relu", KEEPS)},  # its gate is a SiLU always
    "beit/BeitForImageClassification": {**_KEYS, "num_attention_heads": (2, SHAPES)},  # a bias a head
    "data2vec-vision/Data2VecVisionForImageClassification": {**_KEYS, "num_attention_heads": (2, SHAPES)},
    "ijepa/IJepaForImageClassification": {**_KEYS, "pooler_act": ("relu", KEEPS)},
    "yolos/YolosForObjectDetection": {**_KEYS, "image_size": ([8, 16], SHAPES)},
    "swin/SwinForImageClassification": {**_SWIN_KEYS, "num_heads": ([4, 3], SHAPES), "window_size": (4, SHAPES)},
    "swin2/Swinv2ForImageClassification": {
        **_SWIN_KEYS,
        "num_heads": ([4, 3], SHAPES),  # of how much cosines count
        "window_size": (4, CHANGES),
        "pretrained_window_sizes": ([4, 4], CHANGES),
        "image_size": (4, CHANGES),  # whose last windows have one patch
    },
}
TIED: tuple[str, ...] = ()
