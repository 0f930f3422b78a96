"""A tiny random model of every declared architecture, head and variant."""

from __future__ import annotations

import copy

import torch
import transformers as T

from cobasin.checkpoint import Checkpoint, load

T.logging.set_verbosity_error()

_SMALL = {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "vocab_size": 40,
    "max_position_embeddings": 32,
}
_DEBERTA = {**_SMALL, "relative_attention": True, "type_vocab_size": 0, "pos_att_type": "c2p|p2c"}
_DEBERTA2 = {**_DEBERTA, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "position_biased_input": False}
_GPT2 = {"vocab_size": 40, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_inner": 20, "n_positions": 32}
_ENCODER_HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
_DECODER_HEADS = ("ForSequenceClassification", "ForTokenClassification", "Model")

# name -> (class prefix, heads, config class, options)
_FAMILIES = {
    "bert": ("Bert", _ENCODER_HEADS, T.BertConfig, _SMALL),
    "bert-untied-relu": (
        "Bert",
        ("ForMaskedLM",),
        T.BertConfig,
        {**_SMALL, "tie_word_embeddings": False, "hidden_act": "relu"},
    ),
    "roberta": ("Roberta", _ENCODER_HEADS, T.RobertaConfig, {**_SMALL, "pad_token_id": 1}),
    "distilbert": (
        "DistilBert",
        _ENCODER_HEADS,
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
    "deberta": ("Deberta", _ENCODER_HEADS, T.DebertaConfig, {**_DEBERTA, "max_relative_positions": 8}),
    "deberta-v2-shared": (
        "DebertaV2",
        _ENCODER_HEADS,
        T.DebertaV2Config,
        {**_DEBERTA2, "share_att_key": True},
    ),
    "deberta-v2-separate": (
        "DebertaV2",
        _ENCODER_HEADS,
        T.DebertaV2Config,
        {**_DEBERTA2, "share_att_key": False, "conv_kernel_size": 3},
    ),
    "deberta-v2-new-head": ("DebertaV2", ("ForMaskedLM",), T.DebertaV2Config, {**_DEBERTA2, "legacy": False}),
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
    "gpt2": ("GPT2", ("LMHeadModel", *_DECODER_HEADS), T.GPT2Config, {**_GPT2, "pad_token_id": 0}),
    "gpt2-untied": ("GPT2", ("LMHeadModel",), T.GPT2Config, {**_GPT2, "tie_word_embeddings": False}),
    "llama-gqa": (
        "Llama",
        ("ForCausalLM", *_DECODER_HEADS),
        T.LlamaConfig,
        {**_SMALL, "num_key_value_heads": 2, "pad_token_id": 0},
    ),
    "llama-mha-biased": (
        "Llama",
        ("ForCausalLM",),
        T.LlamaConfig,
        {**_SMALL, "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    ),
    "llama-mqa-tied": (
        "Llama",
        ("ForCausalLM",),
        T.LlamaConfig,
        {**_SMALL, "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
}
CASES = [f"{family}/{prefix}{head}" for family, (prefix, heads, *_) in _FAMILIES.items() for head in heads]

# Transformers computes RMSNorm and rotary angles of Llama, and the norms of DeBERTa v1, in float32 always.
FLOAT32_PARTS = ("llama", "deberta/")


def tolerance(case: str) -> float:
    """Largest relative change of float64 logits that is rounding."""
    return 5e-6 if case.startswith(FLOAT32_PARTS) else 1e-9


def model(case: str, seed: int = 0, dtype: torch.dtype = torch.float64, pooler: bool = True) -> T.PreTrainedModel:
    """The model of a case, with every parameter generic: biases and offsets away from 0, gains away from 1."""
    family, architecture = case.split("/")
    _, _, config_class, options = _FAMILIES[family]
    config = config_class(**copy.deepcopy(options))
    torch.manual_seed(seed)
    cls = getattr(T, architecture)
    made = cls(config) if pooler else cls(config, add_pooling_layer=False)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    made.tie_weights()
    return made.to(dtype).eval()


def checkpoint(case: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> Checkpoint:
    """The model of a case as a checkpoint in memory."""
    return load(model(case, seed, dtype))
