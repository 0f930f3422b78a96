"""How an element acts on one tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from cobasin.symmetry.groups import Value
from cobasin.symmetry.spec import Key, Spec
from cobasin.symmetry.types import Axis

Values = dict[Key, Value]


def act(spec: Spec, values: Mapping[Key, Value], folded: bool, name: str, tensor: Tensor) -> Tensor:
    """``tensor`` (named ``name`` in the spec) moved by all elements in ``values`` that touch it.

    Keys that ``values`` lacks act as the identity. Computed in the tensor's dtype; the input is not changed.
    """
    entry = spec.entries[name]
    entry.layout.check(tuple(tensor.shape))
    acting = [
        [
            (i, key)
            for i in spec.acting_order(block.axes)
            if block.axes[i].space in spec.spaces and (key := spec.key(block.axes[i].space, entry.index)) in values
        ]
        for block in entry.layout.blocks
    ]
    if not any(acting):
        return tensor
    result = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    for block, steps in zip(entry.layout.blocks, acting, strict=True):
        part = block.view(tensor)
        for i, key in steps:
            axis = block.axes[i]
            group = spec.group(axis.space, folded)
            assert group is not None
            part = along(
                part,
                batch_positions(spec, block.axes, axis.space),
                i,
                lambda x, g=group, k=key, c=axis.charge: g.act(values[k], x, c),
            )
        block.view(result).copy_(part)
    return result


def batch_positions(spec: Spec, axes: tuple[Axis, ...], space: str) -> list[int]:
    """Positions, in ``axes``, of the spaces that ``space`` varies over."""
    spaces = [axis.space for axis in axes]
    return [spaces.index(over) for over in spec.batch_axes(space)]


def along(x: Tensor, batch: list[int], axis: int, act: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply ``act`` to ``x`` brought into the form ``[*batch, rest, n]``, and bring the result back."""
    rest = [i for i in range(x.ndim) if i != axis and i not in batch]
    order = [*batch, *rest, axis]
    moved = x.permute(order)
    flat = moved.reshape(*moved.shape[: len(batch)], -1, moved.shape[-1])
    back = [order.index(i) for i in range(x.ndim)]
    return act(flat).reshape(moved.shape).permute(back)
