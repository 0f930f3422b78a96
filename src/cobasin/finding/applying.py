"""Apply an element: to a model of its type, or to an adapter of such a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from cobasin.adapters.folder import Adapter, load_adapter
from cobasin.adapters.match import LORA, apply_to_adapter
from cobasin.adapters.move import move_adapter
from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.symmetry.element import Element
from cobasin.symmetry.state import Lazy

# what two specs must have in common, so that an element of one acts on the other
_TYPE = ("architecture", "version", "sizes", "spaces", "templates", "absent", "norms", "scales", "biases", "plus_one")


def transform(element: Element, source: Any, dtype: torch.dtype | None = None) -> Checkpoint:
    """The model moved by the element: a checkpoint whose tensors are computed as they are read.

    Args:
        element: from `match` or `Element.load`.
        source: anything `load` takes.
        dtype: of the result; the source's own by default. With float64 the transformation is exact to 1e-12.

    Raises:
        InputError: for a model of another type than the element's, or one that cannot be written in its norms.
    """
    typed = typed_for(element, source)
    state = typed if dtype is None else Lazy(typed, lambda name: typed[name].to(dtype))
    return typed.derived(element.apply(state), dtype)


def transform_adapter(
    element: Element, adapter: str | Path | Adapter, base: Any = None, dtype: torch.dtype | None = None
) -> Adapter:
    """A LoRA moved with its base: on the model that the element makes of the base it computes what it did.

    Args:
        element: of the adapter's base, from `match`; or of the adapter, from `match_adapters`.
        adapter: a PEFT folder, or an adapter read from one.
        base: the adapter's base, anything `load` takes; needed where the move depends on tensors of it, and for
            models whose modules have other names in memory than their tensors in the file.
        dtype: of the result; the adapter's own by default.

    Raises:
        InputError: where the adapter does not fit, where its move needs the base and it is not given, and where no
            adapter of its kind computes the same on the new base; names the tensor.
    """
    adapter = load_adapter(adapter)
    if element.spec.architecture == LORA:
        return apply_to_adapter(element, adapter, dtype)
    return move_adapter(element, adapter, None if base is None else typed_for(element, base), dtype=dtype)


def typed_for(element: Element, model: Any) -> Typed:
    """The model as the element acts on it, untied where the element is of an untied model.

    Raises:
        InputError: where the element is of another type of model.
    """
    typed = Typed.of(load(model))
    if typed.spec.tied.keys() - element.spec.tied.keys():
        typed = typed.untied()
    for field in _TYPE:
        if getattr(typed.spec, field) != getattr(element.spec, field):
            label = typed.checkpoint.label
            raise InputError(f"{label} is not of the type that the element acts on: the {field} of the two differ")
    return typed
