"""Task vectors, the differences from a base model: task arithmetic, TIES, DARE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from annotated_types import Gt, Le
from torch import Tensor
from torch.nn.functional import hardshrink

from cobasin.fusion.arithmetic import by_slices, widened
from cobasin.fusion.average import linear
from cobasin.fusion.largest import Largest
from cobasin.fusion.registry import method
from cobasin.symmetry.state import common_dtype

Density = Annotated[float, Gt(0), Le(1)]

NO_WEIGHT = 1e-6  # of all weights: no less is divided by, as rounding to float32 leaves up to so much where some cancel


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
    base, deltas = _task_vectors(base, tensors)
    return base + lambda_ * _sum(deltas, weight, normalize)


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
    if len({common_dtype(base, tensor) for tensor in tensors}) > 1:  # what is kept is found and applied in one dtype
        base, *tensors = widened(base, *tensors)
    largest = [Largest.of(base, tensor, part) for tensor, part in zip(tensors, density, strict=True)]

    def merged(start: int, parts: list[Tensor]) -> Tensor:
        base, deltas = _task_vectors(parts[0], parts[1:])
        kept = [one.of_slice(delta, start) for one, delta in zip(largest, deltas, strict=True)]
        return base + lambda_ * _agreed_sum(kept, weight, normalize)

    return by_slices(merged, base, *tensors, dtype=dtype)


@method("dare_linear", reference="Yu et al., Language models are Super Mario, ICML 2024", elementwise=True)
def dare_linear(
    base: Tensor,
    tensors: Sequence[Tensor],
    generator: np.random.Generator,
    *,
    weight: tuple[float, ...] = (1.0,),
    density: tuple[Density, ...] = (1.0,),
    normalize: bool = False,
    rescale: bool = True,
    lambda_: float = 1.0,
) -> Tensor:
    """Task arithmetic of task vectors that lost entries at random.

    Every entry is kept with probability ``density`` (to 2⁻¹⁶). With ``rescale`` it is divided by that probability, as
    in the paper, which keeps each entry's expectation; mergekit rescales to keep the task vector's l1 norm instead.

    Args:
        base: what the task vectors start from.
        tensors: of its shape.
        generator: the only source of randomness; the models draw from it one after the other.
        weight: one a model.
        density: the probability to keep an entry, one a model.
        normalize: whether the sum is divided by that of the weights.
        rescale: whether what is left makes up for what is dropped.
        lambda_: scales the merged task vector.
    """
    base, deltas = _task_vectors(base, tensors)
    return base + lambda_ * _sum(_thinned(deltas, density, generator, rescale), weight, normalize)


@method("dare_ties", reference="Yu et al., Language models are Super Mario, ICML 2024", elementwise=True)
def dare_ties(
    base: Tensor,
    tensors: Sequence[Tensor],
    generator: np.random.Generator,
    *,
    weight: tuple[float, ...] = (1.0,),
    density: tuple[Density, ...] = (1.0,),
    normalize: bool = False,
    rescale: bool = True,
    lambda_: float = 1.0,
) -> Tensor:
    """TIES of task vectors that lost entries at random, instead of their smallest.

    Drops and rescales as `dare_linear` does, then sums with the sign consensus of `ties`; same arguments.
    """
    base, deltas = _task_vectors(base, tensors)
    return base + lambda_ * _agreed_sum(_thinned(deltas, density, generator, rescale), weight, normalize)


def _task_vectors(base: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    base, *others = widened(base, *tensors)
    return base, [other - base for other in others]


def _sum(deltas: Sequence[Tensor], weight: Sequence[float], normalize: bool) -> Tensor:
    return linear(deltas, weight=tuple(weight), normalize=normalize and abs(sum(weight)) > _nothing(weight))


def _nothing(weight: Sequence[float]) -> float:
    """The sum of some of these weights that is none; weights of one sign do not cancel."""
    return NO_WEIGHT * sum(map(abs, weight)) if min(weight) < 0 else 0.0


def _agreed_sum(deltas: Sequence[Tensor], weight: Sequence[float], normalize: bool) -> Tensor:
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


def _thinned(
    deltas: Sequence[Tensor], density: Sequence[float], generator: np.random.Generator, rescale: bool
) -> list[Tensor]:
    """The task vectors without the entries that they lose; they are overwritten."""
    for delta, part in zip(deltas, density, strict=True):
        kept, share = _chance(delta.numel(), part, generator)
        delta *= kept.to(delta.device).view(delta.shape)
        if rescale:
            delta /= share
    return list(deltas)


def _chance(count: int, probability: float, generator: np.random.Generator) -> tuple[Tensor, float]:
    """Ones with a probability, else zeros, ``[count]``; and the probability that it was, a multiple of 2⁻¹⁶.

    Sixteen random bits an entry are faster than random floats; what is less probable than 2⁻⁸ gets 32.
    """
    bits = 16 if probability >= 2**-8 else 32
    draws = generator.bit_generator.random_raw(-(-count * bits // 64)).view(f"uint{bits}")[:count]
    most = math.ceil(probability * 2**bits) - 1
    # as bytes: torch is slow with booleans
    return torch.from_numpy((draws <= most).view(np.uint8)), (most + 1) / 2**bits
