"""Apply an element: to a model of its type, or to an adapter of such a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cobasin.adapters.folder import Adapter, load_adapter
from cobasin.adapters.headed import headed
from cobasin.adapters.match import LORA, apply_to_adapter
from cobasin.adapters.move import move_adapter
from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.weight_files import WEIGHT_DTYPES, of_weights
from cobasin.errors import InputError, shown
from cobasin.finding.acting import acting_on, typed_for
from cobasin.finding.beside import moved_beside
from cobasin.symmetry.element import Element, check_element
from cobasin.symmetry.state import Lazy, apart, size_of

SAME = 1e-3  # of the distance of two models: how far an element may miss the one that it leads to
ROUNDING = 1e-6  # of their size: distances of models that are the same are rounding, which is not the same everywhere
Length = Annotated[float, Field(ge=0, le=1e100)]  # whose square is finite


def transform(element: Element, source: Any, dtype: torch.dtype | None = None) -> Checkpoint:
    """The model moved by the element: a checkpoint whose tensors are computed as they are read.

    Args:
        element: from `match` or `Element.load`.
        source: anything `load` takes; of another class, too, whose layers are those of the element's.
        dtype: of the result; the source's own by default. With float64 the transformation is exact to 1e-12.

    Raises:
        InputError: for a model with other layers than the element's, or one that cannot be written in its norms; for a
            dtype that has no fractions, and what is no element.
    """
    element, typed = acting_on(check_element(element), source)
    check_dtype(dtype)
    # computed in float32 or better in any case: what is rounded to a narrower dtype is rounded once, at the end
    state = Lazy(typed, lambda name: typed[name].double()) if dtype == torch.float64 else typed
    moved = typed.derived(element.apply(state), dtype)
    moved.beside = moved_beside(element, typed.checkpoint)
    return moved


def transform_adapter(
    element: Element, adapter: str | Path | Adapter, base: Any = None, dtype: torch.dtype | None = None
) -> Adapter:
    """A LoRA moved with its base: on the model that the element makes of the base it computes what it did.

    Args:
        element: of the adapter's base, from `match`; or of the adapter, from `match_adapters`.
        adapter: a PEFT folder, or an adapter read from one.
        base: the adapter's base, anything `load` takes; needed where the move depends on tensors of it, for models
            whose modules have other names in memory than their tensors in the file, and where the adapter has a head
            of its own, as a classifier on a language model has.
        dtype: of the result; the adapter's own by default.

    Raises:
        InputError: for what is no element, or no dtype of real numbers; where the adapter does not fit, where its
            move needs the base and it is not given, and where no adapter of its kind computes the same on the new
            base; names the tensor.
    """
    adapter = load_adapter(adapter)
    check_dtype(dtype)
    if check_element(element).spec.architecture == LORA:
        return apply_to_adapter(element, adapter, dtype)
    typed = None
    if base is not None:
        element, typed = acting_on(element, headed(adapter, load(base)))
    return move_adapter(element, adapter, typed, dtype=dtype)


def check_dtype(dtype: Any) -> None:
    """Refuse what no weights can have.

    Raises:
        InputError: it is no dtype of real numbers, or one of a byte, as only quantized weights have.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and of_weights(dtype)):
        raise InputError(f"dtype {shown(dtype)}: expected {WEIGHT_DTYPES}, like torch.float32")


def check_made(element: Element, source: Typed, made: Checkpoint) -> None:
    """Refuse a source of which the element does not make this model.

    Raises:
        InputError: they are apart by more than the rounding of the file.
    """
    there, (_, new) = element.apply(source), acting_on(element, made)
    heads = source.task_heads if source.spec.architecture != new.spec.architecture else ()
    names = [name for name in new if name in there and name not in new.spec.tied and name not in heads]
    if apart(there, new, names) > max(SAME, 2 * made.rounding) * size_of(new, names):
        label = source.checkpoint.label
        raise InputError(f"{label} is not the model that the element starts from: moved, it is not {made.label}")


def found_between(element: Element, source: Typed, target: Typed, symmetry: str) -> tuple[Typed, Typed]:
    """The two models that an element was found between, as it acts on them.

    Args:
        element: what brings ``source`` to ``target``, from `match`.
        source, target: the two.
        symmetry: what was asked for beside the element; it has its own.

    Raises:
        InputError: where it was found between others, or elsewhere.
    """
    if symmetry != "full":
        raise InputError(f"symmetry {symmetry}: the element was found with its own; give one of the two")
    try:
        report = _Report.model_validate(element.report)
    except ValidationError:
        found = "the element has no report of how it was found"
        raise InputError(f"{found}; give one that cobasin match has written") from None
    source, target = typed_for(element, source.checkpoint), typed_for(element, target.checkpoint)
    there, names = element.apply(source), [name for name in target if name not in target.spec.tied]
    left = apart(there, target, names)
    after = report.distance_after
    missed = abs(left - after) - SAME * max(report.distance_before, after)
    if missed > 0 and missed > ROUNDING * size_of(target, names):
        hint = "; the other model had moved, too: name its folder (--anchor-out)" if report.anchor_moved else ""
        raise InputError(
            f"the element was not found between {source.checkpoint.label} and {target.checkpoint.label}: it leaves "
            f"them {left:.6g} apart, where its report says {after:.6g}{hint}"
        )
    return source, target


class _Space(BaseModel):
    """The distance of the tensors that a space runs through."""

    model_config = ConfigDict(strict=True)

    before: Length
    after: Length


class _Report(BaseModel):
    """What matching says of how an element was found, as far as it is read again."""

    model_config = ConfigDict(strict=True)

    symmetry: str
    layers: str | None = None
    method: str = "weights"
    distance_before: Length
    distance_after: Length
    spaces: dict[str, _Space]
    objective: Annotated[list[Length], Field(min_length=1)]
    rounds: int
    seconds: float
    condition: dict[str, float] = {}
    anchor_moved: bool = False
    notes: list[str]
