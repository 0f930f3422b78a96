"""Rotations of pairs, as RoPE allows them, with one scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cobasin.symmetry.groups.base import Batch, Value
from cobasin.symmetry.groups.isometry import Isometry
from cobasin.symmetry.groups.scale import compose_scale, inverse_scale


@dataclass(frozen=True)
class Rotation2(Isometry):
    """SO(2) on a space of size two: all isometries that commute with a rotary embedding at one frequency.

    ``{"angle": float64[*batch], "scale": float64[*batch]}``. No reflections: they break RoPE. The solver is the
    phase of the complex cross-Gram, ``θ = arg(Σ conj(a) b)``.
    """

    scaled: bool = False

    def inverse(self, value: Value) -> Value:
        return {"angle": -value["angle"]} | inverse_scale(value)

    def compose(self, first: Value, second: Value) -> Value:
        return {"angle": first["angle"] + second["angle"]} | compose_scale(first, second)

    def describe(self, n: int) -> tuple[str, int]:
        return ("SO(2) with scale", 2) if self.scaled else ("SO(2)", 1)

    def _identity(self, batch: Batch, n: int) -> Value:
        return {"angle": torch.zeros(batch, dtype=torch.float64)}

    def _move(self, value: Value, x: Tensor) -> Tensor:
        cos, sin = (f(value["angle"])[..., None].to(x) for f in (torch.cos, torch.sin))
        return torch.stack([cos * x[..., 0] - sin * x[..., 1], sin * x[..., 0] + cos * x[..., 1]], -1)

    def _inner(self, value: Value, m: Tensor) -> Tensor:
        along, across = _complex(m)
        return value["angle"].cos() * along + value["angle"].sin() * across

    def _isometry_deviation(self, value: Value) -> float:
        return 0.0 if value["angle"].isfinite().all() else math.inf

    def _isometry(self, m: Tensor) -> Value:
        along, across = _complex(m)
        return {"angle": torch.atan2(across, along)}

    def _nuclear(self, m: Tensor) -> Tensor:
        return torch.hypot(*_complex(m))


def _complex(m: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of the cross-Gram read as a complex number."""
    return m[..., 0, 0] + m[..., 1, 1], m[..., 0, 1] - m[..., 1, 0]
