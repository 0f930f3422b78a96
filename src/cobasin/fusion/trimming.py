"""Task vectors whose entries are kept or lost by their magnitude: TIES, and Model Breadcrumbs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from cobasin.fusion.arithmetic import by_slices, widened
from cobasin.fusion.largest import Largest
from cobasin.fusion.registry import method
from cobasin.fusion.task_vectors import Density, agreed_sum, task_vectors, weighted_sum
from cobasin.symmetry.state import common_dtype

Outliers = Annotated[float, Ge(0), Lt(1)]
BREADCRUMBS = "Davari and Belilovsky, Model Breadcrumbs, ECCV 2024"


@method("ties", reference="Yadav et al., TIES-Merging, NeurIPS 2023")
def ties(
    base: Tensor,
    tensors: Sequence[Tensor],
    dtype: torch.dtype | None = None,
    *,
    weight: tuple[float, ...] = (1.0,),
    density: tuple[Density, ...] = (1.0,),
    normalize: bool = True,
    lambda_: float = 1.0,
) -> Tensor:
    """Task arithmetic of the largest entries, where they agree in sign with the majority.

    Of each tensor's task vector the ``density`` largest magnitudes are kept (at least one entry; the paper trims all
    tensors of a model together) and weighted; an entry's sign is that of the sum over the models, and only models of
    that sign count for it.

    Args:
        base: what the task vectors start from.
        tensors: of its shape.
        dtype: of the result; float32 or better by default.
        weight: one a model.
        density: the part of the entries to keep, one a model.
        normalize: whether an entry is divided by the weights of the models that count for it: a mean, not a sum.
        lambda_: scales the merged task vector.
    """
    total = partial(agreed_sum, weight=weight, normalize=normalize)
    return _merged(base, tensors, density, (0.0,) * len(tensors), total, lambda_, dtype)


@method("breadcrumbs", reference=BREADCRUMBS)
def breadcrumbs(
    base: Tensor,
    tensors: Sequence[Tensor],
    dtype: torch.dtype | None = None,
    *,
    weight: tuple[float, ...] = (1.0,),
    density: tuple[Density, ...] = (1.0,),
    gamma: tuple[Outliers, ...] = (0.01,),
    normalize: bool = False,
    lambda_: float = 1.0,
) -> Tensor:
    """Task arithmetic without the largest and the smallest entries.

    Of each tensor's task vector the ``gamma`` largest magnitudes are dropped, and of the smallest as many as leave
    ``density`` of all; where that leaves too few, fewer of the largest are dropped.

    Args:
        base: what the task vectors start from.
        tensors: of its shape.
        dtype: of the result; float32 or better by default.
        weight: one a model.
        density: the part of the entries to keep, one a model.
        gamma: the part of the entries, the largest, to drop, one a model; the paper's β.
        normalize: whether the sum is divided by that of the weights.
        lambda_: scales the merged task vector.
    """
    total = partial(weighted_sum, weight=weight, normalize=normalize)
    return _merged(base, tensors, density, gamma, total, lambda_, dtype)


@method("breadcrumbs_ties", reference=BREADCRUMBS)
def breadcrumbs_ties(
    base: Tensor,
    tensors: Sequence[Tensor],
    dtype: torch.dtype | None = None,
    *,
    weight: tuple[float, ...] = (1.0,),
    density: tuple[Density, ...] = (1.0,),
    gamma: tuple[Outliers, ...] = (0.01,),
    normalize: bool = False,
    lambda_: float = 1.0,
) -> Tensor:
    """TIES without the largest entries, too.

    Drops as `breadcrumbs` does, then sums with the sign consensus of `ties`; same arguments.
    """
    total = partial(agreed_sum, weight=weight, normalize=normalize)
    return _merged(base, tensors, density, gamma, total, lambda_, dtype)


def _merged(
    base: Tensor,
    tensors: Sequence[Tensor],
    density: Sequence[float],
    gamma: Sequence[float],
    total: Callable[[Sequence[Tensor]], Tensor],
    lambda_: float,
    dtype: torch.dtype | None,
) -> Tensor:
    """``x_0 + λ total``, slice by slice, of task vectors that keep ``density`` of their entries below the ``gamma``
    largest; one entry at least."""
    if len({common_dtype(base, tensor) for tensor in tensors}) > 1:  # what is kept is found and applied in one dtype
        base, *tensors = widened(base, *tensors)
    trims = [_trim(base, *given) for given in zip(tensors, density, gamma, strict=True)]

    def merged(start: int, parts: list[Tensor]) -> Tensor:
        base, deltas = task_vectors(parts[0], parts[1:])
        return base + lambda_ * total([trim(delta, start) for trim, delta in zip(trims, deltas, strict=True)])

    return by_slices(merged, base, *tensors, dtype=dtype)


def _trim(base: Tensor, tensor: Tensor, density: float, gamma: float) -> Callable[[Tensor, int], Tensor]:
    """What trims a slice of the task vector of ``tensor`` that begins at some position."""
    entries = base.numel()
    kept = max(int(density * entries), 1)
    dropped = min(int(gamma * entries), entries - kept)
    largest = Largest.of(base, tensor, kept + dropped)
    if not dropped:
        return largest.of_slice
    above = Largest.of(base, tensor, dropped)
    return lambda delta, start: largest.of_slice(delta, start) - above.of_slice(delta, start)
