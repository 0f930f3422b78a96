"""Permutations, with signs and scales: the group of neurons, heads and generic-gain residual streams."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cobasin.symmetry.groups.assignment import assign
from cobasin.symmetry.groups.base import Batch, Group, Value
from cobasin.symmetry.groups.gram import Gram
from cobasin.symmetry.groups.scale import aligning_scale, best_scale, gain


@dataclass(frozen=True)
class Permutation(Group):
    """Monomial matrices: a permutation, with a sign (``signed``) and a positive scale (``scaled``) per entry.

    ``{"perm": int64[*batch, n], "scale": float64[*batch, n]}``; entry i of the result is
    ``scale[i] * x[perm[i]]``. Plain permutations have no ``scale``; with ``signed`` alone it is ±1.
    """

    signed: bool = False
    scaled: bool = False
    continuous = False

    @property
    def charged(self) -> bool:
        return self.signed or self.scaled

    def identity(self, batch: Batch, n: int) -> Value:
        value = {"perm": torch.arange(n).expand(*batch, n).clone()}
        return value | ({"scale": torch.ones(*batch, n, dtype=torch.float64)} if self.charged else {})

    def sample(self, batch: Batch, n: int, generator: torch.Generator) -> Value:
        value = {"perm": torch.rand(*batch, n, generator=generator).argsort(-1)}
        if self.charged:
            uniform = torch.rand(2, *batch, n, generator=generator, dtype=torch.float64)
            sign = torch.ones_like(uniform[0])
            if self.signed:
                sign[uniform[0] < 0.5] = -1
            value["scale"] = sign * torch.exp2(2 * uniform[1] - 1) if self.scaled else sign
        return value

    def act(self, value: Value, x: Tensor, charge: int = 1) -> Tensor:
        perm = value["perm"]
        # one permutation for all rows is an index, not a gather of every entry
        x = x.index_select(-1, perm) if perm.ndim == 1 else x.gather(-1, perm[..., None, :].expand(x.shape))
        if "scale" in value and charge:
            x = x * value["scale"][..., None, :].pow(charge).to(x.dtype)
        return x

    def inverse(self, value: Value) -> Value:
        perm = value["perm"].argsort(-1)
        return {"perm": perm} | ({"scale": value["scale"].gather(-1, perm).reciprocal()} if "scale" in value else {})

    def compose(self, first: Value, second: Value) -> Value:
        value = {"perm": first["perm"].gather(-1, second["perm"])}
        if "scale" in first:
            value["scale"] = first["scale"].gather(-1, second["perm"])
        if "scale" in second:
            value["scale"] = value.get("scale", 1.0) * second["scale"]
        return value

    def project(self, gram: Gram, joint: bool = True) -> Value:
        perm = assign(self._pair_gain(gram))
        if not self.charged:
            return {"perm": perm}
        direct, inverse = (_matched(gram.total(charge), perm).double() for charge in (1, -1))
        if not self.scaled:
            return {"perm": perm, "scale": torch.where(direct + inverse < 0, -1.0, 1.0).double()}
        norm, inverse_norm = (gram.norms(charge)[0].gather(-1, perm).double() for charge in (1, -1))
        return {"perm": perm, "scale": best_scale(direct, inverse, norm, inverse_norm, signed=self.signed)}

    def support(self, gram: Gram) -> Tensor:
        table = self._pair_gain(gram)
        return _matched(table, assign(table)).sum(-1)

    def deviation(self, value: Value) -> float:
        perm = value["perm"]
        bijective = perm.sort(-1).values.equal(torch.arange(perm.shape[-1]).expand(perm.shape))
        scale = value.get("scale", torch.ones(()))
        size = scale.abs() if self.signed else scale
        usable = bool(scale.isfinite().all() and (size > 0).all() and (self.scaled or (size == 1).all()))
        return 0.0 if bijective and usable else math.inf

    def describe(self, n: int) -> tuple[str, int]:
        name = f"S({n})" if not self.charged else f"{'signed ' if self.signed else ''}S({n})"
        return (name + " with scales", n) if self.scaled else (name, 0)

    def _pair_gain(self, gram: Gram) -> Tensor:
        """What matching column j to column i gains, ``[..., j, i]``."""
        if not self.charged:
            return gram.total()
        direct, inverse = gram.total(1), gram.total(-1)
        if not self.scaled:
            return gram.total(0) + (direct + inverse).abs()
        scale = aligning_scale(gram, per_column=True)
        moved = scale * direct + inverse / scale
        norm, inverse_norm = (gram.norms(charge)[0][..., :, None] for charge in (1, -1))
        return gram.total(0) + (moved.abs() if self.signed else moved) + gain(scale, 0.0, 0.0, norm, inverse_norm)


def _matched(table: Tensor, perm: Tensor) -> Tensor:
    """``table[..., perm[i], i]``: the entries of the matched pairs, ``[..., n]``."""
    return table.gather(-2, perm[..., None, :])[..., 0, :]
