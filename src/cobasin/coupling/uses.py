"""Where couplings can act on a tensor, from its type alone.

A coupling runs over all that lies on one axis of a tensor and may change places: of ``(head qk)`` over the coordinates
of all heads together, so that they are coupled across heads as in Imfeld et al. (ICLR 2024). Not coupled are
coordinates that a rotary embedding or a QK-norm ties to their places (whole heads are), and the order of the query
heads of a key-value group.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from torch import Tensor

from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.keys import Key
from cobasin.symmetry.spec import Entry, Spec
from cobasin.symmetry.types import Block, layout, unparse

Basis = tuple[Key, ...]
"""What one coupling runs over: the product of some spaces."""


@dataclass(frozen=True)
class Use:
    """A place where a coupling acts: one axis of one block of a tensor.

    Attributes:
        axis: the tensor axis.
        block: the number of the block in the tensor's layout.
        part: the part of that block along the tensor axis; its axes begin at ``start`` among those of the block.
        coupled: which axes of the part the coupling runs over.
        batch: which of them have a coupling for each of their entries.
        basis: what the coupling runs over.
    """

    axis: int
    block: int
    part: Block
    start: int
    coupled: tuple[int, ...]
    batch: tuple[int, ...]
    basis: Basis

    def rows(self, view: Tensor) -> Tensor:
        """A block, one axis for every axis of its type, as ``[batch, n, rest]`` with ``n`` along the coupling."""
        front = view.permute(self._order(view, self.start))
        return self._flat(front)

    def output_rows(self, activations: Tensor) -> Tensor:
        """Outputs ``[rows, outputs]`` of the module that holds the tensor, as ``[batch, n, rest, rows]``."""
        view = self.part.view(activations.mT)
        front = view.permute([*self._order(view, 0)[:-1], view.ndim - 1])
        return self._flat(front).unflatten(-1, (-1, len(activations)))

    def carry(self, view: Tensor, coupling: Tensor) -> Tensor:
        """A block moved along this use: entry j of the result is ``Σ_i coupling[i, j] x_i``.

        Args:
            view: with one axis for every axis of the block.
            coupling: ``[batch, n, n]``.
        """
        order = self._order(view, self.start)
        moved = coupling.to(view.dtype).mT @ self.rows(view)
        return moved.reshape([view.shape[i] for i in order]).permute([order.index(i) for i in range(view.ndim)])

    def _order(self, view: Tensor, start: int) -> list[int]:
        own = [start + i for i in (*self.batch, *self.coupled)]
        return [*own, *(i for i in range(view.ndim) if i not in own)]

    def _flat(self, front: Tensor) -> Tensor:
        b, n = len(self.batch), len(self.batch) + len(self.coupled)
        return front.reshape(front.shape[:b].numel(), front.shape[b:n].numel(), -1)


def uses_of(spec: Spec, entry: Entry) -> list[Use]:
    """Where couplings can act on a tensor, block by block and axis by axis."""
    alternatives = [layout(unparse((node,)), spec.sizes).blocks for node in entry.layout.nodes]
    found = []
    for block, parts in enumerate(itertools.product(*alternatives)):
        start = 0
        for axis, part in enumerate(parts):
            spaces = [one.space for one in part.axes]
            coupled = tuple(i for i, space in enumerate(spaces) if _is_coupled(spec, space))
            if coupled:
                over = {base for i in coupled for base in spec.batch_axes(spaces[i])} - {spaces[i] for i in coupled}
                batch = tuple(i for i, space in enumerate(spaces) if space in over)
                basis = tuple(spec.key(spaces[i], entry.index) for i in coupled)
                found.append(Use(axis, block, part, start, coupled, batch, basis))
            start += len(part.axes)
    return found


def _is_coupled(spec: Spec, name: str) -> bool:
    """Whether entries of this space may take each other's place."""
    space = spec.spaces.get(name)
    if space is None or not isinstance(space.group, (Permutation, Orthogonal)):
        return False
    if space.part == "attention":  # the order of gains of a QK-norm, along which every head has signs of its own
        return not any(name in spec.batch_axes(other) for other in spec.spaces)
    return not (space.part == "heads" and spec.batch_axes(name))  # the heads of a key-value group
