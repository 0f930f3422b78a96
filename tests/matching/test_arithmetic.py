"""Short arithmetic finds the orders of neurons of real, independently trained models that float64 finds."""

import pytest
import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.typed import Typed
from cobasin.finding.match import match
from real_models import shared

FAMILIES = ["cifar10-vit-seed", "gpt2-shakespeare-", "llama-shakespeare-"]


@pytest.fixture(params=FAMILIES)
def pair(request):
    return [Typed.of(load(shared("models", f"{request.param}{seed}"))) for seed in (1, 0)]


def orders(pair, dtype):
    source, anchor = (model.derived(model, dtype) for model in pair)
    return torch.cat([value["perm"] for value in match(source, anchor, "ffn").values.values()])


def rounded(model, dtype):
    return Typed.of(model.derived({name: model[name].to(dtype).float() for name in model}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_orders_are_those_of_float64(pair, dtype):
    files = [rounded(model, dtype) for model in pair]
    assert torch.equal(orders(files, dtype), orders(files, torch.float64))


def test_coarser_weights_have_other_orders(pair):
    """The control: eight bits would show."""
    eight = [rounded(model, torch.float8_e4m3fn) for model in pair]
    assert not torch.equal(orders(eight, torch.float32), orders(pair, torch.float64))
