"""The linear assignment problem, batched."""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
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
    for k in (flat_perm.sort(-1).values != every_source).any(-1).nonzero().flatten().tolist():
        # as the solver keeps it, so that it makes no copies of its own
        cost = flat_gain[k].T.to(torch.float64, copy=True).neg_()
        targets, sources = linear_sum_assignment(cost.cpu().numpy())
        flat_perm[k, targets] = torch.as_tensor(sources, device=gain.device)
    return flat_perm.reshape(perm.shape)
