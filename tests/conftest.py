"""Fixtures shared by the tests."""

import gc
import os
import re
import signal

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, GenerationConfig, PreTrainedConfig

from cobasin import architectures
from cobasin.execution.jobs import torch_threads
from cobasin.matching import weights

# Tests run side by side on tiny tensors: more threads only wait for each other; nor in what the tests start.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# Transformers writes every config that it reads out for its log, which no test looks at, and that takes longer than to
# read it.
PreTrainedConfig.__repr__ = GenerationConfig.__repr__ = object.__repr__

# It compiles the patterns of names anew for every model, of which the hundreds here have more than Python keeps.
re._MAXCACHE = 1 << 16

# Ctrl-C reaches the tests and what they start, also of a suite behind a shell's &, which would ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """What is imported stays, and a test leaves little: seldom a search for unreachable cycles, none through all."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(params=[1, 2, 8])
def threads(request):
    """How many threads torch has."""
    with torch_threads(request.param):
        yield request.param


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


@pytest.fixture
def registry(monkeypatch):
    """What a test declares is known until its end."""
    monkeypatch.setattr(architectures, "_DECLARED", architectures.registered())


@pytest.fixture
def few_rounds(monkeypatch):
    """Matching by weights that stops long before it is done: what is found keeps the function as well."""
    monkeypatch.setattr(weights, "MAX_ROUNDS", 2)


@pytest.fixture
def one_round(monkeypatch):
    """Matching by weights that is even shorter: from where the models stand, with all that is free, scales as well."""
    monkeypatch.setattr(weights, "within", lambda match, share: True)
    monkeypatch.setattr(weights, "MAX_ROUNDS", 1)


@pytest.fixture
def float64_throughout(monkeypatch):
    """What Transformers computes in float32 always is computed in float64: what is left is the rounding of that."""

    def widened(call):
        def wide(value):
            return torch.float64 if value is torch.float32 else value

        return lambda *args, **named: call(*map(wide, args), **{name: wide(value) for name, value in named.items()})

    reduce = torch.Tensor.scatter_reduce  # of TAPAS, into a tensor of float32
    monkeypatch.setattr(
        torch.Tensor, "scatter_reduce", lambda out, *, src, **named: reduce(out.to(src.dtype), src=src, **named)
    )
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    for name in ("to", "type", "softmax"):
        monkeypatch.setattr(torch.Tensor, name, widened(getattr(torch.Tensor, name)))
    monkeypatch.setattr(torch, "sum", widened(torch.sum))
    monkeypatch.setattr(torch.nn.functional, "softmax", widened(torch.nn.functional.softmax))
