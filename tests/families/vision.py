"""Vision transformers."""

import transformers as T

FAMILIES = {
    "vit": (
        "ViT",
        ("ForImageClassification", "Model"),
        T.ViTConfig,
        {
            "hidden_size": 24,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "intermediate_size": 20,
            "image_size": 8,
            "patch_size": 4,
            "num_labels": 3,
        },
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ()
