"""Nearswap: what another model has where it is near, and no more than a step towards it elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from annotated_types import Ge
from torch import Tensor

from cobasin.fusion.registry import method
from cobasin.fusion.task_vectors import task_vectors


@method("nearswap", reference="alchemonaut, QuartetAnemoi-70B, 2024", most=1, elementwise=True)
def nearswap(base: Tensor, tensors: Sequence[Tensor], *, t: Annotated[float, Ge(0)]) -> Tensor:
    """The base moved towards the other model, every entry by ``t`` at most.

    Defined as ``w y + (1 - w) x`` with ``w = min(t / |y - x|, 1)``, which is this.

    Args:
        base: x, of any shape.
        tensors: y, of that shape.
        t: the largest step.
    """
    base, (delta,) = task_vectors(base, tensors)
    return base + delta.clamp_(-t, t)
