"""Statistics have types: those of a matched model follow from those of the model as it was.

A Gram moves on both sides with what the weight reads. A diagonal Fisher holds mean squares of gradients, so it moves
where every entry of a gradient becomes one entry of the other: under permutations, signs and scales. Under a rotation,
and where the gauge of a norm, a value bias or a basis changes, it has to be collected on the matched model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.statistics.grams import InputGram
from cobasin.symmetry.canonical import gains_of
from cobasin.symmetry.dual import act_dual
from cobasin.symmetry.element import Element
from cobasin.symmetry.gauges import ValueBias
from cobasin.symmetry.groups import Value
from cobasin.symmetry.inputs import Input, MovedInputs, input_obstacle
from cobasin.symmetry.keys import Key

_WAY_OUT = "collect them on the matched model"


def move_grams(element: Element, typed: Typed, grams: Mapping[str, InputGram]) -> dict[str, InputGram]:
    """The Grams that the same data would give on ``element.apply(typed)``.

    Args:
        element: of the model, from `match`.
        typed: the model as the element acts on it (see `cobasin.finding.acting.typed_for`).
        grams: of the model, by spec name.

    Raises:
        InputError: where they do not move; see `gram_obstacle`.
    """
    if (obstacle := gram_obstacle(element, typed)) is not None:
        raise InputError(f"{typed.checkpoint.label}: its Grams do not move with it, {obstacle}; {_WAY_OUT}")
    inputs = MovedInputs(element, typed)
    moved: dict[tuple[int, Input], Tensor] = {}  # maps that read one tensor share its Gram, before and after

    def move(read: Input, matrix: Tensor) -> Tensor:
        if (id(matrix), read) not in moved:
            moved[id(matrix), read] = inputs.move(read, inputs.move(read, matrix).T)  # one side, then the other
        return moved[id(matrix), read]

    return {name: replace(gram, matrix=move(inputs.of(name, gram.axis), gram.matrix)) for name, gram in grams.items()}


def gram_obstacle(element: Element, typed: Typed) -> str | None:
    """Why a model's Grams do not move with the element, None where they do."""
    return input_obstacle(element.form, gains_of(element.form, typed))


def move_fishers(element: Element, typed: Typed, fishers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The diagonal Fisher information that the same data would give on ``element.apply(typed)``.

    Args:
        element: of the model, from `match`.
        typed: the model as the element acts on it.
        fishers: of the model, by spec name, with the shapes of its tensors.

    Raises:
        InputError: for an element that is not `movable`.
    """
    if not movable(element):
        raise InputError(
            f"{typed.checkpoint.label}: its diagonal Fisher information does not move with an element that does more "
            f"than permute and scale; {_WAY_OUT}"
        )
    return {name: act_dual(element.form, element.values, name, x.sqrt()).square() for name, x in fishers.items()}


def movable(element: Element) -> bool:
    """Whether diagonal Fisher information moves with the element.

    It does under permutations, signs and scales. It does not where norms are folded, value biases moved or bases
    balanced, even if by nothing. What a softmax cancels (a key bias, a shift of all its inputs) changes no gradient.
    """
    form = element.form
    changed = form.norms or form.scales or form.balanced or any(isinstance(one, ValueBias) for one in form.biases)
    return not changed and all(_is_monomial(element, key, value) for key, value in element.values.items())


def _is_monomial(element: Element, key: Key, value: Value) -> bool:
    """Whether an element takes every entry to one entry; a rotation does so only where it is none."""
    identity = element.form.identity(key)
    return all(torch.equal(value[part], identity[part]) for part in value.keys() - {"perm", "scale"})
