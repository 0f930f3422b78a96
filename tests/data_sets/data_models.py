"""Tiny random models for the tests of data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers as T

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.errors import InputError
from real_models import minilm

SMALL = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}


def bert(head: str = "ForSequenceClassification", folder: Path | None = None, **options) -> Checkpoint:
    """A BERT that reads what the tokenizer of the trained small encoder writes."""
    torch.manual_seed(0)
    config = T.BertConfig(**{**SMALL, "vocab_size": 30522, "max_position_embeddings": 64, **options})
    checkpoint = load(getattr(T, f"Bert{head}")(config))
    checkpoint.folder = folder or minilm()
    return checkpoint


def named(*labels: str) -> dict:
    """Options of a config for these labels."""
    return {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}


def vit(folder: Path | None = None, **options) -> Checkpoint:
    """A ViT for images of 8x8."""
    torch.manual_seed(0)
    config = T.ViTConfig(**{**SMALL, "image_size": 8, "patch_size": 4, "num_labels": 10, **options})
    checkpoint = load(T.ViTForImageClassification(config))
    checkpoint.folder = folder
    return checkpoint


def jsonl(path: Path, *records: dict) -> str:
    """Write an object a line."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def refusal(function, *args, **options) -> str:
    """The one line that a call is refused with."""
    with pytest.raises(InputError) as caught:
        function(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
