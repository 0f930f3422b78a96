"""Weighted sums of models, as a model that runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from cobasin.checkpoints.by_name import by_name, check_by_name
from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.pairs import check_pair
from cobasin.checkpoints.running import build, cast_floats
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError, NotDeclared
from cobasin.execution.devices import device_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Blend:
    """Models of one class, and one model of the first one's config that becomes any weighted sum of them.

    Sums are taken in float32; integer tensors stay those of one of them. All models are held in memory.
    """

    def __init__(self, models: Sequence[Checkpoint], device: torch.device | str = "cpu"):
        """Build the models.

        Raises:
            InputError: there is no such device; the checkpoints differ in names, shapes, settings or labels, or their
                classes tie different tensors; as `cobasin.checkpoints.running.build`.
        """
        first = models[0]
        device = device_of(device)
        for other in models[1:]:
            _check_alike(first, other)
        states = [_built(first, model, device).state_dict() for model in models]
        # a head that repeats its embedding is tied by some classes, whatever the config says (T5): the sum ties what
        # all do, so it is made of a model that ties no more
        places = [{name: x.data_ptr() for name, x in state.items() if x.is_floating_point()} for state in states]
        names = {tuple(place[name] for place in places): name for name in places[0]}.values()
        freest = max(range(len(models)), key=lambda i: len({*places[i].values()}))
        if len({*places[freest].values()}) < len(names):
            raise InputError(
                f"{', '.join(model.label for model in models)}: tie different tensors: no line between them"
            )
        self._model = _built(first, models[freest], device).requires_grad_(False)
        state = self._model.state_dict()
        self._target, *self._ends = ([own[name] for name in names] for own in (state, *states))

    @torch.no_grad()
    def at(self, weights: Sequence[float]) -> PreTrainedModel:
        """The weighted sum, in evaluation mode: always the same object, so it is that sum until the next call."""
        for target, *ends in zip(self._target, *self._ends, strict=True):
            target.copy_(ends[0]).mul_(weights[0])
            for end, weight in zip(ends[1:], weights[1:], strict=True):
                target.add_(end, alpha=weight)
        return self._model

    @torch.no_grad()
    def inner(self, left: Sequence[float], right: Sequence[float]) -> float:
        """The inner product of two weighted sums of the models, over all float tensors that are not tied."""
        total = 0.0
        for ends in zip(*self._ends, strict=True):
            x, y = (
                sum((weight * end for weight, end in zip(weights, ends, strict=True)), torch.zeros_like(ends[0]))
                for weights in (left, right)
            )
            total += float((x * y).sum())
        return total


def _check_alike(a: Checkpoint, b: Checkpoint) -> None:
    if lonely := sorted(set(a) ^ set(b)):
        owner = a if lonely[0] in a else b
        raise InputError(f"only {owner.label} has {lonely[0]}: no straight line between {a.label} and {b.label}")
    for name in a:
        left, right = list(a.headers[name].shape), list(b.headers[name].shape)
        if left != right:
            raise InputError(f"{name} has shape {left} in {a.label} and {right} in {b.label}: no line between them")
    try:
        check_line(Typed.of(a), Typed.of(b))
    except NotDeclared:
        check_by_name(by_name(a), by_name(b))


def check_line(a: Typed, b: Typed) -> None:
    """Refuse models between which no line is: all on it are run as the first is, and answer by its labels.

    Raises:
        InputError: they differ in their settings, or in the labels of their heads.
    """
    check_pair(a, b)
    if a.labels != b.labels:
        ends = f"{a.checkpoint.label} and {b.checkpoint.label}"
        raise InputError(f"the task heads of {ends} have different labels: no line between them")


def _built(first: Checkpoint, model: Checkpoint, device: torch.device | str) -> PreTrainedModel:
    made = build(first, {name: cast_floats(model[name], torch.float32) for name in first}, torch.float32)
    return torch.nn.Module.to(made, device)  # type: ignore[return-value]
