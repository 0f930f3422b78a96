"""Model stock: how far to go from the base model to the average, from the angle between the fine-tuned models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from cobasin.fusion.arithmetic import widened
from cobasin.fusion.average import linear
from cobasin.fusion.registry import method

SINGULAR = 1e-6


@method("model_stock", reference="Jang et al., Model Stock, ECCV 2024", fewest=2)
def model_stock(base: Tensor, tensors: Sequence[Tensor], *, filter_wise: bool = False) -> Tensor:
    """``t mean + (1 - t) base`` with ``t = N cos θ / (1 + (N - 1) cos θ)``.

    θ is the angle between the offsets of the N models from the base model; ``cos θ`` is averaged over all pairs. An
    offset of zero is at right angles to all. Where the denominator is 0 (below 1e-6), ``t = 0``: the base model.

    Args:
        base: the base model's tensor.
        tensors: two or more, of its shape.
        filter_wise: a ``t`` for every row (index of the first axis) instead of one for the tensor; vectors are one row.
    """
    base, *others = widened(base, *tensors)
    n = len(others)
    offsets = [other - base for other in others]
    rows = [offset.flatten(1) if filter_wise and base.dim() > 1 else offset.flatten()[None] for offset in offsets]
    norms = [(row * row).sum(1).sqrt() for row in rows]
    norms = [norm.masked_fill(norm == 0, 1.0) for norm in norms]
    cosines = [(rows[i] * rows[j]).sum(1) / (norms[i] * norms[j]) for i, j in combinations(range(n), 2)]
    cosine = torch.stack(cosines).mean(0)
    denominator = 1 + (n - 1) * cosine
    singular = denominator.abs() < SINGULAR
    t = torch.where(singular, 0.0, n * cosine / denominator.masked_fill(singular, 1.0))
    mean = linear(rows, weight=(1.0,) * n)
    return base + (t[:, None] * mean).view_as(base)
