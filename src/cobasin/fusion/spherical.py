"""Means on the sphere: spherical interpolation and the Karcher mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from torch import Tensor

from cobasin.fusion.arithmetic import by_slices, inner_products, weight_sum, widened
from cobasin.fusion.average import linear
from cobasin.fusion.registry import method
from cobasin.fusion.task_vectors import task_vectors

PARALLEL = 0.9995
"""From this cosine on, `slerp` interpolates straight, as mergekit does."""

STRAIGHT = 1 - 1e-6
"""From this cosine on, θ / sin θ is set to 1, which it is to 3e-7."""

MERGEKIT = "Goddard et al., Arcee's MergeKit, EMNLP 2024"

NO_DIRECTION = 1e-3
"""Unit vectors whose mean is shorter than this are taken to cancel: rounding to float32 leaves up to 3e-4."""


@method("slerp", reference="Shoemake, Animating rotation with quaternion curves, SIGGRAPH 1985", most=1)
def slerp(
    base: Tensor, tensors: Sequence[Tensor], dtype: torch.dtype | None = None, *, t: Annotated[float, Ge(0), Le(1)]
) -> Tensor:
    """Spherical linear interpolation from ``base`` (t = 0) to the other tensor (t = 1).

    ``(sin((1-t)θ) x + sin(tθ) y) / sin θ`` with θ the angle between the flattened tensors. Straight interpolation where
    ``|cos θ| > 0.9995`` and where a tensor is zero, so has no direction.

    Args:
        base: of any shape.
        tensors: the other one, of that shape.
        dtype: of the result; float32 or better by default.
        t: how far from ``base``.
    """
    ends = base, tensors[0]
    first, second = _on_arc(inner_products(ends), t, PARALLEL)
    return _combined(ends, (float(first), float(second)), dtype)


@method("karcher", reference="Karcher, Riemannian center of mass and mollifier smoothing, CPAM 1977")
def karcher(
    tensors: Sequence[Tensor],
    dtype: torch.dtype | None = None,
    *,
    weight: tuple[Annotated[float, Ge(0)], ...] = (1.0,),
    max_iter: Annotated[int, Ge(0)] = 10,
    tol: Annotated[float, Ge(0)] = 1e-5,
) -> Tensor:
    """The Karcher mean of the directions, with the mean of the norms.

    The point of the unit sphere with the least weighted sum of squared angles to the flattened tensors, by gradient
    descent from their normalised mean. It is a combination of the tensors, so that all steps run on their inner
    products. Tensors of zeros have no direction and count for the norm only; directions that cancel have no mean, and
    their tensors are averaged.

    Args:
        tensors: of one shape.
        dtype: of the result; float32 or better by default.
        weight: one a model; they are divided by their sum.
        max_iter: how many steps at most.
        tol: the step, in radians, at which to stop.

    Raises:
        InputError: all weights are 0.
    """
    products = inner_products(tensors)
    norms = products.diagonal().sqrt()
    directed = norms > 0
    scales = torch.where(directed, 1 / norms, 0)
    cosines = scales[:, None] * products * scales

    def length(coefficients: Tensor) -> float:
        return math.sqrt(max(0.0, float(coefficients @ cosines @ coefficients)))

    weights = torch.tensor(weight, dtype=torch.float64).expand(len(tensors))
    weights = weights / weight_sum(weights.tolist())
    shares = weights * directed / (weights * directed).sum().clamp_min(torch.finfo(torch.float64).tiny)
    if length(shares) < NO_DIRECTION:
        return _combined(tensors, weights.tolist(), dtype)
    mean = shares / length(shares)
    for _ in range(max_iter):
        cosine = (cosines @ mean).clamp(-1, 1)
        angle = cosine.acos()
        # The logarithm of a direction y at the mean m is θ / sin θ (y - m cos θ). Opposite to m, no way is shorter than
        # another: y - m cos θ is 0 but for rounding, which must not be stretched.
        stretch = torch.where(cosine.abs() < STRAIGHT, angle / angle.sin(), 1.0) * shares
        step = stretch - (stretch @ cosine) * mean
        size = length(step)
        if size < tol or size == 0:
            break
        mean = math.cos(size) * mean + math.sin(size) / size * step
        mean = mean / length(mean)
    return _combined(tensors, (mean * scales * (weights @ norms)).tolist(), dtype)


def _some_weight(parameters: Mapping[str, Any]) -> None:
    """Raise InputError where all weights are 0."""
    weight_sum(parameters["weight"])


@method("nuslerp", reference=MERGEKIT, fewest=2, most=2, check=_some_weight)
def nuslerp(
    base: Tensor | None,
    tensors: Sequence[Tensor],
    *,
    weight: tuple[Annotated[float, Ge(0)], ...] = (1.0,),
    nuslerp_flatten: bool = True,
    nuslerp_row_wise: bool = False,
) -> Tensor:
    """Spherical interpolation of two tensors, or of their task vectors, by their weights.

    At ``t = w_2 / (w_1 + w_2)``, where `slerp` is told t; straight only where the angle is below 0.0015 or as near to
    that of opposites.

    Args:
        base: what the task vectors start from; None to interpolate the tensors themselves.
        tensors: two, of one shape.
        weight: one a model.
        nuslerp_flatten: one angle for the tensor; otherwise one for every vector along its last axis.
        nuslerp_row_wise: one for every vector along its first axis instead; only without ``nuslerp_flatten``.

    Raises:
        InputError: both weights are 0.
    """
    t = weight[1] / weight_sum(weight)
    start, ends = task_vectors(base, tensors) if base is not None else (0.0, widened(*tensors))
    if nuslerp_flatten:
        products = inner_products(ends)
    else:
        axis = 0 if nuslerp_row_wise else -1
        products = torch.stack([(a * b).sum(axis, keepdim=True, dtype=torch.float64) for a in ends for b in ends])
        products = products.unflatten(0, (2, 2))
    first, second = (share.to(ends[0]) for share in _on_arc(products, t, STRAIGHT))
    return start + first * ends[0] + second * ends[1]


@method("multislerp", reference=MERGEKIT, fewest=2, check=_some_weight)
def multislerp(
    base: Tensor | None,
    tensors: Sequence[Tensor],
    *,
    weight: tuple[Annotated[float, Ge(0)], ...] = (1.0,),
    normalize_weights: bool = True,
) -> Tensor:
    """The normalised mean of the directions, times the mean of the norms; of the tensors, or of task vectors.

    It is where `karcher` starts. It is defined by one more step from there, in the plane that touches the sphere,
    along the mean of the tensors' projections onto it, which is 0 there.

    Args:
        base: what the task vectors start from; None for a mean of the tensors themselves.
        tensors: two or more, of one shape.
        weight: one a model.
        normalize_weights: whether the norm is the weighted mean of the norms, or their weighted sum.

    Raises:
        InputError: all weights are 0.
    """
    start, ends = task_vectors(base, tensors) if base is not None else (0.0, tensors)
    mean = karcher(ends, weight=weight, max_iter=0)
    return start + mean * (1.0 if normalize_weights else weight_sum(weight))


def _on_arc(products: Tensor, t: float, straight: float) -> tuple[Tensor, Tensor]:
    """The shares of two vectors at a point on the arc between them, from their inner products ``[2, 2, ...]``."""
    lengths = (products[0, 0] * products[1, 1]).sqrt()
    cosine = torch.where(lengths > 0, products[0, 1] / lengths, 1.0)
    angle = cosine.clamp(-1, 1).acos()
    bent = cosine.abs() <= straight
    first, second = (torch.where(bent, (part * angle).sin() / angle.sin(), part) for part in (1 - t, t))
    return first, second


def _combined(tensors: Sequence[Tensor], shares: Sequence[float], dtype: torch.dtype | None) -> Tensor:
    return by_slices(lambda _, parts: linear(parts, weight=tuple(shares), normalize=False), *tensors, dtype=dtype)
