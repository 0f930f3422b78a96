"""Signs and scales that leave every entry in its place: what QK-norm leaves of the bases of a head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cobasin.symmetry.groups.assignment import PART
from cobasin.symmetry.groups.base import Batch, Group, Value
from cobasin.symmetry.groups.gram import Gram
from cobasin.symmetry.groups.scale import best_scale, compose_scale, gain, inverse_scale
from cobasin.symmetry.state import wide


@dataclass(frozen=True)
class Diagonal(Group):
    """Diagonal matrices: a sign (``signed``) and a positive scale (``scaled``) per entry; trivial with neither.

    ``{"scale": float64[*batch, n]}``; entry i of the result is ``scale[i] * x[i]``. With ``signed`` alone it is ±1,
    and the trivial group has none. Of a cross-Gram only the diagonal counts.
    """

    signed: bool = False
    scaled: bool = False

    @property
    def continuous(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.scaled

    @property
    def charged(self) -> bool:
        return self.signed or self.scaled

    def identity(self, batch: Batch, n: int) -> Value:
        return {"scale": torch.ones(*batch, n, dtype=torch.float64)} if self.charged else {}

    def sample(self, batch: Batch, n: int, generator: torch.Generator) -> Value:
        if not self.charged:
            return {}
        uniform = torch.rand(2, *batch, n, generator=generator, dtype=torch.float64)
        size = torch.exp2(2 * uniform[1] - 1) if self.scaled else torch.ones_like(uniform[1])
        return {"scale": torch.where(uniform[0] < 0.5, -size, size) if self.signed else size}

    def act(self, value: Value, x: Tensor, charge: int = 1) -> Tensor:
        if "scale" not in value or not charge:
            return x
        scale = value["scale"]
        if not scale.requires_grad:
            if bool((scale == 1).all()):  # as between models near each other, in every file
                return x
            if bool((scale.abs() == 1).all()):  # exact in any dtype
                return x * scale[..., None, :].to(x)
        moved = wide(x)
        factor = scale[..., None, :].pow(charge).to(moved)
        # a wider copy of what may be large is not held beside the product
        return moved * factor if moved is x else moved.mul_(factor)

    def inverse(self, value: Value) -> Value:
        return inverse_scale(value)

    def compose(self, first: Value, second: Value) -> Value:
        return compose_scale(first, second)

    def project(self, gram: Gram, joint: bool = True) -> Value:
        _, direct, inverse = _diagonals(gram)
        return self.solve(direct, inverse, self.norms(gram))

    def support(self, gram: Gram) -> Tensor:
        neutral, direct, inverse = _diagonals(gram)
        return (neutral + self.gains(direct, inverse, self.norms(gram))).sum(-1)

    def deviation(self, value: Value) -> float:
        scale = value.get("scale", torch.ones(()))
        size = scale.abs() if self.signed else scale
        usable = bool(scale.isfinite().all() and (size > 0).all() and (self.scaled or (size == 1).all()))
        return 0.0 if usable else math.inf

    def describe(self, n: int) -> tuple[str, int]:
        if self.scaled:
            return "scales" if self.signed else "positive scales", n
        return "signs" if self.signed else "identity", 0

    def norms(self, gram: Gram) -> list[Tensor]:
        """``|A₊|²`` and ``|A₋|²`` of every source column, as `solve` needs them."""
        return [gram.norms(charge)[0] for charge in (1, -1)] if self.scaled else []

    def solve(self, direct: Tensor, inverse: Tensor, norms: Sequence[Tensor]) -> Value:
        """The best sign and scale of pairs of columns, elementwise.

        Args:
            direct, inverse: inner products of the pairs over the terms of charge +1 and -1.
            norms: of the source columns, in shapes that broadcast; nothing without scales.
        """
        if self.scaled:
            direct, inverse, *norms = (x.double() for x in (direct, inverse, *norms))
            return {"scale": best_scale(direct, inverse, *norms, signed=self.signed)}
        return {"scale": torch.where(direct + inverse < 0, -1.0, 1.0).double()} if self.signed else {}

    def gains(self, direct: Tensor, inverse: Tensor, norms: Sequence[Tensor]) -> Tensor:
        """What these pairs gain with their best sign and scale, elementwise and in their dtype; see `solve`."""
        if not self.scaled:
            return (direct + inverse).abs() if self.signed else direct + inverse
        given = torch.broadcast_tensors(direct, inverse, *norms)
        shape = given[0].shape
        rows = (x.reshape(-1, shape[-1]).split(max(1, PART // shape[-1])) for x in given)
        found = [gain(best_scale(*part, signed=self.signed), *part) for part in zip(*rows, strict=True)]
        return torch.cat(found).reshape(shape)


def _diagonals(gram: Gram) -> list[Tensor]:
    """The diagonals of the neutral, direct and inverse cross terms, ``[..., n]``."""
    return [gram.total(charge).diagonal(dim1=-2, dim2=-1) for charge in (0, 1, -1)]
