"""What the tests of stacking share: recipes, and a model of three layers."""

from functools import cache

import torch

from cobasin.checkpoints.checkpoint import Checkpoint, load
from tiny_models import model

LLAMA = "llama-gqa/LlamaForCausalLM"


def slice_of(name: str, first: int, stop: int, **own) -> dict:
    return {"sources": [{"model": name, "layer_range": [first, stop], **own}]}


def recipe(*slices: dict, **keys) -> dict:
    return {"merge_method": "passthrough", "slices": list(slices), **keys}


@cache
def three_layers(seed: int = 0) -> Checkpoint:
    made = model(LLAMA, seed)
    made.config.num_hidden_layers = 3
    torch.manual_seed(seed)
    return load(type(made)(made.config).double())
