"""Task vectors, the differences from a base model: task arithmetic, and the sums that other methods form of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Gt, Le
from torch import Tensor
from torch.nn.functional import hardshrink

from cobasin.fusion.arithmetic import widened
from cobasin.fusion.average import linear
from cobasin.fusion.registry import method

Density = Annotated[float, Gt(0), Le(1)]
"""The part of a task vector's entries that is kept."""

NO_WEIGHT = 1e-6  # a smaller sum, as a part of the weights' sizes, may be rounding of weights that cancel


@method(
    "task_arithmetic",
    reference="Ilharco et al., Editing models with task arithmetic, ICLR 2023",
    elementwise=True,
    linear=True,
)
def task_arithmetic(
    base: Tensor,
    tensors: Sequence[Tensor],
    *,
    weight: tuple[float, ...] = (1.0,),
    normalize: bool = False,
    lambda_: float = 1.0,
) -> Tensor:
    """``x_0 + λ Σ w_i (x_i - x_0)``, the sum divided by ``Σ w_i`` with ``normalize``.

    Args:
        base: x_0.
        tensors: of its shape.
        weight: one a model; may be negative.
        normalize: whether the sum is divided by that of the weights; it is not where some of these are negative and
            they cancel, to a millionth of their sizes.
        lambda_: scales the sum.
    """
    base, deltas = task_vectors(base, tensors)
    return base + lambda_ * weighted_sum(deltas, weight, normalize)


def task_vectors(base: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The base, `widened`, and each tensor minus the base; the caller may overwrite these differences."""
    base, *others = widened(base, *tensors)
    return base, [other - base for other in others]


def stacked_vectors(parts: Sequence[Tensor]) -> Tensor:
    """The task vectors of slices of the base and of the others, ``[models, entries]``."""
    _, deltas = task_vectors(parts[0], parts[1:])
    return torch.stack(deltas)


def weighted_sum(deltas: Sequence[Tensor], weight: Sequence[float], normalize: bool) -> Tensor:
    """The sum of weighted task vectors, divided by that of the weights with ``normalize``, unless these cancel."""
    return linear(deltas, weight=tuple(weight), normalize=normalize and abs(sum(weight)) > _nothing(weight))


def _nothing(weight: Sequence[float]) -> float:
    """The size up to which a sum of some of these weights counts as 0; weights of one sign cannot cancel."""
    return NO_WEIGHT * sum(map(abs, weight)) if min(weight) < 0 else 0.0


def agreed_sum(deltas: Sequence[Tensor], weight: Sequence[float], normalize: bool) -> Tensor:
    """The weighted sum over the models that have the majority's sign, entry by entry; an entry of 0 has none."""
    ones = (1.0,) * len(deltas)
    weighted = [delta * share for delta, share in zip(deltas, weight, strict=True)]  # overwritten below, step by step
    total = linear(weighted, weight=ones, normalize=False)
    majority = torch.ones_like(total).copysign_(total)  # a sum of 0 is +0, but where all are -0
    agreeing = [one.mul_(majority).clamp_min_(0) for one in weighted]
    merged = linear(agreeing, weight=ones, normalize=False).mul_(majority)
    if normalize:
        counted = linear([one.sign_() for one in agreeing], weight=tuple(weight), normalize=False)
        counted = hardshrink(counted, _nothing(weight))
        merged /= counted + (1 - counted.sign().abs_())  # by one where nothing counts
    return merged
