"""The statistics that a merge method needs, of models that were matched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from cobasin.checkpoints.refusals import check_place
from cobasin.checkpoints.typed import Typed
from cobasin.data import Batches, batches, task_of
from cobasin.errors import InputError
from cobasin.execution.devices import device_of
from cobasin.finding.kept import Kept
from cobasin.finding.match import Matched
from cobasin.paths import expanded
from cobasin.progress import Progress
from cobasin.statistics.collect import collect
from cobasin.statistics.fishers import check_likelihood
from cobasin.statistics.grams import InputGram
from cobasin.statistics.in_turn import collect_in_turn
from cobasin.statistics.moving import gram_obstacle, movable, move_fishers, move_grams
from cobasin.symmetry.element import Element
from cobasin.symmetry.state import State

if TYPE_CHECKING:
    from cobasin.recipe import Recipe


@dataclass(frozen=True)
class Statistics:
    """What was collected, by spec name, with one entry for every model that is fused.

    Attributes:
        fishers: diagonal Fisher information of every tensor.
        grams: of the inputs of every weight of a linear map.
        activations: for every model, the outputs of its modules on the same inputs.
        report: for every model, how many rows of data were read, and their digest.
    """

    fishers: dict[str, list[Tensor]] = field(default_factory=dict)
    grams: dict[str, list[InputGram]] = field(default_factory=dict)
    activations: list[dict[str, Tensor]] = field(default_factory=list)
    report: dict[str, dict] = field(default_factory=dict)


def statistics_of(
    recipe: Recipe,
    read: Sequence[Batches],
    matched: Matched,
    progress: Progress,
    keep: Kept | None,
) -> Statistics:
    """Collect what the recipe's method needs on the data of `batches_of`; nothing for a method that needs none.

    Parts of one run share the data, and meet in ``keep``.

    Statistics are collected on the models as they are and moved with their elements, so that they can be used
    again; what does not move (a diagonal Fisher under a rotation) is collected on the matched model.
    """
    needs = recipe.method.statistics
    if needs in (None, "grams_in_turn"):
        return Statistics()
    settings, report = recipe.statistics, _report(recipe, read)
    assert settings is not None
    kind = "fisher_empirical" if needs == "fisher" and settings.fisher == "empirical" else needs

    def collected(model: Typed, which: int) -> dict:
        slices = None if keep is None else keep.within(f"{kind}-{which}")
        if slices is not None and not (slices.shared or slices.folder.exists()):
            slices = None  # nobody shares them, and nobody did: what is added up is kept beside the cache
        return collect(
            kind,
            model,
            read[which],
            seed=settings.seed,
            device=settings.device,
            cache=None if settings.cache is None else expanded(settings.cache),
            progress=lambda done, total: progress(f"{kind.replace('_', ' ')} of {model.checkpoint.label}", done, total),
            keep=slices,
        )

    def of(model: Typed, state: State, element: Element | None, which: int) -> dict:
        move = None if element is None else _mover(needs, element, model)
        if element is None or move is None:
            return collected(_matched(model, state, element), which)
        return move(element, model, collected(model, which))

    found = [
        of(matched.typed[i], matched.states[i], matched.elements[i], which) for which, i in enumerate(recipe.positions)
    ]
    if needs == "activations":
        return Statistics(activations=found, report=report)
    by_name = {name: [one[name] for one in found] for name in found[0] if all(name in one for one in found)}
    return Statistics(grams=by_name, report=report) if needs == "grams" else Statistics(fishers=by_name, report=report)


def _mover(needs: str, element: Element, model: Typed) -> Callable[[Element, Typed, dict], dict] | None:
    """What moves statistics of a model with its element; None where they do not move, as activations never do."""
    if needs == "grams" and gram_obstacle(element, model) is None:
        return move_grams
    return move_fishers if needs == "fisher" and movable(element) else None


def in_turn(
    recipe: Recipe,
    read: Sequence[Batches],
    matched: Matched,
    fuse: Callable[[str, list[InputGram] | None], Tensor],
    progress: Progress,
) -> Statistics:
    """The Grams of RegMean++, whose layers are collected on the merged layers before them."""
    settings = recipe.statistics
    assert settings is not None
    grams = collect_in_turn(
        [matched.typed[i] for i in recipe.positions],
        [matched.states[i] for i in recipe.positions],
        read,
        fuse,
        device=settings.device,
        progress=lambda done, total: progress("merging layer by layer", done, total),
    )
    return Statistics(grams=grams, report=_report(recipe, read))


def batches_of(recipe: Recipe, typed: Sequence[Typed]) -> list[Batches]:
    """The data of every model that is fused; none for a method that needs none.

    Raises:
        InputError: where data, models and method do not fit together, or there is no such device.
    """
    needs, settings = recipe.method.statistics, recipe.statistics
    if needs is None:
        return []
    assert settings is not None  # a recipe without data for a method that needs it is refused
    assert settings.data is not None
    device_of(settings.device)
    if settings.cache is not None:
        folder = expanded(settings.cache)
        check_place(folder, f"cache {folder}")
    fused = recipe.positions
    if needs == "activations" and not isinstance(settings.data, list):
        # the same inputs for all: those of the first model, as models may be written by several versions of a tokenizer
        fused = [fused[0]] * len(fused)
    data = settings.data if isinstance(settings.data, list) else [settings.data] * len(fused)
    read = [
        batches(
            typed[i].checkpoint,
            one,
            samples=settings.samples,
            batch_size=settings.batch_size,
            seed=settings.seed,
        )
        for i, one in zip(fused, data, strict=True)
    ]
    if needs == "activations" and len({one.digest for one in read}) > 1:
        raise InputError(
            f"{recipe.merge_method} compares the models on the same inputs: give one data set under statistics, no list"
        )
    if needs == "fisher":
        for i, one in zip(fused, read, strict=True):
            why = None if one.labelled else one.unlabelled()
            check_likelihood(typed[i], task_of(typed[i].checkpoint), settings.fisher == "exact", why)
    return read


def _report(recipe: Recipe, read: Sequence[Batches]) -> dict[str, dict]:
    return {name: {"rows": one.rows, "digest": one.digest} for name, one in zip(recipe.inputs, read, strict=True)}


def _matched(model: Typed, state: State, element: Element | None) -> Typed:
    """The matched model, computed in float32 or better as it is read."""
    return model if element is None else Typed.of(model.derived(state, model.checkpoint.running_dtype))
