"""Post-norm encoders."""

import transformers as T

from families import ENCODER_HEADS, SMALL

FAMILIES = {
    "bert": ("Bert", ENCODER_HEADS, T.BertConfig, SMALL),
    "bert-untied-relu": (
        "Bert",
        ("ForMaskedLM",),
        T.BertConfig,
        {**SMALL, "tie_word_embeddings": False, "hidden_act": "relu"},
    ),
    "roberta": ("Roberta", ENCODER_HEADS, T.RobertaConfig, {**SMALL, "pad_token_id": 1}),
    "distilbert": (
        "DistilBert",
        ENCODER_HEADS,
        T.DistilBertConfig,
        {
            "vocab_size": 40,
            "dim": 24,
            "n_heads": 4,
            "n_layers": 2,
            "hidden_dim": 20,
            "max_position_embeddings": 32,
        },
    ),
}
FLOAT32_PARTS: tuple[str, ...] = ()
