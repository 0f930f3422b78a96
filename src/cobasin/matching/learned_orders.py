"""Learning the order of FFN neurons: a hard assignment whose gradient goes straight through to the scores of pairs.

A pair of neurons starts with the cosine of their weights, the matched pairs with a bonus on top, and learning adds to
the scores of all of them (as Theus et al., *Generalized Linear Mode Connectivity for Transformers*, NeurIPS 2025, do).
That is n² parameters for a space of n neurons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from cobasin.matching.state import Match, orders
from cobasin.symmetry.action import in_old_order
from cobasin.symmetry.form import Form
from cobasin.symmetry.groups import Diagonal, Gram, Group, Permutation, Value
from cobasin.symmetry.groups.assignment import assign
from cobasin.symmetry.groups.permutation import at_pairs
from cobasin.symmetry.keys import Key
from cobasin.symmetry.state import on_cpu

BONUS = 0.05
"""By how much the score of a matched pair is above that of any other of its target, at the least."""


def neurons(form: Form, groups: Mapping[Key, Group]) -> list[Key]:
    """The orders of FFN neurons among these keys."""
    return list(orders(form, groups, "ffn"))


def pairs(match: Match) -> dict[Key, Value]:
    """The scores that the orders of FFN neurons start with, where the match stands.

    Returns:
        For every order ``scores``, float32 ``[*batch, source, target]``: of these the present order is the best
        assignment, and the best for every target alone. With signs or scales ``ratio`` as well, in the same shape:
        what the best one of a pair is over that of the pair's target now.
    """
    return {key: _pairs(match, key) for key in neurons(match.form, match.groups)}


def assigned(value: Value, pairs: Value, move: Tensor) -> Value:
    """The order that moved scores assign, as far as it differs from ``value``, and what its gradient needs.

    Args:
        value: with the scale of every target's neuron, where there are scales, for its partner at the start.
        pairs: of this order.
        move: what is added to the scores.
    """
    scores = pairs["scores"].to(move.device) + move.float()  # in float32 always: a near tie must not fall both ways
    perm = assign(scores.detach())
    moved: Value = {"perm": perm, "scores": scores}
    if "ratio" in pairs:
        ratio = pairs["ratio"].to(move)
        now = at_pairs(ratio, perm)
        moved |= {"scale": value["scale"].to(move) * now, "ratio": ratio / now[..., None, :]}
    return moved


def _pairs(match: Match, key: Key) -> Value:
    group, value = match.groups[key], match.values[key]
    assert isinstance(group, Permutation)
    gram = match.gram(key, group=replace(group, scaled=True))
    found: Value = {"scores": _cosine(gram, group.signed)}
    if group.charged:
        norms = [gram.norms(charge)[0][..., None] for charge in (1, -1)] if group.scaled else []
        found |= Diagonal(group.signed, group.scaled).solve(gram.total(1), gram.total(-1), norms)
    found = in_old_order(match.spec, match.values, key, on_cpu(found))  # the Gram lists experts in their new order
    scores, perm = found["scores"], value["perm"]
    now = at_pairs(scores, perm)[..., None, :]
    matched = torch.zeros_like(scores, dtype=torch.bool).scatter_(-2, perm[..., None, :], True)
    pairs = {"scores": torch.where(matched, now + BONUS, scores.minimum(now)).float()}
    if group.charged:
        pairs["ratio"] = torch.where(matched, 1.0, found["scale"] / value["scale"][..., None, :])
    return pairs


def _cosine(gram: Gram, signed: bool) -> Tensor:
    """The mean cosine of a pair, ``[*batch, source, target]``, over its sides that are scaled apart; 0 of zeros."""

    def cosine(charge: int) -> Tensor:
        source, target = (norm.sqrt() for norm in gram.norms(charge))
        sizes = source[..., :, None] * target[..., None, :]
        return gram.total(charge) / torch.where(sizes > 0, sizes, 1.0)

    charged = cosine(1) + cosine(-1)
    return (cosine(0) + (charged.abs() if signed else charged)) / len(gram.cross)
