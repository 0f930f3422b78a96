"""Elements that were found by the tokens that models have in common, as they act on all tokens of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cobasin.checkpoints.typed import Typed
from cobasin.data.vocabulary import VOCABULARY
from cobasin.symmetry.balance import in_isometries
from cobasin.symmetry.canonical import frames_as_gauge, frames_of, gauge_of
from cobasin.symmetry.element import Element


def with_own_tokens(element: Element, model: Typed, rows: Tensor, notes: Sequence[str]) -> Element:
    """An element as it acts on a model with all of its tokens; on those it was found by it acts as before.

    No axis of tokens moves. But a gauge has a mean of every row of an embedding or head, and a balanced basis may be
    that of an embedding.

    Args:
        element: found by some tokens of the model.
        model: with all of them; untied where the element is of an untied one.
        rows: which of its rows the element was found by, in this order.
        notes: for the report.
    """
    assert element.source is not None
    assert element.target is not None
    form, values = replace(element.form, spec=model.spec), dict(element.values)
    own = gauge_of(form, model)

    def completed(name: str, tensor: Tensor) -> Tensor:
        entry = model.spec.entries.get(name.split(":")[0])
        axis = None if entry is None else entry.layout.axis_of(VOCABULARY)
        return tensor if axis is None else own[name].index_copy(axis, rows, tensor.to(own[name]))

    target = {name: completed(name, tensor) for name, tensor in element.target.items()}
    found = frames_of(form, element.source)
    for key, frame in frames_of(form, own).items():
        if not torch.equal(frame["matrix"], found[key]["matrix"]):
            group = form.group(key)
            to_found = group.compose(group.inverse(frame), found[key])
            values[key] = group.compose(to_found, values[key]) if key in values else to_found
    values, frames = in_isometries(form, values, frames_of(form, target))
    report = element.report | {"notes": [*element.report["notes"], *notes]}
    return Element(form, values, own, target | frames_as_gauge(frames), report)
