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

    def add(self, charge: int, cross: Tensor, source: Tensor | None = None, target: Tensor | None = None) -> None:
        """Accumulate one tensor's term; norms are needed by groups with a scale only."""
        for terms, term in ((self.cross, cross), (self.source, source), (self.target, target)):
            if term is not None:
                terms[charge] = terms[charge] + term if charge in terms else term

    def map(self, change: Callable[[Tensor], Tensor], norms: Callable[[Tensor], Tensor]) -> Gram:
        """The Gram with ``change`` applied to every cross term and ``norms`` to every norm."""
        return Gram(
            {charge: change(term) for charge, term in self.cross.items()},
            {charge: norms(term) for charge, term in self.source.items()},
            {charge: norms(term) for charge, term in self.target.items()},
        )

    def total(self, *charges: int) -> Tensor:
        """Sum of the cross terms with these charges (all, if none are named), ``[..., n, n]``; 0 without terms."""
        terms = [term for charge, term in self.cross.items() if not charges or charge in charges]
        if terms:
            return sum(terms[1:], start=terms[0])
        like = next(iter(self.cross.values()))
        return like.new_zeros(()).expand(like.shape)  # takes no memory

    def norms(self, charge: int) -> tuple[Tensor, Tensor]:
        """Squared column norms (source, target) of the terms with this charge, ``[..., n]``; 0 without terms."""
        if charge in self.source:
            return self.source[charge], self.target[charge]
        nothing = torch.zeros_like(next(iter(self.source.values())))
        return nothing, nothing
