"""Orthogonal and general maps, and what isometries have in common: one scale for the whole space."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from cobasin.symmetry.groups.base import Batch, Group, Value
from cobasin.symmetry.groups.gram import Gram
from cobasin.symmetry.groups.scale import aligning_scale, best_scale, compose_scale, gain, inverse_scale
from cobasin.symmetry.singular import singular_values, svd
from cobasin.symmetry.state import wide

_ROUNDS = 100  # of the alternation between rotation and scale; it stops when no scale moves any more
_SETTLED = 1e-8
_APART = 1e-6  # relative difference of scales that are not the same fixed point
_STARTS = torch.linspace(0, 1, 7, dtype=torch.float64)  # where to start in a range of scales
_ENDS = _STARTS[[0, -1]]


class Isometry(Group):
    """A group of isometries, optionally times one positive scale per element.

    A subclass says how the isometries act, compose and solve ``argmax <g, M>``; the joint problem of isometry
    and scale is the same for all of them.
    """

    scaled: bool
    continuous = True

    @abstractmethod
    def _identity(self, batch: Batch, n: int) -> Value:
        """The identity, without a scale."""

    @abstractmethod
    def _isometry(self, m: Tensor) -> Value:
        """The isometry that maximises ``<g, m>``, for ``m[*batch, n, n]``."""

    @abstractmethod
    def _nuclear(self, m: Tensor) -> Tensor:
        """The maximum itself, ``[*batch]``."""

    def _nuclear_bound(self, m: Tensor) -> Tensor:
        """No less than that, and cheaper where it is dear."""
        return self._nuclear(m)

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
        x = self._move(value, wide(x))
        if "scale" in value and charge:
            x = x * value["scale"][..., None, None].pow(charge).to(x)
        return x

    def project(self, gram: Gram, joint: bool = True) -> Value:
        if not self.scaled:
            return self._isometry(gram.total().double())
        if not joint:
            return self._alternate(gram, _ones(gram), 1)[0]
        # Whatever the isometry, its best scale lies in a range known beforehand, and without neutral terms it grows
        # with the scale that the isometry was found for. So the alternation falls from the upper end to the largest
        # fixed point, rises from the lower end to the smallest, and where the two meet that is the optimum.
        starts = _between(*_range_of_scales(gram), _STARTS if 0 in gram.cross else _ENDS)
        values, scores = self._alternate(gram, starts, _ROUNDS)
        best, score = _best(values, scores)
        low, high = values["scale"][0], values["scale"][-1]
        apart = high / low > 1 + _APART
        if apart.any():  # rare: unlike models in badly scaled gauges
            starts = _between(low[apart], high[apart], _STARTS[1:-1])
            other, other_score = _best(*self._alternate(gram.map(lambda x: x[apart]), starts, _ROUNDS))
            better = other_score > score[apart]
            improved = apart.masked_scatter(apart, better)
            for part, x in best.items():
                x[improved] = other[part][better]
        return best

    def refine(self, value: Value, gram: Gram) -> Value:
        if not self.scaled:
            return self.project(gram)
        one = _ones(gram)
        return self._alternate(gram, value.get("scale", one).to(one), 1)[0]

    def _alternate(self, gram: Gram, scale: Tensor, rounds: int) -> tuple[Value, Tensor]:
        """The best isometry for the scale, then the best scale for the isometry, in turn; value and gain.

        ``scale`` is ``[*starts, *batch]``, and so is what comes back; where all starts have met, it is of one.
        """
        neutral, direct, inverse = (gram.total(charge).double() for charge in (0, 1, -1))
        norms = [gram.norms(charge)[0].double().sum(-1) for charge in (1, -1)]
        while True:
            a, previous, rounds = scale[..., None, None], scale, rounds - 1
            value = self._isometry(neutral + a * direct + inverse / a)
            p, m = self._inner(value, direct), self._inner(value, inverse)
            scale = best_scale(p, m, *norms, signed=False)
            if not rounds or not ((scale / previous - 1).abs() > _SETTLED).any():
                return value | {"scale": scale}, gain(scale, p, m, *norms) + self._inner(value, neutral)
            if not (scale.amax(0) / scale.amin(0) > 1 + _APART).any():
                scale = scale[:1]

    def support(self, gram: Gram) -> Tensor:
        """With a scale a lower bound, its value at the scale that aligns the norms.

        That is exact where the target is an image of the source, and no side is zero. The joint optimum of every pair
        of heads would cost about twenty times as much, and gains an assignment of heads less than 1 % of its value.
        """
        if not self.scaled:
            return self._nuclear(gram.total().double())
        scale = aligning_scale(gram).double()
        a = scale[..., None, None]
        inner = self._nuclear(gram.total(0) + a * gram.total(1) + gram.total(-1) / a)
        norm, inverse_norm = (gram.norms(charge)[0].double().sum(-1) for charge in (1, -1))
        return inner + gain(scale, 0.0, 0.0, norm, inverse_norm)

    def distance(self, gram: Gram) -> Tensor:
        """The squared distance that `support` leaves, ``[*batch]``; of a Gram with all norms."""
        norms = [norm for charge, norm in gram.source.items() if not (self.scaled and charge)]
        norms += gram.target.values()
        return sum(norm.double().sum(-1) for norm in norms) - 2 * self.support(gram)

    def least_distance(self, gram: Gram) -> Tensor:
        """No more than the squared distance that the best element leaves, ``[*batch]``; of a Gram with all norms.

        Each charge for itself, with a scale of its own, and by the norm of its cross-Gram alone.
        """
        found = []
        for charge, cross in gram.cross.items():
            source, target = (norm.double().sum(-1) for norm in gram.norms(charge))
            most = self._nuclear_bound(cross.double())
            if self.scaled and charge:
                found.append(target - most.square() / source.clamp_min(torch.finfo(source.dtype).tiny))
            else:
                found.append(source + target - 2 * most)
        return torch.stack(torch.broadcast_tensors(*found)).clamp_min(0).sum(0)

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
        return self._identity(batch, n) | ({"scale": torch.ones(batch, dtype=torch.float64)} if self.scaled else {})


@dataclass(frozen=True)
class Orthogonal(Isometry):
    """O(n), reflections allowed; ``fix_ones`` restricts it to the elements that fix the all-ones vector.

    ``{"matrix": float64[*batch, n, n], "scale": float64[*batch]}``: x goes to ``scale * x @ matrix``.
    The solver is orthogonal Procrustes, ``M = UΣVᵀ``, ``g = UVᵀ`` (Zhang et al. 2025, Algorithm 1).
    """

    scaled: bool = False
    fix_ones: bool = False

    def inverse(self, value: Value) -> Value:
        return {"matrix": value["matrix"].mT.contiguous()} | inverse_scale(value)

    def compose(self, first: Value, second: Value) -> Value:
        return {"matrix": first["matrix"] @ second["matrix"]} | compose_scale(first, second)

    def describe(self, n: int) -> tuple[str, int]:
        k = n - 1 if self.fix_ones else n
        name = f"O({n})" + (" fixing 1" if self.fix_ones else "")
        return (f"{name} with scale", k * (k - 1) // 2 + 1) if self.scaled else (name, k * (k - 1) // 2)

    def _identity(self, batch: Batch, n: int) -> Value:
        one = torch.eye(n, dtype=torch.float64)
        return {"matrix": one.expand(*batch, n, n)}  # in one place: a start is held beside what is found

    def _move(self, value: Value, x: Tensor) -> Tensor:
        return x @ value["matrix"].to(x)

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
            basis = _complement_of_ones(m.shape[-1]).to(m)
            u, _, vh = svd(basis.T @ m @ basis)
            return {"matrix": basis @ (u @ vh) @ basis.T + 1.0 / m.shape[-1]}
        u, _, vh = svd(m)
        return {"matrix": u @ vh}

    def _nuclear_bound(self, m: Tensor) -> Tensor:
        # the squares of n singular values sum to |m|², so they themselves to √n |m| at most
        return math.sqrt(m.shape[-1]) * torch.linalg.matrix_norm(m)

    def _nuclear(self, m: Tensor) -> Tensor:
        if self.fix_ones:
            basis = _complement_of_ones(m.shape[-1]).to(m)
            return singular_values(basis.T @ m @ basis).sum(-1) + m.sum((-2, -1)) / m.shape[-1]
        return singular_values(m).sum(-1)


@dataclass(frozen=True)
class General(Orthogonal):
    """GL(n) seen from the balanced basis, where it is matched by its isometries (`cobasin.symmetry.balance`).

    ``{"matrix": float64[*batch, n, n]}`` is an isometry. What is learned has a ``dual`` as well, the contragredient of
    its matrix: axes of charge -1 are multiplied by that one.
    """

    def act(self, value: Value, x: Tensor, charge: int = 1) -> Tensor:
        x = wide(x)
        return x @ (_dual(value) if charge < 0 else value["matrix"]).to(x)

    def inverse(self, value: Value) -> Value:
        dual = {"dual": value["matrix"].mT.contiguous()} if "dual" in value else {}
        return {"matrix": _dual(value).mT.contiguous()} | dual

    def compose(self, first: Value, second: Value) -> Value:
        dual = {"dual": _dual(first) @ _dual(second)} if "dual" in first or "dual" in second else {}
        return {"matrix": first["matrix"] @ second["matrix"]} | dual

    def describe(self, n: int) -> tuple[str, int]:
        return f"GL({n})", n * n

    def _isometry_deviation(self, value: Value) -> float:
        product = value["matrix"] @ _dual(value).mT
        return float((product - torch.eye(product.shape[-1], dtype=product.dtype)).abs().max().nan_to_num(math.inf))


def _dual(value: Value) -> Tensor:
    return value.get("dual", value["matrix"])


def _ones(gram: Gram) -> Tensor:
    """A scale of one for every element of the batch, where the Gram is."""
    return gram.total().new_ones(gram.total().shape[:-2], dtype=torch.float64)


def _range_of_scales(gram: Gram) -> tuple[Tensor, Tensor]:
    """Bounds ``[*batch]`` on the best scale of any isometry: its inner products cannot exceed those of the norms."""
    (source, target), (source_inverse, target_inverse) = (
        [norm.double().sum(-1) for norm in gram.norms(charge)] for charge in (1, -1)
    )
    p, m = (source * target).sqrt(), (source_inverse * target_inverse).sqrt()
    low, high = (best_scale(sign * p, -sign * m, source, source_inverse, signed=False) for sign in (-1, 1))
    return low, high


def _between(low: Tensor, high: Tensor, fractions: Tensor) -> Tensor:
    """Scales evenly spaced in the logarithm, ``[fractions, *batch]``."""
    return torch.lerp(low.log(), high.log(), fractions.to(low).reshape(-1, *[1] * low.ndim)).exp()


def _best(value: Value, score: Tensor) -> tuple[Value, Tensor]:
    """The best of several starts, which are the leading axis."""
    score, start = score.max(0)
    picked = {
        part: x.take_along_dim(start.reshape(1, *start.shape, *[1] * (x.ndim - 1 - start.ndim)), 0)[0]
        for part, x in value.items()
    }
    return picked, score


@lru_cache(maxsize=8)
def _complement_of_ones(n: int) -> Tensor:
    """An orthonormal basis of the complement of the all-ones vector, ``[n, n - 1]``."""
    frame = torch.eye(n, dtype=torch.float64, device="cpu")
    frame[:, 0] = 1.0
    return torch.linalg.qr(frame).Q[:, 1:].contiguous()
