"""The cross-Gram of a space between two models, from the types of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor

from cobasin.symmetry.groups import Gram, Group
from cobasin.symmetry.spec import Site, Spec
from cobasin.symmetry.types import Axis

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
) -> Gram:
    """``M[..., j, i] = Σ <source column j, target column i>`` of ``space``, over all places where it occurs.

    Args:
        sites: the places to sum over.
        source, target: read the tensor of a site in either model; the source already moved by all other elements.
        pairs: spaces of which every pair (source, target) gets a Gram of its own, instead of being a batch axis
            or being summed over.
        normalise: divide every term by the norms of its two tensors, so that each counts alike.
        select: for a space, the one pair (source, target) of its values to look at; it stays an axis, of size one.

    Returns:
        A Gram with leading axes: two for every space of ``pairs`` (source, target; of size one where no tensor
        has it), then the remaining spaces that an element of ``space`` varies over.
    """
    gram = Gram()
    for site in sites:
        block = spec.entries[site.tensor].layout.blocks[site.block]
        a, b = block.view(source(site)), block.view(target(site))
        for i, axis in enumerate(block.axes):
            if select and axis.space in select:
                p, q = select[axis.space]
                a, b = a.narrow(i, p, 1), b.narrow(i, q, 1)
        # An isometry is only as good as its Gram; an assignment bears float32.
        dtype = torch.float64 if group.continuous else reduce(torch.promote_types, (a.dtype, b.dtype), torch.float32)
        a, b = a.to(dtype), b.to(dtype)
        if normalise:
            weight = a.norm() * b.norm()
            if weight == 0:
                continue
            b = b / weight
        batch = [over for over in spec.batch_axes(space) if over not in pairs]
        terms = _terms(a, b, block.axes, site.axis, pairs, batch, with_norms=group.scaled)
        charge = block.axes[site.axis].charge if group.charged else 0
        gram.add(charge if group.scaled else abs(charge), *terms)  # a sign is its own inverse
    return gram


def _terms(
    a: Tensor,
    b: Tensor,
    axes: tuple[Axis, ...],
    axis: int,
    pairs: Sequence[str],
    batch: list[str],
    with_norms: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Cross-Gram, source norms and target norms of one block."""
    names = [ax.space for ax in axes]
    left = [chr(ord("a") + i) for i in range(len(axes))]
    right = list(left)
    for i, name in enumerate(names):
        if i == axis or name in pairs:
            right[i] = chr(ord("A") + i)
    paired = [(left[names.index(s)], right[names.index(s)]) if s in names else None for s in pairs]
    shared = [left[names.index(s)] for s in batch]
    out = [letter for pair in paired if pair for letter in pair] + shared
    if len(axes) == 2 and not paired and not shared:  # einsum makes a batch of one of it, which costs and is slower
        cross = a @ b.mT if axis == 0 else a.mT @ b
    else:
        cross = torch.einsum(f"{''.join(left)},{''.join(right)}->{''.join([*out, left[axis], right[axis]])}", a, b)
    for i, pair in enumerate(paired):
        if pair is None:
            cross = cross.unsqueeze(2 * i).unsqueeze(2 * i)
    if not with_norms:
        return cross, None, None
    norms = []
    for side, (x, letters) in enumerate(((a, left), (b, right))):
        kept = [pair[side] for pair in paired if pair]
        norm = torch.einsum(f"{''.join(letters)}->{''.join([*kept, *shared, letters[axis]])}", x * x)
        for i, pair in enumerate(paired):
            # one axis for the other model; two where the block does not have the space at all
            norm = norm.unsqueeze(2 * i).unsqueeze(2 * i) if pair is None else norm.unsqueeze(2 * i + 1 - side)
        norms.append(norm)
    return cross, norms[0], norms[1]
