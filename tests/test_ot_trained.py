"""Fusion by optimal transport of two models that were trained apart."""

import json

import pytest
import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.running import instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.fusion.registry import find
from cobasin.statistics.modules import holders_of, writing
from cobasin.symmetry.state import Lazy
from real_models import shared


@pytest.fixture(scope="module")
def models():
    return [Typed.of(load(shared("models", f"gpt2-shakespeare-{i}"))) for i in (0, 1)]


@pytest.fixture(scope="module")
def blocks():
    """Characters [blocks, 128]: some to compare the models on, others to measure their loss on."""
    characters = json.loads((shared("models", "gpt2-shakespeare-0") / "chars.json").read_text("utf-8"))
    text = (shared("data", "lm") / "tinyshakespeare" / "train.txt").read_text("utf-8")[: 128 * 24]
    return torch.tensor([characters.index(one) for one in text]).reshape(24, 128).split([8, 16])


def outputs_of(typed, blocks):
    model, found = instantiate(typed.checkpoint, torch.float32), {}
    holders = {name: modules[:1] for name, modules in holders_of(model, typed).items()}
    with writing(holders, lambda name, output: found.update({name: output.flatten(0, -2)})), torch.no_grad():
        model(input_ids=blocks)
    return found


def loss(checkpoint, blocks) -> float:
    with torch.no_grad():
        return float(instantiate(checkpoint, torch.float32)(input_ids=blocks, labels=blocks).loss)


@pytest.mark.parametrize("name", ["ot_wts", "ot_acts", "ot_acts_emd"])
def test_it_is_better_than_the_average(models, blocks, name):
    anchor, method = models[0], find(name)
    values = {key: one.default for key, one in method.parameters.items()} | {"weight": (0.5, 0.5)}
    given = [outputs_of(model, blocks[0]) for model in models] if method.statistics else None

    def merged(states):
        fuse = lambda key: method.fuse({"tensors": [state[key] for state in states]}, values)  # noqa: E731
        return loss(anchor.derived(Lazy(anchor, fuse)), blocks[1])

    assert merged(method.coupled(anchor, models, 0, given, values)) < merged(models) - 0.25
