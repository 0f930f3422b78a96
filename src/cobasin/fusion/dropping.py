"""Task vectors that lose entries at random: DARE, and DELLA, which loses small ones more often."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from cobasin.errors import InputError
from cobasin.fusion.arithmetic import SLICE
from cobasin.fusion.registry import method
from cobasin.fusion.task_vectors import Density, agreed_sum, task_vectors, weighted_sum

DARE = "Yu et al., Language models are Super Mario, ICML 2024"
DELLA = "Deep et al., DELLA-Merging, 2024"
_ROUNDING = 1e-9  # of density and epsilon, whose sum may be 1


@method("dare_linear", reference=DARE, elementwise=True)
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
    base, deltas = task_vectors(base, tensors)
    return base + lambda_ * weighted_sum(_thinned(deltas, density, generator, rescale), weight, normalize)


@method("dare_ties", reference=DARE, elementwise=True)
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
    base, deltas = task_vectors(base, tensors)
    return base + lambda_ * agreed_sum(_thinned(deltas, density, generator, rescale), weight, normalize)


def _within_reach(parameters: Mapping[str, Any]) -> None:
    """Raise InputError where a probability of `della_linear` is none."""
    for density, epsilon in zip(parameters["density"], parameters["epsilon"], strict=True):
        if density < 1 and not epsilon < density <= 1 - epsilon + _ROUNDING:
            raise InputError(
                f"entries would be kept with probabilities of {density - epsilon:g} to {density + epsilon:g}, density "
                "less and plus epsilon; expected more than 0 and at most 1"
            )


@method("della_linear", reference=DELLA, check=_within_reach)
def della_linear(
    base: Tensor,
    tensors: Sequence[Tensor],
    generator: np.random.Generator,
    *,
    weight: tuple[float, ...] = (1.0,),
    density: tuple[Density, ...] = (1.0,),
    epsilon: tuple[Annotated[float, Ge(0)], ...] = (0.15,),
    normalize: bool = False,
    rescale: bool = True,
    lambda_: float = 1.0,
) -> Tensor:
    """Task arithmetic of task vectors that lost entries at random, small ones more often than large ones.

    The entries of a row (index of the first axis; vectors are one row) are ranked by their magnitudes. They are kept
    with probabilities that rise from ``density - epsilon`` for the smallest to ``density + epsilon`` for the largest,
    in equal steps. With ``rescale`` each is divided by its own, as in the paper, whose ε is the whole range.

    Args:
        base: what the task vectors start from.
        tensors: of its shape.
        generator: the only source of randomness; the models draw from it one after the other.
        weight: one a model.
        density: the mean probability to keep an entry, one a model; where it is 1 nothing is dropped.
        epsilon: half the range of the probabilities, one a model.
        normalize: whether the sum is divided by that of the weights.
        rescale: whether what is left makes up for what is dropped.
        lambda_: scales the merged task vector.
    """
    base, deltas = task_vectors(base, tensors)
    return base + lambda_ * weighted_sum(_pruned(deltas, density, epsilon, generator, rescale), weight, normalize)


@method("della", reference=DELLA, check=_within_reach)
def della(
    base: Tensor,
    tensors: Sequence[Tensor],
    generator: np.random.Generator,
    *,
    weight: tuple[float, ...] = (1.0,),
    density: tuple[Density, ...] = (1.0,),
    epsilon: tuple[Annotated[float, Ge(0)], ...] = (0.15,),
    normalize: bool = True,
    rescale: bool = True,
    lambda_: float = 1.0,
) -> Tensor:
    """TIES of task vectors that lost entries at random, small ones more often than large ones.

    Drops and rescales as `della_linear` does, then sums with the sign consensus of `ties`, and divides as it does.
    """
    base, deltas = task_vectors(base, tensors)
    return base + lambda_ * agreed_sum(_pruned(deltas, density, epsilon, generator, rescale), weight, normalize)


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


def _pruned(
    deltas: Sequence[Tensor],
    density: Sequence[float],
    epsilon: Sequence[float],
    generator: np.random.Generator,
    rescale: bool,
) -> list[Tensor]:
    """The task vectors without the entries that they lose by their rank in their row; they are overwritten."""
    found = []
    for delta, share, reach in zip(deltas, density, epsilon, strict=True):
        found.append(delta.contiguous())
        if share == 1:
            continue
        rows = found[-1].view(len(delta) if delta.dim() > 1 else 1, -1)
        last = rows.shape[1] - 1
        # from the smallest to the largest; of one alone neither
        chances = share + reach * (2 * torch.arange(last + 1, device=rows.device) - last) / max(last, 1)
        for some in rows.split(max(1, SLICE // (last + 1))):  # an order takes twice the memory of the rows
            order = some.abs().argsort(dim=1, stable=True)
            kept = torch.empty_like(some).scatter_(1, order, chances.to(some).expand_as(some))
            draws = torch.from_numpy(generator.random(some.shape, dtype=np.float32)).to(some.device)
            some *= draws < kept
            if rescale:
                some /= kept
    return found
