"""What an axis is contracted with moves against it: inputs of linear maps, gradients of tensors.

Where a weight is multiplied along an axis, what it reads there is divided: the charges of its spaces change their sign.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from cobasin.symmetry.action import Values, action_of, move_entry
from cobasin.symmetry.form import Form
from cobasin.symmetry.types import Axis, Node, layout, unparse


def dual(node: Node) -> Node:
    """The type of what an axis of this type is contracted with."""
    if isinstance(node, Axis):
        return replace(node, charge=-node.charge)
    return replace(node, parts=tuple(map(dual, node.parts)))


def act_dual(form: Form, values: Values, name: str, tensor: Tensor) -> Tensor:
    """A gradient with respect to the tensor ``name``, moved as the tensor is moved by ``values``."""
    entry = form.spec.entries[name]
    text = unparse(tuple(map(dual, entry.layout.nodes)))
    typed = replace(entry, layout=layout(text, form.spec.sizes))
    return move_entry(form.spec, action_of(form.group, values), typed, tensor)
