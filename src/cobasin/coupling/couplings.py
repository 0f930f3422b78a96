"""Couplings of two sets of neurons by optimal transport, from how alike the neurons are.

The cost of a pair is the Euclidean distance of its features, scaled to unit length, divided by the largest
distance (Imfeld et al., Transformer Fusion with Optimal Transport, ICLR 2024, and its published configuration). The
features of weights are the incoming weights; those of activations are standardised, so that the distance is
``√(2 - 2ρ)`` with the correlation ρ.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

Solver = Callable[[Tensor], Tensor]
"""From a cost ``[n, n]`` (source, anchor) in float64, at most 1, to a coupling of that shape; its columns sum to 1."""

_FEATURES = 1 << 13  # converted to float64 at a time
_LOG_DOMAIN = 1e-2  # regularisation below which exp(-cost / regularisation) is left to the logarithm
_ROUNDS = 1000


class Likeness:
    """Inner products of the features of all pairs of neurons, summed up feature by feature.

    Args:
        shape: ``(*batch, n)``, of the neurons.
    """

    def __init__(self, shape: tuple[int, ...]):
        self.source, self.anchor = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
        self.cross = torch.zeros(*shape, shape[-1], dtype=torch.float64)

    def add(self, source: Tensor, anchor: Tensor) -> None:
        """Add features ``[*batch, n, features]`` of both models."""
        for x, y in zip(source.split(_FEATURES, -1), anchor.split(_FEATURES, -1), strict=True):
            x, y = x.double(), y.double()
            self.source += x.square().sum(-1)
            self.anchor += y.square().sum(-1)
            self.cross += x @ y.mT

    def cost(self) -> Tensor:
        """``[*batch, n, n]``: distances of the features scaled to unit length, at most 1."""
        x, y = self.source.unsqueeze(-1), self.anchor.unsqueeze(-2)
        cosine = self.cross / (x * y).sqrt().clamp_min(torch.finfo(torch.float64).tiny)
        # a neuron without any feature has length zero
        distance = ((x > 0).double() + (y > 0) - 2 * cosine).clamp_min(0).sqrt()
        return distance / distance.amax((-2, -1), keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)


def standardised(activations: Tensor) -> Tensor:
    """Activations ``[..., rows]`` less their mean, scaled to unit length; zero where they do not vary."""
    centred = activations.double()
    centred = centred - centred.mean(-1, keepdim=True)
    norm, size = centred.norm(dim=-1, keepdim=True), activations.double().norm(dim=-1, keepdim=True)
    return torch.where(norm > 1e-6 * size, centred / norm.clamp_min(torch.finfo(torch.float64).tiny), 0.0)


def hard(cost: Tensor) -> Tensor:
    """The exact coupling (network simplex, ``ot.emd``): of uniform marginals it is a permutation matrix."""
    import ot

    uniform = torch.full((len(cost),), 1 / len(cost), dtype=torch.float64)
    plan = ot.emd(uniform, uniform, cost, numItermax=100 * len(cost) ** 2 + 100_000)
    return (plan * len(cost)).round()


def soft(cost: Tensor, regularization: float) -> Tensor:
    """The coupling with entropic regularisation (Sinkhorn, ``ot.sinkhorn``), for uniform marginals.

    Below a regularisation of 0.01 it is computed in the logarithm, and reached from there by halving: Sinkhorn's
    iteration takes the longer the smaller the regularisation is.
    """
    import ot

    uniform = torch.full((len(cost),), 1 / len(cost), dtype=torch.float64)
    sinkhorn: Any = ot.sinkhorn  # what it returns depends on its arguments
    solve, start = partial(sinkhorn, uniform, uniform, cost, warn=False), None
    if regularization < _LOG_DOMAIN:
        solve, step = partial(solve, method="sinkhorn_log"), _LOG_DOMAIN
        while step > regularization:
            _, log = solve(reg=step, numItermax=_ROUNDS // 10, warmstart=start, log=True)
            smaller = max(step / 2, regularization)
            start = tuple(log[potential] * step / smaller for potential in ("log_u", "log_v"))
            step = smaller
    plan = solve(reg=regularization, numItermax=_ROUNDS, warmstart=start)
    return plan / plan.sum(0)
