"""Vision transformers."""

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
_VIT = {**_PICTURE, "intermediate_size": 20}
_DINO = {**_PICTURE, "mlp_ratio": 1}
_TEACHER = "ForImageClassificationWithTeacher"
_BEIT = {**_VIT, "use_relative_position_bias": True}
_BEIT_SHARED = {**_VIT, "use_shared_relative_position_bias": True, "use_absolute_position_embeddings": True}

FAMILIES = {
    "vit": ("ViT", ("ForImageClassification", "Model"), T.ViTConfig, _VIT),
    "vit-wide-heads": ("ViT", ("ForImageClassification",), T.ViTConfig, {**_VIT, "head_dim": 8}),
    "deit": ("DeiT", ("ForImageClassification", _TEACHER, "Model"), T.DeiTConfig, _VIT),
    # only bare models read the mask token
    "dinov2": ("Dinov2", ("ForImageClassification",), T.Dinov2Config, {**_DINO, "use_mask_token": False}),
    "dinov2-masked": ("Dinov2", ("Model",), T.Dinov2Config, _DINO),
    "dinov2-swiglu": (
        "Dinov2",
        ("ForImageClassification",),
        T.Dinov2Config,
        {**_DINO, "use_mask_token": False, "use_swiglu_ffn": True},
    ),
    "beit": ("Beit", ("ForImageClassification",), T.BeitConfig, _BEIT),
    "beit-masked": ("Beit", ("Model",), T.BeitConfig, {**_BEIT, "use_mask_token": True}),
    "beit-shared": ("Beit", ("ForImageClassification",), T.BeitConfig, {**_BEIT_SHARED, "use_mean_pooling": False}),
}
FLOAT32_PARTS: tuple[str, ...] = ()

LAYER_KEYS = {"num_attention_heads": (2, CHANGES), "hidden_act": ("relu", CHANGES), "layer_norm_eps": (0.1, CHANGES)}
PICTURE_KEYS = {"image_size": (16, SHAPES), "patch_size": (2, SHAPES)}
_KEYS = LAYER_KEYS | PICTURE_KEYS
KEYS = {
    "vit/ViTForImageClassification": {
        **_KEYS,
        "pooler_act": ("relu", KEEPS),  # there is no pooler
        "is_causal": (True, CHANGES),
    },
    "vit/ViTModel": {"pooler_act": ("relu", CHANGES)},
    "deit/DeiTForImageClassificationWithTeacher": {**_KEYS, "pooler_act": ("relu", KEEPS)},
    "deit/DeiTModel": {"pooler_act": ("relu", CHANGES)},
    "dinov2/Dinov2ForImageClassification": _KEYS,
    "dinov2-swiglu/Dinov2ForImageClassification": {"hidden_act": ("relu", KEEPS)},  # its gate is a SiLU always
    "beit/BeitForImageClassification": {**_KEYS, "num_attention_heads": (2, SHAPES)},  # a bias a head
}
TIED: tuple[str, ...] = ()
