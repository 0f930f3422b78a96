"""The best rescaling of a matched pair: one root of a quartic (Zhang et al. 2025, Eq. 11 and 12)."""

from __future__ import annotations

import torch
from torch import Tensor

from cobasin.symmetry.groups.gram import Gram


def gain(a: Tensor, direct: Tensor | float, inverse: Tensor | float, norm: Tensor, inverse_norm: Tensor) -> Tensor:
    """What scale ``a`` gains: half the fall of the squared distance, ``a·p + m/a - (a²·|A₊|² + |A₋|²/a²)/2``."""
    return a * direct + inverse / a - (a.square() * norm + inverse_norm / a.square()) / 2


def best_scale(direct: Tensor, inverse: Tensor, norm: Tensor, inverse_norm: Tensor, signed: bool) -> Tensor:
    """The scale with the largest `gain`, elementwise over a batch.

    Args:
        direct: ``<A₊, B₊>`` over the terms that are multiplied by the scale.
        inverse: ``<A₋, B₋>`` over the terms that are divided by it.
        norm: ``|A₊|²``. inverse_norm: ``|A₋|²``. All of one shape.
        signed: allow a negative scale.

    Returns:
        The real root of ``|A₊|² a⁴ - p a³ + m a - |A₋|² = 0`` that gains most (positive unless ``signed``);
        1 where one of the norms vanishes, since there the scale has no finite optimum or no effect.
    """
    usable = (norm > 0) & (inverse_norm > 0)
    # In units of the scale that balances the two norms the quartic's outer coefficients are equal:
    # t⁴ - P t³ + M t - 1, well conditioned whatever the gauge.
    unit = torch.where(usable, inverse_norm / norm, 1.0).pow(0.25)
    kappa = torch.where(usable, (norm * inverse_norm).sqrt(), 1.0)
    p, m = unit * direct / kappa, inverse / (unit * kappa)
    companion = torch.zeros(*p.shape, 4, 4, dtype=p.dtype, device=p.device)
    companion[..., 0, 0], companion[..., 0, 2], companion[..., 0, 3] = p, -m, 1.0
    companion[..., 1, 0] = companion[..., 2, 1] = companion[..., 3, 2] = 1.0
    t = torch.linalg.eigvals(companion).real
    for _ in range(3):  # polish: eigenvalues of a companion matrix carry half the digits near a double root
        slope = 4 * t**3 - 3 * p[..., None] * t**2 + m[..., None]
        value = t**4 - p[..., None] * t**3 + m[..., None] * t - 1
        t = torch.where(slope.abs() > 1e-12, t - value / slope, t)
    t = torch.cat([t, torch.ones_like(p)[..., None]], -1)
    allowed = t.isfinite() & ((t.abs() if signed else t) > 1e-12)
    t = torch.where(allowed, t, 1.0)
    score = t * p[..., None] + m[..., None] / t - (t.square() + t.square().reciprocal()) / 2
    best = t.gather(-1, score.argmax(-1, keepdim=True))[..., 0]
    return torch.where(usable, best * unit, 1.0)


def aligning_scale(gram: Gram, per_column: bool) -> Tensor:
    """The scale that gives the source's two sides the ratio of norms of the target's; 1 where a side is zero.

    Shape ``[..., n, n]`` (one for every pair of columns) or ``[...]`` (one for the whole space).
    """
    (source, target), (source_inverse, target_inverse) = gram.norms(1), gram.norms(-1)
    if per_column:
        source, source_inverse = source[..., :, None], source_inverse[..., :, None]
        target, target_inverse = target[..., None, :], target_inverse[..., None, :]
    else:
        source, source_inverse, target, target_inverse = (
            norm.sum(-1) for norm in (source, source_inverse, target, target_inverse)
        )
    top, bottom = target * source_inverse, source * target_inverse
    return torch.where((top > 0) & (bottom > 0), top / bottom.clamp_min(torch.finfo(top.dtype).tiny), 1.0).pow(0.25)
