"""MarkupLM."""

import transformers as T

from families import CHANGES, DECODER_HEADS, KEEPS, SMALL

FAMILIES = {
    "markuplm": (
        "MarkupLM",
        ("ForQuestionAnswering", *DECODER_HEADS),
        T.MarkupLMConfig,
        {
            **{**SMALL, "pad_token_id": 1, "max_depth": 3, "xpath_unit_hidden_size": 5},
            **{"max_xpath_tag_unit_embeddings": 9, "max_xpath_subs_unit_embeddings": 11},
            **{"tag_pad_id": 8, "subs_pad_id": 10},
        },
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ("markuplm",)  # the softmax of its attention

KEYS = {
    "markuplm/MarkupLMForQuestionAnswering": {
        "num_attention_heads": (2, CHANGES),
        "hidden_act": ("relu", CHANGES),
        "layer_norm_eps": (0.1, CHANGES),
        "pad_token_id": (3, CHANGES),
        "tag_pad_id": (7, KEEPS),  # a probe has tags
        "subs_pad_id": (7, KEEPS),
    },
}
TIED: tuple[str, ...] = ()
