"""The contract of a group that acts on a space.

A group element is a dictionary of tensors with leading batch axes, so that all heads of a layer are one
element. It acts from the right on the last axis of ``x[*batch, m, n]``. A rescaling multiplies axes of charge
+1, divides axes of charge -1 and leaves axes of charge 0 alone (`cobasin.symmetry.types`); without a
``scale`` entry an element does not rescale.

`project` returns the element closest to carrying the source onto the target, ``argmax <g, M> - |g·A|²/2``
for the cross-Gram M; `support` its value, half of what it takes off the squared distance (up to a constant).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from cobasin.symmetry.groups.gram import Gram

Value = dict[str, Tensor]
Batch = tuple[int, ...]


class Group(ABC):
    """The contract of every group. ``batch`` are leading shapes, ``n`` the size of the space."""

    scaled: bool
    """Whether its elements rescale."""
    continuous: bool
    """Whether its elements form a continuum, so that rounding of the Gram shows in them."""

    @property
    def charged(self) -> bool:
        """Whether the charge of an axis makes a difference."""
        return self.scaled

    def charge(self, declared: int) -> int:
        """How an axis of this charge counts."""
        if not self.charged:
            return 0
        return declared if self.scaled else abs(declared)  # a sign is its own inverse

    @abstractmethod
    def identity(self, batch: Batch, n: int) -> Value:
        """The neutral element."""

    @abstractmethod
    def sample(self, batch: Batch, n: int, generator: torch.Generator) -> Value:
        """A random element, of every part of the group (scales within a factor of two)."""

    @abstractmethod
    def act(self, value: Value, x: Tensor, charge: int = 1) -> Tensor:
        """``x[*batch, m, n]`` moved by the element; multiplied in float32 or better, else in x's dtype."""

    @abstractmethod
    def inverse(self, value: Value) -> Value:
        """The inverse element."""

    @abstractmethod
    def compose(self, first: Value, second: Value) -> Value:
        """The element that acts like ``first`` and then ``second``."""

    @abstractmethod
    def project(self, gram: Gram, joint: bool = True) -> Value:
        """The best element for a cross-Gram; ``joint=False`` solves the scale after the rest, as the paper does."""

    def refine(self, value: Value, gram: Gram) -> Value:
        """A value no worse than ``value``, at the cost of one exact step; the best one, where that costs no more."""
        return self.project(gram)

    @abstractmethod
    def support(self, gram: Gram) -> Tensor:
        """Value of the best element, ``[*batch]``; of a scaled isometry a lower bound."""

    @abstractmethod
    def deviation(self, value: Value) -> float:
        """How far a value is from being an element, 0 for an exact one and inf for none at all."""

    @abstractmethod
    def describe(self, n: int) -> tuple[str, int]:
        """Its name at size n and its dimension as a manifold (0 for a finite group)."""
