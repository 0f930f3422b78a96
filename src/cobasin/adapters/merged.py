"""Base and adapter as one model, to run it and to compare its function."""

from __future__ import annotations

import torch
from torch import Tensor

from cobasin.adapters.folder import Adapter
from cobasin.adapters.layers import Layer, TypedAdapter, type_adapter
from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.symmetry.state import Lazy


def merged(base: Typed, adapter: Adapter, dtype: torch.dtype | None = None) -> Checkpoint:
    """The base with the adapter added to its weights, in the base's dtypes or in ``dtype``.

    A base with tied tensors comes untied where one of them is adapted, and the adapter leaves the other as it is.

    Raises:
        InputError: where the adapter does not fit, has a bias where the base has none, or adapts one of two tied
            tensors of a class that always ties them.
    """
    typed = type_adapter(adapter, base.spec, base.checkpoint.config)
    adapted = {*typed.whole, *(layer.weight for layer in typed.layers)}
    if shared := {name for kept in {*base.spec.tied.values()} for name in _apart(typed, kept, adapted)}:
        try:
            base = base.untied()
        except InputError as error:
            raise InputError(
                f"{adapter.label} adapts {min(shared)} alone, which is tied to another tensor of its base; {error}"
            ) from error
        typed = type_adapter(adapter, base.spec, base.checkpoint.config)
    weights = {layer.weight: layer for layer in typed.layers}
    biases = {f"{one.module}.bias": one for one in typed.layers if one.bias in typed.disk and typed[one.bias].any()}
    if missing := biases.keys() - base.spec.entries.keys():
        raise InputError(f"{adapter.label} has a bias for {min(missing)}, which the base does not have")

    def read(name: str) -> Tensor:
        tensor = (typed if name in typed.whole else base)[name].double()
        if name in biases:
            return tensor + biases[name].scaling * typed[biases[name].bias]
        return _adapted(typed, weights[name], tensor) if name in weights else tensor

    return base.derived(Lazy(base, read), dtype)


def _apart(typed: TypedAdapter, kept: str, adapted: set[str]) -> set[str]:
    """The adapted of the tensors tied to ``kept``; none where PEFT has written resized embeddings, all as one."""
    found = adapted & {kept, *(name for name, twin in typed.spec.tied.items() if twin == kept)}
    saved = typed.whole - {layer.weight for layer in typed.layers}
    if kept not in found or len(found) < 2 or not found <= saved:
        return found
    first, *others = (typed.adapter[typed.disk[name]] for name in found)
    return set() if all(one.dtype == first.dtype and torch.equal(one, first) for one in others) else found


def _adapted(typed: TypedAdapter, layer: Layer, weight: Tensor) -> Tensor:
    weight = weight + layer.delta(typed[layer.down], typed[layer.up], weight.shape)
    if layer.magnitude not in typed.disk:
        return weight
    rows = weight.T if layer.transposed else weight
    shape = (-1, *[1] * (rows.ndim - 1))
    scale = typed[layer.magnitude].reshape(shape) / rows.flatten(1).norm(dim=1).reshape(shape)
    return (rows * scale).T if layer.transposed else rows * scale
