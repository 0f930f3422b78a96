"""SCE: select what varies most between task vectors, calculate how much each counts, erase the minority's signs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from annotated_types import Gt, Le
from torch import Tensor

from cobasin.fusion.arithmetic import by_slices, of_slices
from cobasin.fusion.registry import method
from cobasin.fusion.task_vectors import stacked_vectors


@method("sce", reference="Wan et al., FuseChat, 2024", fewest=2)
def sce(
    base: Tensor,
    tensors: Sequence[Tensor],
    dtype: torch.dtype | None = None,
    *,
    select_topk: Annotated[float, Gt(0), Le(1)] = 1.0,
) -> Tensor:
    """The mean of what varies most between task vectors, weighted by their sizes, where signs agree.

    Of the positions whose entries differ between the task vectors, the ``select_topk`` with the highest variance are
    kept, and those as high as the last of them; with 1 all are, also those that do not differ. A model then counts by
    the sum of the squares of its entries. An entry is the mean over the models whose sign is that of the sum over all.

    Args:
        base: what the task vectors start from.
        tensors: two or more, of its shape.
        dtype: of the result; float32 or better by default.
        select_topk: the part of the positions to keep; the paper's τ.
    """
    models = base, *tensors
    least = _least(models, select_topk)

    def squares(_: int, parts: list[Tensor]) -> Tensor:
        return (_selected(parts, least) ** 2).sum(1)

    sizes = torch.stack(of_slices(squares, *models)).double().sum(0)
    shares = sizes / sizes.sum() if sizes.any() else torch.full_like(sizes, 1 / len(sizes))

    def merged(_: int, parts: list[Tensor]) -> Tensor:
        deltas = _selected(parts, least)
        majority = torch.ones_like(deltas[0]).copysign_(deltas.sum(0))
        counting = shares.to(deltas)[:, None] * (deltas * majority > 0)
        total = counting.sum(0)
        return parts[0] + (counting * deltas).sum(0) / total.masked_fill_(total == 0, 1.0)

    return by_slices(merged, *models, dtype=dtype)


def _least(models: Sequence[Tensor], part: float) -> float:
    """The least variance of what is selected."""
    if part == 1:
        return 0.0
    variances = by_slices(lambda _, parts: _variance(stacked_vectors(parts)), *models).view(-1).cpu().numpy()
    count = int(part * np.count_nonzero(variances))
    if not count:
        return np.inf
    variances.partition(-count)  # in place
    return float(variances[-count])


def _selected(parts: list[Tensor], least: float) -> Tensor:
    deltas = stacked_vectors(parts)
    return deltas * (_variance(deltas) >= least) if least else deltas


def _variance(deltas: Tensor) -> Tensor:
    return (deltas - deltas.mean(0)).square_().mean(0)  # Tensor.var takes ten times as long
