"""Fixtures shared by the tests."""

import os
import signal

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

# Tests run side by side on tiny tensors: more threads only spin against each other; nor in what the tests start.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# Ctrl-C reaches the tests and what they start, also of a suite behind a shell's &, which would ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def tiny_bert():
    """A random two-layer BERT with tied embeddings."""
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=24,
        num_attention_heads=4,
        num_hidden_layers=2,
        intermediate_size=20,
        vocab_size=40,
        max_position_embeddings=32,
    )
    return BertForMaskedLM(config).eval()


@pytest.fixture
def folder(tiny_bert, tmp_path):
    """The tiny BERT as a Hugging Face folder with one weight file."""
    tiny_bert.save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


@pytest.fixture
def sharded(tiny_bert, tmp_path):
    """The tiny BERT as a Hugging Face folder with two shards and their index."""
    tiny_bert.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    return tmp_path / "sharded"
