"""Learning the order of a residual stream that can only be reordered, as behind the norms of BERT.

Between orders lie the doubly stochastic matrices. Learning starts at a soft one, half of which is the present order and
half all others alike, and moves the logits of all pairs; Sinkhorn's steps make them doubly stochastic (Mena et al.,
*Learning Latent Permutations with Gumbel-Sinkhorn Networks*, ICLR 2018). On the way they are sharpened, until the order
that they assign stays, and the rest of the element learns with it. Where coordinates have signs, each pair has the one
by which its weights agree best.

A model computes what it did under an order only, so that is what held-out data see at any time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from cobasin.matching.state import Match, orders
from cobasin.symmetry.form import Form
from cobasin.symmetry.groups import Diagonal, Group, Permutation, Value
from cobasin.symmetry.groups.assignment import assign
from cobasin.symmetry.groups.permutation import at_pairs
from cobasin.symmetry.keys import Key
from cobasin.symmetry.state import on_cpu

SOFT = 0.6  # share of all steps, after which the order stays
SHARPER = 6.6  # times as sharp as at the start are the logits then
SPEED = 30.0  # of scores, over all else that is learned
_SINKHORN = 20  # steps


def streams(form: Form, groups: Mapping[Key, Group]) -> dict[Key, Permutation]:
    """The orders of residual streams among these keys."""
    return orders(form, groups, "residual")


def signs(match: Match) -> dict[Key, Value]:
    """The signs by which the coordinates of streams agree best, where a match stands.

    Returns:
        For every order of a stream that has signs ``ratio[source, target]``: that of a pair over that of the target
        now.
    """
    found = dict[Key, Value]()
    for key, group in streams(match.form, match.groups).items():
        value = match.values[key]
        if group.signed:
            gram = match.gram(key)
            best = on_cpu(Diagonal(signed=True).solve(gram.total(1), gram.total(-1), []))["scale"]
            ratio = best / value["scale"].sign()[None]
            found[key] = {"ratio": ratio.scatter(-2, value["perm"][None], 1.0)}
    return found


def softened(value: Value, move: Tensor, share: float, ratio: Tensor | None = None) -> Value:
    """An element between the orders.

    Args:
        value: where learning starts.
        move: what is added to the scores, ``[source, target]``.
        share: of the steps before the order stays that are done.
        ratio: where there are signs, see `signs`.
    """
    half = math.log(len(move))  # by which the present order's pairs weigh as much as all others
    matrix = _doubly_stochastic(_scores(value, move) * half * SHARPER**share)
    return {"soft": matrix} | ({} if ratio is None else {"ratio": ratio.to(matrix)})


@torch.no_grad()
def settled(value: Value, move: Tensor, ratio: Tensor | None = None) -> Value:
    """The order that the scores assign.

    Args:
        value, move, ratio: as of `softened`.
    """
    perm = assign(_scores(value, move))
    if ratio is None:
        return {"perm": perm}
    return {"perm": perm, "scale": value["scale"].to(move) * at_pairs(ratio.to(move), perm)}


def _scores(value: Value, move: Tensor) -> Tensor:
    """Of all pairs, 1 of the present order's and 0 of others at the start; in float32 always, as near ties are."""
    start = torch.zeros_like(move, dtype=torch.float32)
    return start.scatter_(-2, value["perm"].to(move.device)[None], 1.0) + SPEED * move.float()


def _doubly_stochastic(logits: Tensor) -> Tensor:
    for _ in range(_SINKHORN):
        logits = logits - logits.logsumexp(-1, keepdim=True)
        logits = logits - logits.logsumexp(-2, keepdim=True)
    return logits.exp()
