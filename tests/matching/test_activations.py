"""Activations beside the weights: how much they count."""

import pytest
import torch

from cobasin.matching.activations import ActivationPair, with_activations
from cobasin.matching.choice import Choice
from cobasin.matching.state import Match
from random_states import form_of, random_state

WEIGHT = "encoder.layer.0.intermediate.dense.weight"


@pytest.mark.parametrize("size", [0.01, 1.0, 100.0])
def test_either_side_of_a_map_counts_with_its_share_of_the_weight(size):
    """However large the activations are, and however many rows there are of them."""
    form = form_of("bert")
    match = Match.of(form, Choice.parse("full"), random_state(form.spec, 1), random_state(form.spec, 2))
    weights = match.source[WEIGHT], match.anchor[WEIGHT]
    draw = torch.Generator().manual_seed(0)
    rows = {
        side: tuple(size * torch.randn(7, weights[0].shape[axis], generator=draw).double() for _ in range(2))
        for side, axis in (("out", 0), ("in", 1))
    }
    pairs = {
        f"{WEIGHT}:{side}": ActivationPair(axis, side == "in", rows[side]) for side, axis in (("out", 0), ("in", 1))
    }
    more = with_activations(match, pairs)
    wanted = 0.3 * float(weights[0].norm() * weights[1].norm())
    for name in pairs:
        assert float(more.source[name].norm() * more.anchor[name].norm()) == pytest.approx(wanted)
    assert set(more.tensors) == {*match.tensors, *pairs}


@pytest.mark.parametrize("silent", [0, 1])
def test_activations_that_say_nothing_are_left_out(silent):
    """Those of a layer that is dead in one of the models; the same map of another layer counts."""
    form = form_of("bert")
    match = Match.of(form, Choice.parse("full"), random_state(form.spec, 1), random_state(form.spec, 2))
    names = [f"{WEIGHT.replace('layer.0', f'layer.{layer}')}:out" for layer in (0, 1)]
    found = [[torch.ones(3, len(match.source[WEIGHT])) for _ in range(2)] for _ in names]
    found[1][silent] *= 0
    more = with_activations(
        match, {name: ActivationPair(0, False, (a, b)) for name, (a, b) in zip(names, found, strict=True)}
    )
    assert set(more.tensors) == {*match.tensors, names[0]}
