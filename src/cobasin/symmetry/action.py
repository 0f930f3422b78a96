"""How an element acts on one tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Protocol

import torch
from torch import Tensor

from cobasin.symmetry.groups import Group, Value
from cobasin.symmetry.keys import Key
from cobasin.symmetry.spec import Entry, Spec
from cobasin.symmetry.types import Axis, Block

Values = dict[Key, Value]


class Action(Protocol):
    """How one element acts."""

    def __call__(self, x: Tensor, charge: int) -> Tensor:
        """``x[*batch, rest, n]`` moved, where the space has this charge."""
        ...


def act(spec: Spec, values: Mapping[Key, Value], group: Callable[[Key], Group], name: str, tensor: Tensor) -> Tensor:
    """``tensor`` (named ``name`` in the spec) moved by all elements in ``values`` that touch it.

    Keys that ``values`` lacks act as the identity. What is multiplied is in float32 or better, what only gets
    another order or other signs in its own dtype; the input is not changed.
    """
    return move(spec, action_of(group, values), name, tensor)


def action_of(group: Callable[[Key], Group], values: Mapping[Key, Value]) -> Callable[[Key], Action | None]:
    """How the elements in ``values`` act, for `move`."""

    def action(key: Key) -> Action | None:
        return partial(group(key).act, values[key]) if key in values else None

    return action


def move(spec: Spec, action: Callable[[Key], Action | None], name: str, tensor: Tensor) -> Tensor:
    """``tensor`` moved along every axis by the action of that axis's key, where there is one."""
    return move_entry(spec, action, spec.entries[name], tensor)


def move_entry(spec: Spec, action: Callable[[Key], Action | None], entry: Entry, tensor: Tensor) -> Tensor:
    """`move` for a tensor of any type, which may be none of the model's own."""
    entry.layout.check(tuple(tensor.shape))
    acting = [
        [
            (i, action_)
            for i in spec.acting_order(block.axes)
            if block.axes[i].space in spec.spaces
            and (action_ := action(spec.key(block.axes[i].space, entry.index))) is not None
        ]
        for block in entry.layout.blocks
    ]
    if not any(acting):
        return tensor
    parts = [
        _move_block(spec, block, steps, block.view(tensor))
        for block, steps in zip(entry.layout.blocks, acting, strict=True)
    ]
    if len(parts) == 1:  # the usual case, without a second copy of what may be a large embedding
        return parts[0].reshape(tensor.shape)
    dtype = reduce(torch.promote_types, (part.dtype for part in parts))
    result = torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)
    for block, part in zip(entry.layout.blocks, parts, strict=True):
        block.view(result).copy_(part)
    return result


def _move_block(spec: Spec, block: Block, steps: list[tuple[int, Action]], part: Tensor) -> Tensor:
    for i, action in steps:
        axis = block.axes[i]
        part = along(part, batch_positions(spec, block.axes, axis.space), i, partial(action, charge=axis.charge))
    return part


def batch_positions(spec: Spec, axes: tuple[Axis, ...], space: str) -> list[int]:
    """Positions, in ``axes``, of the spaces that ``space`` varies over."""
    spaces = [axis.space for axis in axes]
    return [spaces.index(over) for over in spec.batch_axes(space)]


def in_new_order(spec: Spec, values: Mapping[Key, Value], key: Key, value: Value) -> Value:
    """An element listed in the order of its heads (or other bases) before they are permuted, in the order after.

    The orders within the values of another one change before that one does.
    """
    for axis, perm, within in reversed(_orders(spec, values, key)):
        value = {part: _reordered(x, axis, perm, within) for part, x in value.items()}
    return value


def in_old_order(spec: Spec, values: Mapping[Key, Value], key: Key, value: Value) -> Value:
    """The inverse of `in_new_order`."""
    for axis, perm, within in _orders(spec, values, key):
        value = {part: _reordered(x, axis, perm.argsort(-1), within) for part, x in value.items()}
    return value


def _orders(spec: Spec, values: Mapping[Key, Value], key: Key) -> list[tuple[int, Tensor, list[int]]]:
    """For every batch axis of an element that is permuted: which, by what, and the axes that this varies over."""
    axes = spec.batch_axes(key[0])
    bases = {axis: spec.key(over, spec.index(key)) for axis, over in enumerate(axes)}
    return [
        (axis, values[base]["perm"], [axes.index(over) for over in spec.batch_axes(base[0])])
        for axis, base in bases.items()
        if base in values
    ]


def _reordered(x: Tensor, axis: int, perm: Tensor, within: list[int]) -> Tensor:
    """``x`` with an axis permuted, by an order of its own for every place on the axes ``within`` before it."""
    if not within:
        return x.index_select(axis, perm)
    shape = [size if i in (*within, axis) else 1 for i, size in enumerate(x.shape)]
    return x.take_along_dim(perm.reshape(shape), axis)


def along(x: Tensor, batch: list[int], axis: int, act: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply ``act`` to ``x`` brought into the form ``[*batch, rest, n]``, and bring the result back."""
    order = _order(x, batch, axis)
    moved = x.permute(order)
    back = [order.index(i) for i in range(x.ndim)]
    return act(_flat(moved, batch)).reshape(moved.shape).permute(back)


def rows(x: Tensor, batch: list[int], axis: int) -> Tensor:
    """``x`` in the form ``[*batch, rest, n]``: every row runs along ``axis``."""
    return _flat(x.permute(_order(x, batch, axis)), batch)


def _order(x: Tensor, batch: list[int], axis: int) -> list[int]:
    return [*batch, *(i for i in range(x.ndim) if i != axis and i not in batch), axis]


def _flat(x: Tensor, batch: list[int]) -> Tensor:
    """``[*batch, rest, n]`` of axes in this order."""
    return x.reshape(*x.shape[: len(batch)], -1, x.shape[-1])
