"""Carry what was learned since a base to another base.

A task vector is moved as its base is matched to the new one: Rinaldi et al., *Update Your Transformer to the Latest
Release: Re-Basin of Task Vectors* (ICML 2025), do so with permutations. The result is no matched model: how much it
keeps of what was learned has to be measured.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from cobasin.adapters.folder import Adapter, load_adapter
from cobasin.adapters.headed import headed
from cobasin.adapters.layers import ROOT, type_adapter
from cobasin.adapters.move import move_adapter
from cobasin.checkpoints.alike import alike, equally_stored, omissions
from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.headed import of_another_class
from cobasin.checkpoints.json_files import GENERATION_FILE
from cobasin.checkpoints.pairs import check_layers, check_pair
from cobasin.checkpoints.typed import Typed
from cobasin.data.vocabulary import VOCABULARY, brought_together, tokenizer_contents, told_apart
from cobasin.errors import InputError, finite, shown
from cobasin.finding.acting import acting_on, typed_for
from cobasin.finding.applying import found_between
from cobasin.finding.beside import generation, moved_beside
from cobasin.finding.match import match
from cobasin.progress import Progress
from cobasin.symmetry.element import Element, check_element
from cobasin.symmetry.state import Lazy, squared_distance, squared_size, wide

HALF = 0.5  # of the way from equal to unrelated weights
LOOKED_AT = 50  # matrices, about: the tensors of a large model take long to read once more


@dataclass(frozen=True)
class Transported:
    """A fine-tune on another base.

    Attributes:
        checkpoint: the model, whose tensors are computed as they are read, with the dtypes and other files of its base;
            of a fine-tune of another class, with those of the fine-tune.
        element: what brings the old base to the new one.
        notes: what a reader should know.
    """

    checkpoint: Checkpoint
    element: Element
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TransportedAdapter:
    """An adapter for another base.

    Attributes:
        adapter: what it adds is moved; nothing is added to the new base's own files.
        element: what brings the old base to the new one.
        base: the old base, as the element acts on it.
    """

    adapter: Adapter
    element: Element
    base: Typed


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

    Both ends of the task vector are written in the gauge of the new base, so that what is gauge cancels.

    Args:
        base: what the fine-tune started from; anything `load` takes.
        tuned: the fine-tune. Of another class, such as a classifier, what only that one has is carried as a whole.
        new: the base to carry it to; of the base's class, configuration and labels. Of several vocabularies the result
            has the tokens of the new base, and behind them those that the others have added.
        element: what brings ``base`` to ``new``, from `match`; found by weights where None.
        scale: of the task vector.
        symmetry, progress: as in `match`; without ``element``.

    Raises:
        InputError: for models that do not fit each other or the element; for a scale that is not finite.
    """
    if not finite(scale):
        raise InputError(f"scale {shown(scale)}: expected a finite number")
    scale = float(scale)  # of a fraction, too, which no tensor is multiplied by
    given = [Typed.of(load(model)) for model in (base, tuned, new)]
    source, learned, target = _of_one_vocabulary(given)
    other = of_another_class(learned, source)
    if other:
        source, target = equally_stored([source, target])
        check_layers(learned, source)
    else:
        source, learned, target = equally_stored([source, learned, target])
        _check_alike(source, learned)
    left_out = omissions([target])
    unknown, brought = [model.unknown or () for model in (source, learned, target)], target.unknown is not None
    found, source, target = _bases(source, target, element, symmetry, progress)
    acting, learned = acting_on(found, learned.checkpoint)
    before, after = found.apply(source, as_source=True), acting.apply(learned, as_source=True)
    heads = learned.task_heads if other else ()
    own = [name for name in learned if name not in learned.spec.tied and (name not in source or name in heads)]

    def carried(name: str) -> torch.Tensor:
        name = learned.spec.tied.get(name, name) if other else name  # the file may have both, and the bases neither
        if name in own:
            return wide(after[name])
        given = [wide(one[name]) for one in (before, after, target)]
        axis = learned.spec.entries[name].layout.axis_of(VOCABULARY)
        if axis is None:
            return given[2] + scale * (given[1] - given[0])
        return _of_rows(given, [torch.tensor(rows, dtype=torch.long) for rows in unknown], axis, scale)

    typed = learned if other else target
    made = typed.derived(Lazy(typed, carried))
    if other:
        made.beside = moved_beside(acting, typed.checkpoint)
    if brought:
        made.beside = made.beside | tokenizer_contents([model.checkpoint for model in given], 2, True, made.folder)
        if other:  # the files of the fine-tune, but the special tokens of the new base
            made.beside[GENERATION_FILE] = generation(None, given[2].checkpoint)
    whole = [f"{', '.join(own)}: not in the bases, or of another task: carried as a whole"] if own else []
    return Transported(made, found, (*_origin(source, learned, own), *whole, *left_out))


def transport_adapter(
    base: Any,
    adapter: str | Path | Adapter,
    new: Any,
    element: Element | None = None,
    symmetry: str = "full",
    progress: Progress | None = None,
) -> TransportedAdapter:
    """The same of a LoRA: what it adds to its base's weights, for a new base. Its own scale (``lora_alpha``) stays.

    Args:
        base, new, element, symmetry, progress: as in `transport`.
        adapter: a PEFT folder, or an adapter read from one.

    Raises:
        InputError: for bases that do not fit each other or the element; for an adapter that cannot be moved, or that
            has tensors in place of its base's, which would replace those of the new base. A head that the base does not
            have is carried.
    """
    adapter = load_adapter(adapter)
    old = Typed.of(load(base))
    source, target = _of_one_vocabulary([old, Typed.of(load(new))])
    if source.unknown is not None:
        _check_rows(adapter, old)
    head = headed(adapter, source.checkpoint).headers.keys() - source.checkpoint.headers.keys()
    for name in adapter.headers:
        if ("lora_" not in name or "magnitude" in name) and name.removeprefix(ROOT) not in head:
            raise InputError(
                f"{adapter.label}: {name} is made for the weights of its base, and adds nothing to others; merge the "
                "adapter into its base (peft: merge_and_unload), and carry that"
            )
    found, source, _ = _bases(source, target, element, symmetry, progress)
    acting, source = acting_on(found, headed(adapter, source.checkpoint))
    return TransportedAdapter(move_adapter(acting, adapter, source), found, source)


def _of_rows(given: Sequence[torch.Tensor], unknown: Sequence[torch.Tensor], axis: int, scale: float) -> torch.Tensor:
    """The rows of the new base, changed where both others know a token, and theirs where it knows none.

    Args:
        given: tensors of the base, the fine-tune and the new base, with an ``axis`` of tokens.
        unknown: which rows each of them does not have.
        scale: of the change.
    """

    def completed(one: torch.Tensor, rows: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return one.index_copy(axis, rows, other.index_select(axis, rows)) if len(rows) else one

    before, after, there = given
    after = completed(after, unknown[1], before)
    before = completed(before, unknown[0], after)
    return completed(there + scale * (after - before), unknown[2], after)


def _check_rows(adapter: Adapter, base: Typed) -> None:
    """Refuse an adapter that adds to the rows of tokens, which are others in a new base with another vocabulary."""
    typed = type_adapter(adapter, Typed.of(headed(adapter, base.checkpoint)).spec, base.checkpoint.config)
    for name, entry in typed.spec.added.items():
        if name in typed.disk and entry.layout.axis_of(VOCABULARY) is not None:
            raise InputError(
                f"{adapter.label}: {typed.disk[name]} adds to rows of tokens, and the vocabularies of the bases "
                "differ; merge the adapter into its base (peft: merge_and_unload), and carry that"
            )


def _of_one_vocabulary(models: list[Typed]) -> list[Typed]:
    """The models with all tokens of the last one's, and what the others have added to these."""
    return brought_together(models, len(models) - 1, union=True) if told_apart(models) else models


def _bases(
    source: Typed, target: Typed, element: Element | None, symmetry: str, progress: Progress | None
) -> tuple[Element, Typed, Typed]:
    """What brings one base to the other, and both as it acts on them."""
    _check_alike(source, target)
    if element is None:
        element = match(source, target, symmetry, progress=progress)
        return element, typed_for(element, source.checkpoint), typed_for(element, target.checkpoint)
    sizes = [one.spec.sizes.get(VOCABULARY) for one in (check_element(element), source)]
    if source.unknown is not None and sizes[0] != sizes[1]:
        raise InputError(
            f"the vocabularies differ and are brought to one of {sizes[1]} tokens, and the element is of models with "
            f"{sizes[0]}; leave it out, and the bases are matched"
        )
    source, target = found_between(element, source, target, symmetry)
    return element, source, target


def _origin(base: Typed, tuned: Typed, own: Collection[str]) -> tuple[str, ...]:
    """What there is to say where a fine-tune differs from its base by more than they share.

    Of matrices a and b, ``|a - b|²/(|a|² + |b|²)`` is near 0 where one is a fine-tune of the other, 1 where they are
    unrelated. Of some matrices the median counts: a few, such as tables of positions, may be the same in all models.
    What is the fine-tune's ``own``, such as a head for another task, does not count.
    """
    shared = {*tuned} - {*own}
    names = [name for name, entry in base.spec.entries.items() if len(entry.layout.shape) > 1 and name in shared]
    ratios = []
    for name in names[:: len(names) // LOOKED_AT + 1]:
        a, b = base[name], tuned[name]
        if size := squared_size(a) + squared_size(b):
            ratios.append(squared_distance(a, b) / size)
    if not ratios or median(ratios) < HALF:
        return ()
    named, origin = tuned.checkpoint.label, base.checkpoint.label
    return (
        f"{named} differs from {origin} by more than they share, and so is no fine-tune of it: what was carried is how "
        "two models differ, not what one has learned (cobasin compare tells how they are related)",
    )


def _check_alike(a: Typed, b: Typed) -> None:
    check_pair(*alike([a, b]))
    if a.labels != b.labels:
        raise InputError(f"{b.checkpoint.label}: its task head has other labels than that of {a.checkpoint.label}")
