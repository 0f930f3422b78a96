"""The best rescaling of a matched pair: one root of a quartic (Zhang et al. 2025, Eq. 11 and 12)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cobasin.symmetry.groups.base import Value
from cobasin.symmetry.groups.gram import Gram

FURTHEST = 1e4
"""From 1, of a scale that only one side decides: where that side does not agree, less is always better."""


def gain(a: Tensor, direct: Tensor | float, inverse: Tensor | float, norm: Tensor, inverse_norm: Tensor) -> Tensor:
    """What scale ``a`` gains: half the fall of the squared distance, ``a·p + m/a - (a²·|A₊|² + |A₋|²/a²)/2``."""
    reciprocal = 1 / a  # no squares, which would overflow for columns that all but vanish
    return a * (direct - a * norm / 2) + reciprocal * (inverse - reciprocal * inverse_norm / 2)


def best_scale(direct: Tensor, inverse: Tensor, norm: Tensor, inverse_norm: Tensor, signed: bool) -> Tensor:
    """The scale with the largest `gain`, elementwise and to rounding; float32 or float64.

    Args:
        direct: ``<A₊, B₊>`` over the terms that are multiplied by the scale.
        inverse: ``<A₋, B₋>`` over the terms that are divided by it.
        norm, inverse_norm: ``|A₊|²`` and ``|A₋|²``. All of one shape, or shapes that broadcast.
        signed: allow a negative scale.

    Returns:
        The real root of ``|A₊|² a⁴ - p a³ + m a - |A₋|² = 0`` that gains most (positive unless ``signed``). Where one
        of the norms is zero, within a factor of `FURTHEST` of 1: the optimum may be at 0. Where both are, 1.
    """
    usable = (norm > 0) & (inverse_norm > 0)
    size, inverse_size = (torch.where(usable, x, 1.0).sqrt() for x in (norm, inverse_norm))
    # In units of the scale that balances the two norms the quartic's outer coefficients are equal: with
    # a = t·unit, t⁴ - P t³ + M t - 1, and the gain is tP + M/t - (t² + 1/t²)/2, well conditioned whatever the gauge.
    unit, mean = (inverse_size / size).sqrt(), size.sqrt() * inverse_size.sqrt()
    p, m = direct / (size * mean), inverse / (inverse_size * mean)
    # t -> 1/t exchanges P and M. Where P >= M the gain at t >= 1 is no less than at 1/t, as the two differ by
    # (P - M)(t - 1/t): the optimum is at t >= 1. With signs the same holds for |P| >= |M|, and t has the sign of P.
    mirrored = m.abs() > p.abs() if signed else m > p
    large, small = torch.where(mirrored, m, p), torch.where(mirrored, p, m)
    if signed:
        sign = torch.where(large < 0, -1.0, 1.0).to(large.dtype)
        large, small, unit = large.abs(), small * sign, unit * sign
    t = _root_from_one(large, small)
    found = torch.where(mirrored, 1 / t, t) * unit
    if usable.all():
        return found
    return torch.where(usable, found, _of_one_side(direct, inverse, norm, inverse_norm, signed))


def _of_one_side(direct: Tensor, inverse: Tensor, norm: Tensor, inverse_norm: Tensor, signed: bool) -> Tensor:
    """The best scale where the other side is zero, as an output projection is where training begins with none."""
    upper = norm > 0
    factor = torch.where(upper, direct / norm, inverse / inverse_norm)  # of the side that there is
    size = (factor.abs() if signed else factor).clamp(1 / FURTHEST, FURTHEST)
    found = torch.where(upper, size, 1 / size)
    if signed:
        found = torch.where(factor < 0, -found, found)
    return torch.where(upper | (inverse_norm > 0), found, 1.0)


def _root_from_one(p: Tensor, m: Tensor) -> Tensor:
    """The only root ``t >= 1`` of ``q(t) = t⁴ - p t³ + m t - 1``, for ``p >= m``.

    It is the only one, as q(1) <= 0 and three positive roots never lie all on the same side of 1. From it on q is
    convex, so Newton's method descends to it from any point at which q is positive.
    """
    # q = (t² - 1)(t² - p t + 1) - d t. Without d the root is known; each of three bounds on what d adds to it is
    # close in a regime of its own, also next to the triple root at p = m = 2.
    d, rest = p - m, (2 - p).clamp_min(torch.finfo(p.dtype).tiny)
    half = p.clamp_min(2) / 2
    ratio = d / rest
    t = half + (half - 1).sqrt() * (half + 1).sqrt() + d.pow(1 / 3).minimum(ratio.sqrt()).minimum(ratio / 2)
    eps = torch.finfo(p.dtype).eps
    while True:
        inverse = 1 / t
        square = inverse * inverse
        step = t - p + square * (m - inverse)  # q / t³, which does not overflow
        step = step.clamp_min_(0) / (4 - 3 * p * inverse + m * square * inverse).clamp_min_(eps)
        t = (t - step).clamp_min_(1)
        if not (step > eps**0.5 * t).any():  # Newton squares the error: what would follow is rounding
            return t


def aligning_scale(gram: Gram) -> Tensor:
    """The scale that gives the source's two sides the ratio of norms of the target's, ``[*batch]``.

    It is 1 where a side is zero.
    """
    (source, target), (source_inverse, target_inverse) = (
        [norm.sum(-1) for norm in gram.norms(charge)] for charge in (1, -1)
    )
    top, bottom = target * source_inverse, source * target_inverse
    return torch.where((top > 0) & (bottom > 0), top / bottom.clamp_min(torch.finfo(top.dtype).tiny), 1.0).pow(0.25)


def inverse_scale(value: Value) -> Value:
    """The scale of the inverse element, where there is one."""
    return {"scale": value["scale"].reciprocal()} if "scale" in value else {}


def compose_scale(first: Value, second: Value) -> Value:
    """The scale of a product of two elements, where either has one."""
    scales = [value["scale"] for value in (first, second) if "scale" in value]
    return {"scale": math.prod(scales[1:], start=scales[0])} if scales else {}
