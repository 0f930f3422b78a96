"""Orthogonal maps and RoPE rotations, with one scale for the whole space."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from cobasin.symmetry.groups.base import Batch, Group, Value
from cobasin.symmetry.groups.gram import Gram
from cobasin.symmetry.groups.scale import aligning_scale, best_scale, gain

_ROUNDS = 50  # of the alternation between rotation and scale; it stops when no scale moves any more
_SETTLED = 1e-10


class Isometry(Group):
    """A group of isometries, optionally times one positive scale per element.

    A subclass says how the isometries act, compose and solve ``argmax <g, M>``; the joint problem of isometry
    and scale is the same for all of them.
    """

    scaled: bool
    continuous = True

    @abstractmethod
    def _isometry(self, m: Tensor) -> Value:
        """The isometry that maximises ``<g, m>``, for ``m[*batch, n, n]``."""

    @abstractmethod
    def _nuclear(self, m: Tensor) -> Tensor:
        """The maximum itself, ``[*batch]``."""

    @abstractmethod
    def _move(self, value: Value, x: Tensor) -> Tensor:
        """Act with the isometry alone."""

    @abstractmethod
    def _isometry_deviation(self, value: Value) -> float:
        """`deviation` without the scale."""

    @abstractmethod
    def _inner(self, value: Value, m: Tensor) -> Tensor:
        """``<g, m>``, ``[*batch]``."""

    def act(self, value: Value, x: Tensor, charge: int = 1) -> Tensor:
        x = self._move(value, x)
        if "scale" in value and charge:
            x = x * value["scale"][..., None, None].pow(charge).to(x.dtype)
        return x

    def project(self, gram: Gram, joint: bool = True) -> Value:
        if not self.scaled:
            return self._isometry(gram.total().double())
        one = torch.ones(gram.total().shape[:-2], dtype=torch.float64)
        value, score = self._alternate(gram, one, _ROUNDS if joint else 1)
        if joint:  # a badly scaled gauge has a second basin, near the scale that aligns the norms
            other, other_score = self._alternate(gram, one * aligning_scale(gram, per_column=False), _ROUNDS)
            better = other_score > score
            value = {
                k: torch.where(better.reshape(better.shape + (1,) * (v.ndim - better.ndim)), other[k], v)
                for k, v in value.items()
            }
        return value

    def refine(self, value: Value, gram: Gram) -> Value:
        if not self.scaled:
            return self.project(gram)
        one = torch.ones(gram.total().shape[:-2], dtype=torch.float64)
        return self._alternate(gram, value.get("scale", one), 1)[0]

    def _alternate(self, gram: Gram, scale: Tensor, rounds: int) -> tuple[Value, Tensor]:
        """The best isometry for the scale, then the best scale for the isometry, in turn; value and gain."""
        neutral, direct, inverse = (gram.total(charge).double() for charge in (0, 1, -1))
        norm, inverse_norm = (gram.norms(charge)[0].double().sum(-1) for charge in (1, -1))

        def step(scale: Tensor) -> tuple[Value, Tensor, Tensor, Tensor]:
            a = scale[..., None, None]
            value = self._isometry(neutral + a * direct + inverse / a)
            p, m = self._inner(value, direct), self._inner(value, inverse)
            norms = (norm.expand(p.shape), inverse_norm.expand(p.shape))
            return value, p, m, best_scale(p, m, *norms, signed=False)

        previous, (value, p, m, scale) = scale, step(scale)
        for _ in range(rounds - 1):
            if (scale / previous - 1).abs().max() < _SETTLED:
                break
            previous, (value, p, m, scale) = scale, step(scale)
        score = gain(scale, p, m, norm, inverse_norm) + self._inner(value, neutral)
        return value | {"scale": scale}, score

    def support(self, gram: Gram) -> Tensor:
        if not self.scaled:
            return self._nuclear(gram.total().double())
        scale = aligning_scale(gram, per_column=False).double()
        a = scale[..., None, None]
        nuclear = self._nuclear(gram.total(0) + a * gram.total(1) + gram.total(-1) / a)
        norm, inverse_norm = (gram.norms(charge)[0].double().sum(-1) for charge in (1, -1))
        return nuclear + gain(scale, 0.0, 0.0, norm, inverse_norm)

    def deviation(self, value: Value) -> float:
        scale = value.get("scale", torch.ones(()))
        if not (scale.isfinite().all() and (scale > 0).all()):
            return math.inf
        return self._isometry_deviation(value)

    def sample(self, batch: Batch, n: int, generator: torch.Generator) -> Value:
        value = self._isometry(torch.randn(*batch, n, n, generator=generator, dtype=torch.float64))
        if self.scaled:
            value["scale"] = torch.exp2(2 * torch.rand(batch, generator=generator, dtype=torch.float64) - 1)
        return value

    def identity(self, batch: Batch, n: int) -> Value:
        value = self._isometry(torch.eye(n, dtype=torch.float64).expand(*batch, n, n))
        return value | ({"scale": torch.ones(batch, dtype=torch.float64)} if self.scaled else {})


@dataclass(frozen=True)
class Orthogonal(Isometry):
    """O(n), reflections allowed; ``fix_ones`` restricts it to the elements that fix the all-ones vector.

    ``{"matrix": float64[*batch, n, n], "scale": float64[*batch]}``: x goes to ``scale * x @ matrix``.
    The solver is orthogonal Procrustes, ``M = UΣVᵀ``, ``g = UVᵀ`` (Zhang et al. 2025, Algorithm 1).
    """

    scaled: bool = False
    fix_ones: bool = False

    def inverse(self, value: Value) -> Value:
        return {"matrix": value["matrix"].mT.contiguous()} | _inverse_scale(value)

    def compose(self, first: Value, second: Value) -> Value:
        return {"matrix": first["matrix"] @ second["matrix"]} | _compose_scale(first, second)

    def describe(self, n: int) -> tuple[str, int]:
        k = n - 1 if self.fix_ones else n
        name = f"O({n})" + (" fixing 1" if self.fix_ones else "")
        return (f"{name} with scale", k * (k - 1) // 2 + 1) if self.scaled else (name, k * (k - 1) // 2)

    def _move(self, value: Value, x: Tensor) -> Tensor:
        return x @ value["matrix"].to(x.dtype)

    def _inner(self, value: Value, m: Tensor) -> Tensor:
        return (value["matrix"] * m).sum((-2, -1))

    def _isometry_deviation(self, value: Value) -> float:
        q = value["matrix"]
        deviation = (q.mT @ q - torch.eye(q.shape[-1], dtype=q.dtype)).abs().max()
        if self.fix_ones:
            deviation = torch.maximum(deviation, (q.sum(-1) - 1).abs().max())
        return float(deviation.nan_to_num(math.inf))

    def _isometry(self, m: Tensor) -> Value:
        if self.fix_ones:
            basis = _complement_of_ones(m.shape[-1])
            u, _, vh = torch.linalg.svd(basis.T @ m @ basis)
            return {"matrix": basis @ (u @ vh) @ basis.T + 1.0 / m.shape[-1]}
        u, _, vh = torch.linalg.svd(m)
        return {"matrix": u @ vh}

    def _nuclear(self, m: Tensor) -> Tensor:
        if self.fix_ones:
            basis = _complement_of_ones(m.shape[-1])
            return torch.linalg.svdvals(basis.T @ m @ basis).sum(-1) + m.sum((-2, -1)) / m.shape[-1]
        return torch.linalg.svdvals(m).sum(-1)


@dataclass(frozen=True)
class Rotation2(Isometry):
    """SO(2) on a space of size two: all isometries that commute with a rotary embedding at one frequency.

    ``{"angle": float64[*batch], "scale": float64[*batch]}``. No reflections: they break RoPE. The solver is the
    phase of the complex cross-Gram, ``θ = arg(Σ conj(a) b)``.
    """

    scaled: bool = False

    def inverse(self, value: Value) -> Value:
        return {"angle": -value["angle"]} | _inverse_scale(value)

    def compose(self, first: Value, second: Value) -> Value:
        return {"angle": first["angle"] + second["angle"]} | _compose_scale(first, second)

    def describe(self, n: int) -> tuple[str, int]:
        return ("SO(2) with scale", 2) if self.scaled else ("SO(2)", 1)

    def _move(self, value: Value, x: Tensor) -> Tensor:
        cos, sin = (f(value["angle"])[..., None].to(x.dtype) for f in (torch.cos, torch.sin))
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


def _inverse_scale(value: Value) -> Value:
    return {"scale": value["scale"].reciprocal()} if "scale" in value else {}


def _compose_scale(first: Value, second: Value) -> Value:
    scales = [value["scale"] for value in (first, second) if "scale" in value]
    return {"scale": math.prod(scales[1:], start=scales[0])} if scales else {}


@lru_cache(maxsize=8)
def _complement_of_ones(n: int) -> Tensor:
    """An orthonormal basis of the complement of the all-ones vector, ``[n, n - 1]``."""
    frame = torch.eye(n, dtype=torch.float64)
    frame[:, 0] = 1.0
    return torch.linalg.qr(frame).Q[:, 1:].contiguous()
