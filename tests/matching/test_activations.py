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
