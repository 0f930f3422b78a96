"""Reinforced Agent Merging: what one model alone has changed stays whole, what several have is their mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import hardshrink

from cobasin.fusion.arithmetic import by_slices, of_slices
from cobasin.fusion.registry import method
from cobasin.fusion.task_vectors import stacked_vectors

RAM = "Yuan et al., Behavior Knowledge Merge in Reinforced Agentic Models, 2026"
Least = Annotated[float, Ge(0)]


@method("ram", reference=RAM)
def ram(base: Tensor, tensors: Sequence[Tensor], dtype: torch.dtype | None = None, *, epsilon: Least = 1e-5) -> Tensor:
    """The mean of the task vectors over the models that have changed an entry.

    Args:
        base: what the task vectors start from.
        tensors: of its shape.
        dtype: of the result; float32 or better by default.
        epsilon: an entry that differs from the base's by no more is not changed.
    """
    return _merged((base, *tensors), epsilon, (1.0,) * len(tensors), dtype)


@method("ramplus_tl", reference=RAM)
def ramplus_tl(
    base: Tensor,
    tensors: Sequence[Tensor],
    dtype: torch.dtype | None = None,
    *,
    r: Least = 0.1,
    alpha: Least = 0.2,
    epsilon: Least = 1e-5,
) -> Tensor:
    """RAM with larger task vectors where one model alone has changed an entry.

    They are multiplied by ``1 + r min(ρ, α)``, where ρ is how many entries of the tensor the model has changed together
    with others, divided by how many it has changed alone (the paper's RAM+ counts those of the whole model).

    Args:
        base: what the task vectors start from.
        tensors: of its shape.
        dtype: of the result; float32 or better by default.
        r: how much more these entries count.
        alpha: the largest ρ that counts.
        epsilon: an entry that differs from the base's by no more is not changed.
    """
    models = base, *tensors

    def counts(_: int, parts: list[Tensor]) -> Tensor:
        changed = _changed(parts, epsilon) != 0
        alone = changed.sum(0) == 1
        return torch.stack([(changed & ~alone).sum(1), (changed & alone).sum(1)])

    together, alone = torch.stack(of_slices(counts, *models)).sum(0).double()
    factors = 1 + r * (together / alone.clamp_min(1)).clamp_max(alpha)
    return _merged(models, epsilon, factors.tolist(), dtype)


def _merged(models: Sequence[Tensor], epsilon: float, factors: Sequence[float], dtype: torch.dtype | None) -> Tensor:
    """The base and the mean over those that have changed an entry; of one alone, multiplied by its factor."""

    def merged(_: int, parts: list[Tensor]) -> Tensor:
        deltas = _changed(parts, epsilon)
        count = (deltas != 0).sum(0)
        alone = torch.tensordot(deltas.new_tensor(factors), deltas, 1)
        return parts[0] + torch.where(count == 1, alone, deltas.sum(0) / count.clamp_min(1))

    return by_slices(merged, *models, dtype=dtype)


def _changed(parts: list[Tensor], epsilon: float) -> Tensor:
    """`stacked_vectors`, 0 where nothing is changed."""
    return hardshrink(stacked_vectors(parts), epsilon)
