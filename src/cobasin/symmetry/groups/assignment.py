"""The linear assignment problem, batched."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cobasin.errors import InputError
from cobasin.symmetry.groups.auction import auction

Rows = Callable[[slice], Tensor]
"""Rows of tables of gains, ``[*batch, rows, n]``, computed as they are asked for."""
PART = 1 << 16  # gains that are computed at once: few enough for the cache
EXACT = 4096  # sources, at most; of more an auction takes less time than the exact solver, and no table of float64


def assign(gain: Tensor) -> Tensor:
    """The permutation with the largest total gain.

    Args:
        gain: ``[*batch, n, n]``, what matching source j (row) to target i (column) gains.

    Returns:
        int64 ``[*batch, n]``: for every target its source. Where the best source of every target is already a
        permutation it is the optimum, and no solver is called. Of more than `EXACT` sources what an `auction` finds.
    """
    perm = gain.max(-2).indices
    return perm if is_permutation(perm).all() else assign_rows(lambda rows: gain[..., rows, :], gain.shape)


def assign_rows(rows: Rows, shape: Sequence[int], step: int | None = None) -> Tensor:
    """`assign` for gains of this shape, asked for once, ``step`` rows at a time.

    They are held on the CPU, in float64, those of large tables in their own dtype.
    """
    *batch, n, _ = shape
    step = step or max(1, PART // max(1, math.prod(batch) * n))
    cost, best = torch.empty(0), list[Tensor]()
    for start in range(0, n, step):
        gain = rows(slice(start, min(start + step, n)))
        if not start:  # contiguous float64, so that the exact solver makes no copy of its own
            cost = torch.empty(shape, dtype=gain.dtype if n > EXACT else torch.float64, device="cpu")
        cost[..., start : start + step, :] = -gain.cpu()
        largest, source = gain.max(-2)
        better = largest > best[0] if best else torch.ones_like(largest, dtype=torch.bool)
        found = largest, source + start
        best = [torch.where(better, new, old) for new, old in zip(found, best or found, strict=True)]
    perm = best[1]
    flat = perm.reshape(-1, n)
    unsolved = (~is_permutation(flat)).nonzero().flatten()
    tables = cost.reshape(-1, n, n)
    for k in unsolved.tolist():
        flat[k] = _solved(tables[k]).to(flat.device)
    return flat.reshape(perm.shape)


def _solved(cost: Tensor) -> Tensor:
    """For every target its source, at the least cost, or next to it."""
    if len(cost) > EXACT and (found := auction(cost)) is not None:
        return found
    from scipy.optimize import linear_sum_assignment  # dear to import, and models that are near never need it

    try:
        _, targets = linear_sum_assignment(cost.double().numpy())
    except ValueError as error:  # not a number
        raise InputError("the products of the weights are beyond float32; a model has diverged") from error
    return torch.as_tensor(targets).argsort()


def is_permutation(index: Tensor) -> Tensor:
    """Whether every number occurs once: bool ``[*batch]`` for int64 ``[*batch, n]``."""
    return (index.sort(-1).values == torch.arange(index.shape[-1], device=index.device)).all(-1)


def assign_lazily(bound: Tensor, gains: Sequence[Callable[[int, int], float]]) -> Tensor:
    """`assign` where the gain of a pair is dear and upper bounds on it are cheap; exact.

    Args:
        bound: ``[n, n]``, not below the gain of any pair.
        gains: of matching source j to target i: more bounds, from the cheapest on, and last the gain itself. They are
            asked for, in turn, of the pairs that the best assignment uses, until it uses none but those whose gain is
            known: no other assignment can then be better.
    """
    table, asked = bound.clone(), torch.zeros_like(bound, dtype=torch.int64)
    while True:
        perm = assign(table)
        unknown = [(j, i) for i, j in enumerate(perm.tolist()) if asked[j, i] < len(gains)]
        if not unknown:
            return perm
        for j, i in unknown:
            table[j, i] = gains[int(asked[j, i])](j, i)
            asked[j, i] += 1
