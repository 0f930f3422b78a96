"""The linear assignment problem, batched."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def assign(gain: Tensor) -> Tensor:
    """The permutation with the largest total gain.

    Args:
        gain: ``[*batch, n, n]``, what matching source j (row) to target i (column) gains.

    Returns:
        int64 ``[*batch, n]``: for every target its source. Where the best source of every target is already a
        permutation it is the optimum, and no solver is called.
    """
    perm = gain.argmax(-2)
    flat_perm, flat_gain = perm.reshape(-1, perm.shape[-1]), gain.reshape(-1, *gain.shape[-2:])
    every_source = torch.arange(gain.shape[-1], device=gain.device)
    unsolved = (flat_perm.sort(-1).values != every_source).any(-1).nonzero().flatten().tolist()
    for k in unsolved:
        from scipy.optimize import linear_sum_assignment  # dear to import, and models that are near never need it

        # contiguous float64, so that the solver makes no copy of its own
        cost = flat_gain[k].to(torch.float64, copy=True, memory_format=torch.contiguous_format).neg_()
        sources, targets = linear_sum_assignment(cost.cpu().numpy())
        flat_perm[k, targets] = torch.as_tensor(sources, device=gain.device)
    return flat_perm.reshape(perm.shape)


def assign_lazily(bound: Tensor, value: Callable[[int, int], float]) -> Tensor:
    """`assign` where the gain of a pair is dear and an upper bound on it is cheap; exact.

    Args:
        bound: ``[n, n]``, not below the gain of any pair.
        value: the gain of matching source j to target i. It is asked for until every pair that the best
            assignment uses is known: no other assignment can then be better.
    """
    table, known = bound.clone(), torch.zeros(bound.shape, dtype=torch.bool)
    while True:
        perm = assign(table)
        unknown = [(j, i) for i, j in enumerate(perm.tolist()) if not known[j, i]]
        if not unknown:
            return perm
        for j, i in unknown:
            table[j, i], known[j, i] = value(j, i), True
