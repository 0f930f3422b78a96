"""The parts of a model that have parameters of their own: all its layers, or mergekit's slices of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobasin.errors import InputError
from cobasin.recipe.blocks import LAYER_BY_LAYER, Entry, Module, Slice

Given = Mapping[str, Any]
"""Parameters as written."""


@dataclass(frozen=True)
class Part:
    """Some layers, and what a recipe says about them.

    Attributes:
        label: what messages add to a key of this part.
        models: as listed; one that an earlier part has, as it is written there.
        first, stop: the layers ``first`` to ``stop - 1`` of the result; to the last one where ``stop`` is None.
        shared: parameters for all models.
        own: parameters for each model.
    """

    label: str
    models: list[str]
    first: int
    stop: int | None
    shared: Given
    own: list[Given]
    start: int = 0
    """Of layers that are stacked: the layer of the model that ``first`` is."""


def parts_of(body: Module) -> list[Part]:
    """The parts of a recipe.

    Raises:
        InputError: for slices that are not the layers of equal models from the first to the last.
    """
    if body.slices is None:
        entries = body.models or []
        return [Part("", [entry.model for entry in entries], 0, None, {}, _own(entries))]
    parts: list[Part] = []
    for i, one in enumerate(body.slices):
        first, stop = _range(one, i)
        models = [_as_before(source.model, parts) for source in one.sources]
        if parts and models != parts[0].models:
            raise InputError(
                f"slices[{i}] is of {', '.join(models)}, slices[0] of {', '.join(parts[0].models)}: {LAYER_BY_LAYER}, "
                "so list the same models in the same order in every slice"
            )
        expected = parts[-1].stop if parts else 0
        if first != expected:
            raise InputError(
                f"slices[{i}].layer_range starts at layer {first}, expected {expected}: {LAYER_BY_LAYER}, so slices "
                "run from layer 0 to the last one without gaps and repetitions"
            )
        label = f" in slices[{i}]" if len(body.slices) > 1 else ""
        parts.append(Part(label, models, first, stop, one.parameters or {}, _own(one.sources)))
    return parts


def stacked_parts(body: Module) -> list[Part]:
    """The parts of a recipe that stacks layers, each of one model.

    Raises:
        InputError: for a part of several models, and slices without a layer.
    """
    if body.slices is None:
        if len(body.models or []) > 1:
            raise InputError(
                f"models: passthrough stacks layers of models and fuses none, got {len(body.models or [])}; say under "
                "slices: which layers are whose, one model and its layer_range each"
            )
        return parts_of(body)
    parts: list[Part] = []
    for i, one in enumerate(body.slices):
        if len(one.sources) > 1:
            raise InputError(f"slices[{i}] has {len(one.sources)} models: passthrough fuses none; give it one")
        (source,), (start, stop) = one.sources, _range(one, i)
        first = parts[-1].stop if parts else 0
        assert first is not None
        label = f" in slices[{i}]" if len(body.slices) > 1 else ""
        own, models = _own(one.sources), [_as_before(source.model, parts)]
        parts.append(Part(label, models, first, first + stop - start, one.parameters or {}, own, start))
    return parts


def same_model(a: str, b: str) -> bool:
    """Whether two names are one model: a folder may be written in several ways, like ./a and a/."""
    return Path(a) == Path(b)


def _as_before(model: str, parts: Sequence[Part]) -> str:
    """A model as an earlier part writes it, if one has it."""
    return next((name for part in parts for name in part.models if same_model(name, model)), model)


def _own(entries: Sequence[Entry]) -> list[Given]:
    return [entry.parameters or {} for entry in entries]


def _range(one: Slice, i: int) -> tuple[int, int]:
    """The layers of a slice."""
    head = one.sources[0]
    for source in one.sources:
        if source.layer_range != head.layer_range:
            raise InputError(
                f"slices[{i}] takes layers {list(head.layer_range)} of {head.model} and {list(source.layer_range)} of "
                f"{source.model}: {LAYER_BY_LAYER}, so give every model of a slice the same layer_range"
            )
    first, stop = head.layer_range
    if stop <= first:
        raise InputError(f"slices[{i}].layer_range [{first}, {stop}] holds no layer; the second number is exclusive")
    return first, stop
