"""The cross-Gram of one space between two models, split by how a rescaling acts on each term."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Gram:
    """All that a group needs to know to find its best element.

    With source columns ``a_j`` and target columns ``b_i`` of a space of size n, ``cross[c][..., j, i]`` is the
    sum of ``<a_j, b_i>`` over the tensors in which the space has charge c (+1, -1 or 0), and
    ``source[c][..., j]``, ``target[c][..., i]`` are the squared norms of those columns. Leading axes are a
    batch: heads, frequencies, or pairs of heads (then norms broadcast against them).
    """

    cross: dict[int, Tensor] = field(default_factory=dict)
    source: dict[int, Tensor] = field(default_factory=dict)
    target: dict[int, Tensor] = field(default_factory=dict)

    def add(self, charge: int, cross: Tensor) -> None:
        """Accumulate one tensor's term."""
        _add(self.cross, charge, cross)

    def add_product(self, charge: int, x: Tensor, y: Tensor) -> None:
        """Accumulate the product of two matrices; where there is a sum of their dtype, without memory for its own."""
        if charge in self.cross and self.cross[charge].dtype == x.dtype:
            self.cross[charge].addmm_(x, y)
        else:
            self.add(charge, x @ y)

    def add_norms(self, charge: int, source: Tensor, target: Tensor) -> None:
        """Accumulate the squared norms of one tensor's columns, which groups with a scale need."""
        _add(self.source, charge, source)
        _add(self.target, charge, target)

    def plus(self, other: Gram) -> Gram:
        """The sum of two Grams; axes of size one broadcast."""
        found = Gram(dict(self.cross), dict(self.source), dict(self.target))
        for kind in ("cross", "source", "target"):
            for charge, term in getattr(other, kind).items():
                _add(getattr(found, kind), charge, term)
        return found

    def put(self, rows: Tensor, part: Gram) -> None:
        """Overwrite some rows of all terms and norms."""
        for kind in ("cross", "source", "target"):
            for charge, term in getattr(part, kind).items():
                getattr(self, kind)[charge][rows] = term

    def map(self, change: Callable[[Tensor], Tensor], norms: Callable[[Tensor], Tensor] | None = None) -> Gram:
        """The Gram with ``change`` applied to every cross term, and to every norm, where ``norms`` is not."""
        norms = norms or change
        return Gram(
            {charge: change(term) for charge, term in self.cross.items()},
            {charge: norms(term) for charge, term in self.source.items()},
            {charge: norms(term) for charge, term in self.target.items()},
        )

    def total(self, charge: int | None = None) -> Tensor:
        """The cross terms with this charge, or the sum of those with any, ``[..., n, n]``; 0 without terms."""
        first, *others = self.cross.values()
        if charge is None:
            return sum(others, start=first)
        if charge in self.cross:
            return self.cross[charge]
        return first.new_zeros(()).expand(first.shape)  # takes no memory

    def norms(self, charge: int) -> tuple[Tensor, Tensor]:
        """Squared column norms (source, target) of the terms with this charge, ``[..., n]``; 0 without terms."""
        if charge in self.source:
            return self.source[charge], self.target[charge]
        nothing = torch.zeros_like(next(iter(self.source.values())))
        return nothing, nothing


def _add(terms: dict[int, Tensor], charge: int, term: Tensor) -> None:
    terms[charge] = terms[charge] + term if charge in terms else term
