"""The cross-Gram of a space between two models, from the types of their tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from cobasin.symmetry.groups import Gram, Group
from cobasin.symmetry.spec import Site, Spec
from cobasin.symmetry.state import common_dtype
from cobasin.symmetry.types import Axis

_PART = 1 << 22  # entries that are brought to another dtype at once

Read = Callable[[Site], Tensor]
"""Gives the tensor of a site."""


def cross_gram(
    spec: Spec,
    space: str,
    group: Group,
    sites: Iterable[Site],
    source: Read,
    target: Read,
    pairs: Sequence[str] = (),
    normalise: bool = False,
    select: Mapping[str, tuple[int, int]] | None = None,
    columns: slice | None = None,
    every: int = 1,
    norms: bool = False,
) -> Gram:
    """``M[..., j, i] = Σ <source column j, target column i>`` of ``space``, over all places where it occurs.

    Args:
        sites: the places to sum over.
        source, target: read the tensor of a site in either model; the source already moved by all other elements.
        pairs: spaces of which every pair (source, target) gets a Gram of its own, instead of being a batch axis
            or being summed over.
        normalise: divide every term by the norms of its two tensors, so that each counts alike.
        select: for a space, the one pair (source, target) of its values to look at.
        columns: of the source; all if none are given.
        every: of what is summed over in a tensor, one in so many is looked at.
        norms: whether to find the squared norms of the columns, though ``group`` has no scale.

    Returns:
        A Gram with leading axes: two for every space of ``pairs`` (source, target; of size one where no tensor
        has it), then the remaining spaces that an element of ``space`` varies over.
    """
    gram, select = Gram(), select or {}
    for site in sites:
        block = spec.block_at(site)
        a, b = block.view(source(site)), block.view(target(site))
        if columns:
            a = a.narrow(site.axis, columns.start, columns.stop - columns.start)
        axes, at = list(block.axes), site.axis
        for i in reversed(range(len(axes))):
            if axes[i].space in select:
                p, q = select[axes.pop(i).space]
                a, b, at = a.select(i, p), b.select(i, q), at - (i < at)
        # An isometry is only as good as its Gram; an assignment bears float32.
        dtype = torch.float64 if group.continuous else common_dtype(a, b)
        batch = [over for over in spec.batch_axes(space) if over not in {*pairs, *select}]
        summed = [i for i, axis in enumerate(axes) if i != at and axis.space not in {*pairs, *batch}]
        longest = max(summed, key=lambda i: a.shape[i], default=None)
        if longest is not None:
            a, b = (one.movedim(longest, 0)[::every].movedim(0, longest) for one in (a, b))
        parts = partial(_parts, a, b, longest, dtype)
        weight = _weight(parts()) if normalise else 1.0
        if weight == 0:
            continue
        charge = group.charge(axes[at].charge)
        sums = _Sums.of(axes, at, pairs, batch)
        for x, y in parts():
            y = y / weight if normalise else y
            if sums.plain:
                left, right = (one.movedim(at, 0).reshape(one.shape[at], -1) for one in (x, y))
                gram.add_product(charge, left, right.mT)
            else:
                gram.add(charge, sums.cross(x, y))
            if group.scaled or norms:
                gram.add_norms(charge, sums.norm(x, 0), sums.norm(y, 1))
    return gram


def _parts(a: Tensor, b: Tensor, axis: int | None, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """Two tensors in ``dtype``, part by part along an axis that is summed over; whole where that is None."""
    size = 1 if axis is None else a.shape[axis]
    step = max(1, _PART * size // max(1, a.numel(), b.numel()))
    for start in range(0, size, step):
        x, y = (one if axis is None else one.narrow(axis, start, min(step, size - start)) for one in (a, b))
        yield x.to(dtype), y.to(dtype)


def _weight(parts: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The product of the norms of two tensors."""
    squares = [(float(x.square().sum()), float(y.square().sum())) for x, y in parts]
    return math.sqrt(sum(x for x, _ in squares)) * math.sqrt(sum(y for _, y in squares))


@dataclass(frozen=True)
class _Sums:
    """What is summed over in a block, in the words of einsum.

    Attributes:
        left, right: a letter for every axis of the source and the target.
        axis: that of the space.
        paired: of every space of ``pairs`` its letters in both; None where the block does not have it.
        shared: of the batch axes.
    """

    left: list[str]
    right: list[str]
    axis: int
    paired: list[tuple[str, str] | None]
    shared: list[str]

    @classmethod
    def of(cls, axes: Sequence[Axis], axis: int, pairs: Sequence[str], batch: Sequence[str]) -> _Sums:
        names = [ax.space for ax in axes]
        left = [chr(ord("a") + i) for i in range(len(axes))]
        right = list(left)
        for i, name in enumerate(names):
            if i == axis or name in pairs:
                right[i] = chr(ord("A") + i)
        paired = [(left[names.index(s)], right[names.index(s)]) if s in names else None for s in pairs]
        return cls(left, right, axis, paired, [left[names.index(s)] for s in batch])

    @property
    def plain(self) -> bool:
        """Whether the cross-Gram is a product of two matrices; einsum would make a batch of one of it, which costs."""
        return not self.paired and not self.shared

    def cross(self, a: Tensor, b: Tensor) -> Tensor:
        """The cross-Gram."""
        out = [letter for pair in self.paired if pair for letter in pair] + self.shared
        out += [self.left[self.axis], self.right[self.axis]]
        cross = torch.einsum(f"{''.join(self.left)},{''.join(self.right)}->{''.join(out)}", a, b)
        for i, pair in enumerate(self.paired):
            if pair is None:
                cross = cross.unsqueeze(2 * i).unsqueeze(2 * i)
        return cross

    def norm(self, x: Tensor, side: int) -> Tensor:
        """The squared norms of the columns of the source (side 0) or the target (1)."""
        letters = (self.left, self.right)[side]
        kept = [pair[side] for pair in self.paired if pair]
        norm = torch.einsum(f"{''.join(letters)}->{''.join([*kept, *self.shared, letters[self.axis]])}", x * x)
        for i, pair in enumerate(self.paired):
            # one axis for the other model; two where the block does not have the space at all
            norm = norm.unsqueeze(2 * i).unsqueeze(2 * i) if pair is None else norm.unsqueeze(2 * i + 1 - side)
        return norm
