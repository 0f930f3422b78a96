"""How an element acts on one tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from cobasin.symmetry.groups import Value
from cobasin.symmetry.spec import Key, Spec
from cobasin.symmetry.types import Axis, Block

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
    parts = [
        _act_on_block(spec, values, folded, block, steps, block.view(tensor))
        for block, steps in zip(entry.layout.blocks, acting, strict=True)
    ]
    if len(parts) == 1:  # the usual case, without a second copy of what may be a large embedding
        return parts[0].reshape(tensor.shape)
    result = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    for block, part in zip(entry.layout.blocks, parts, strict=True):
        block.view(result).copy_(part)
    return result


def _act_on_block(
    spec: Spec, values: Mapping[Key, Value], folded: bool, block: Block, steps: list[tuple[int, Key]], part: Tensor
) -> Tensor:
    for i, key in steps:
        axis = block.axes[i]
        group = spec.group(axis.space, folded)
        assert group is not None
        act_once = partial(group.act, values[key], charge=axis.charge)
        part = along(part, batch_positions(spec, block.axes, axis.space), i, act_once)
    return part


def batch_positions(spec: Spec, axes: tuple[Axis, ...], space: str) -> list[int]:
    """Positions, in ``axes``, of the spaces that ``space`` varies over."""
    spaces = [axis.space for axis in axes]
    return [spaces.index(over) for over in spec.batch_axes(space)]


def in_new_order(spec: Spec, values: Mapping[Key, Value], key: Key, value: Value) -> Value:
    """An element listed in the order of its heads (or other bases) before they are permuted, in the order after."""
    return _reorder(value, _orders(spec, values, key))


def in_old_order(spec: Spec, values: Mapping[Key, Value], key: Key, value: Value) -> Value:
    """The inverse of `in_new_order`."""
    return _reorder(value, [perm if perm is None else perm.argsort() for perm in _orders(spec, values, key)])


def _orders(spec: Spec, values: Mapping[Key, Value], key: Key) -> list[Tensor | None]:
    """For every batch axis of an element: the permutation that moves it, None where there is none."""
    bases = [spec.key(over, spec.index(key)) for over in spec.batch_axes(str(key[0]))]
    return [values[base]["perm"] if base in values else None for base in bases]


def _reorder(value: Value, perms: list[Tensor | None]) -> Value:
    for axis, perm in enumerate(perms):
        if perm is not None:
            value = {part: tensor.index_select(axis, perm) for part, tensor in value.items()}
    return value


def along(x: Tensor, batch: list[int], axis: int, act: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply ``act`` to ``x`` brought into the form ``[*batch, rest, n]``, and bring the result back."""
    rest = [i for i in range(x.ndim) if i != axis and i not in batch]
    order = [*batch, *rest, axis]
    moved = x.permute(order)
    flat = moved.reshape(*moved.shape[: len(batch)], -1, moved.shape[-1])
    back = [order.index(i) for i in range(x.ndim)]
    return act(flat).reshape(moved.shape).permute(back)
