"""Carry what a model has learned since its base to another base."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.typed import Typed, check_gauge, check_pair
from cobasin.errors import InputError
from cobasin.finding.applying import typed_for
from cobasin.finding.match import match
from cobasin.progress import Progress
from cobasin.symmetry.element import Element
from cobasin.symmetry.state import Lazy, wide


@dataclass(frozen=True)
class Transported:
    """A fine-tune on another base.

    Attributes:
        checkpoint: the model, whose tensors are computed as they are read, with the dtypes and other files of its base.
        element: what brings the old base to the new one.
    """

    checkpoint: Checkpoint
    element: Element


def transport(
    base: Any,
    tuned: Any,
    new: Any,
    element: Element | None = None,
    scale: float = 1.0,
    symmetry: str = "full",
    progress: Progress | None = None,
) -> Transported:
    """``NEW + s (g·TUNED - g·BASE)``: a fine-tune's task vector, moved to a new base as its own is matched to that.

    Rinaldi et al., *Update Your Transformer to the Latest Release: Re-Basin of Task Vectors* (ICML 2025), do so with
    permutations. Both ends of the task vector are written in the gauge of the new base, so that what is gauge cancels.
    The result is no matched model: how much of what was learned it keeps has to be measured.

    Args:
        base: what the fine-tune started from; anything `load` takes.
        tuned: the fine-tune.
        new: the base to carry it to; of the same architecture, configuration and vocabulary, like the fine-tune.
        element: what brings ``base`` to ``new``, from `match`; found by weights where None.
        scale: of the task vector.
        symmetry, progress: as in `match`; without ``element``.

    Raises:
        InputError: for models that do not fit each other or the element; for a scale that is not finite.
    """
    if not math.isfinite(scale):
        raise InputError(f"scale {scale}: expected a finite number")
    ends = [Typed.of(load(model)) for model in (base, tuned, new)]
    for other in (ends[1], ends[2]):
        check_pair(ends[0], other)
        if other.labels != ends[0].labels:
            label = other.checkpoint.label
            raise InputError(f"{label}: its task head has other labels than that of {ends[0].checkpoint.label}")
    if element is None:
        element = match(ends[0].checkpoint, ends[2].checkpoint, symmetry, progress=progress)
    old, learned, anchor = (typed_for(element, one.checkpoint) for one in ends)
    check_gauge(old, element.form, element.source, "starts from")
    check_gauge(anchor, element.form, element.target, "leads to")
    before, after = element.apply(old), element.apply(learned)

    def carried(name: str) -> torch.Tensor:
        return wide(anchor[name]) + scale * (wide(after[name]) - wide(before[name]))

    return Transported(anchor.derived(Lazy(anchor, carried)), element)
