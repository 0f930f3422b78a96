"""How the input of a linear map changes as an element acts on the model: x' = D x + e.

Matching goes through the canonical form, and so does the input of a weight:

* what a folded norm gives, x = γ∘n + β, is there n, and in the end γ'∘n' + β' with the target's gain and offset;
* what an output projection reads is there without the value bias b, and in the end with the target's;
* in between it moves, dual to the axis of the weight that reads it, with the bases of the two ends and the element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cobasin.symmetry.action import Action, action_of, move_entry
from cobasin.symmetry.balance import balancing_frames, frame_action, inverses
from cobasin.symmetry.canonical import Folded, Gauge, frames_of, gains_of, gauge_of, zero_gain
from cobasin.symmetry.dual import dual
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import Form
from cobasin.symmetry.gauges import Norm, ValueBias
from cobasin.symmetry.keys import Key
from cobasin.symmetry.spec import Entry
from cobasin.symmetry.state import Lazy, State
from cobasin.symmetry.types import Axis, Layout, Node, axes_of, layout, unparse

_ROW = "_row"


@dataclass(frozen=True)
class Input:
    """What a linear map reads; maps that read the same tensor have equal ones.

    Attributes:
        node: the type of the weight's axis that runs over it.
        index: the index values that its spaces vary over, as of the weight's `Entry`.
        norm: the folded norm that it comes out of.
        values: the value biases in it that are moved.
    """

    node: Node
    index: tuple[tuple[str, int], ...]
    norm: Norm | None
    values: tuple[ValueBias, ...]


class MovedInputs:
    """The inputs of a model's linear maps, as an element moves them.

    Args:
        element: acts on the model.
        state: the model's tensors by their names in the spec.

    Raises:
        InputError: where the element cannot be applied to the model.
    """

    def __init__(self, element: Element, state: State):
        form = self.form = element.form
        state = Lazy(state, lambda name, read=state: read[name].double())
        gauge = gauge_of(form, state) if element.target is None else element.target
        self.states = state, element.apply(state)
        self.gains: tuple[Gauge, Gauge] = gains_of(form, state), gauge
        own, others = balancing_frames(form, Folded(form, state)), inverses(frames_of(form, gauge))
        moves = action_of(form.group, element.values)
        self.actions: tuple[Callable[[Key], Action | None], ...] = frame_action(own), moves, frame_action(others)

    def of(self, name: str, axis: int) -> Input:
        """What the weight ``name`` reads along ``axis``."""
        form, spec = self.form, self.form.spec
        entry = spec.entries[name]
        node = entry.layout.nodes[axis]
        spaces = {axis.space for axis in axes_of(node)} & spec.spaces.keys()
        over = {index for space in spaces for index in spec.spaces[space].over}
        index = tuple(item for item in entry.index.items() if item[0] in over)
        values = tuple(gauge for gauge in form.value_biases.values() if gauge.weight == name)
        return Input(node, index, form.readers.get(name), values)

    def move(self, read: Input, rows: Tensor) -> Tensor:
        """Inputs of the model as inputs of the moved one.

        Args:
            read: from `of`.
            rows: float64 [rows, inputs + 1]: an input in every row and, last, what its constant part is
                multiplied by: 1 for an input, 0 for a difference of two.
        """
        sizes, x, one = self.form.spec.sizes, rows[:, :-1], rows[:, -1:]
        (gain, offset), (new_gain, new_offset) = (self._frame(read, end) for end in (0, 1))
        x = (x - one * offset) / gain
        typed = Entry(layout(unparse((Axis(_ROW), dual(read.node))), {**sizes, _ROW: len(rows)}), dict(read.index))
        for action in self.actions:
            x = move_entry(self.form.spec, action, typed, x)
        return torch.cat([x * new_gain + one * new_offset, one], 1)

    def _frame(self, read: Input, end: int) -> tuple[Tensor, Tensor]:
        """Gain and offset, ``[inputs]``, of an input over its canonical form, before (0) and after (1)."""
        form = self.form
        vector = layout(unparse((read.node,)), form.spec.sizes)
        gain, offset = torch.ones(vector.shape).double(), torch.zeros(vector.shape).double()
        if read.norm is not None:
            axes, values = (read.norm.stream,), self.gains[end][read.norm.weight]
            (block,) = form.spec.entries[read.norm.weight].layout.blocks
            own = tuple(axis.space for axis in block.axes)
            if axes[0] in own:  # and not one that heads with bases of their own share
                axes, values = own, block.view(values)
            _put(vector, axes, gain, values)
            if read.norm.bias is not None:
                _put(vector, (read.norm.stream,), offset, self.gains[end][read.norm.bias])
        for gauge in read.values:
            block = form.spec.entries[gauge.bias].layout.blocks[gauge.block]
            total = Folded(form, self.states[end]).before_biases(gauge.bias)  # with what it takes from a norm's offset
            _put(vector, tuple(axis.space for axis in block.axes), offset, block.view(total))
        return gain, offset


def input_obstacle(form: Form, gains: Gauge) -> str | None:
    """Why `MovedInputs` cannot move what norms give: a gain of zero, from which no input can be read back."""
    for norm in form.norms:
        if (entry := zero_gain(gains[norm.weight])) is not None:
            return f"{norm.weight} has a gain of zero (entry {entry})"
    return None


def _put(vector: Layout, spaces: tuple[str, ...], result: Tensor, values: Tensor) -> None:
    """Write ``values`` over ``spaces`` into the blocks of ``result`` that have these, the same along other spaces."""
    for block in vector.blocks:
        own = [axis.space for axis in block.axes]
        if set(spaces) <= set(own):
            ordered = values.permute(*sorted(range(len(spaces)), key=lambda i: own.index(spaces[i])))
            view = block.view(result)
            sizes = [size if space in spaces else 1 for space, size in zip(own, view.shape, strict=True)]
            view.copy_(ordered.reshape(sizes))
