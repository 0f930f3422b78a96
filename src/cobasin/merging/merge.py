"""Merging: bring the models together, collect what the method needs, fuse tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from cobasin.checkpoints.alike import equally_tied, omissions
from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.preprocessors import other_pixels
from cobasin.checkpoints.typed import Typed
from cobasin.coupling.flow import flow_of
from cobasin.data.batches import Batches
from cobasin.errors import InputError, shown
from cobasin.finding.beside import moved_beside
from cobasin.finding.forms import UNTIED
from cobasin.finding.kept import Kept, check_kept
from cobasin.finding.match import Matched, match_all
from cobasin.merging.after import Afterwards, cautions
from cobasin.merging.chat import chat_template
from cobasin.merging.fused import Fusion
from cobasin.merging.naming import as_path, named, same_given, unlike
from cobasin.merging.owners import owners
from cobasin.merging.parameters import Parameters
from cobasin.merging.parents import matches, prepare, remarks
from cobasin.merging.results import merged_state, result
from cobasin.merging.stacked import as_fused
from cobasin.merging.statistics import Statistics, batches_of, in_turn, statistics_of
from cobasin.merging.vocabulary import filled, tokenizer_of_result
from cobasin.progress import Progress, progress_of
from cobasin.recipe import Recipe
from cobasin.recipe.given import by_model, of_models
from cobasin.statistics.grams import InputGram
from cobasin.symmetry.element import Element
from cobasin.symmetry.state import State


@dataclass(frozen=True)
class Merge:
    """A merged model and how it came about.

    Attributes:
        recipe: what was done.
        names: the models that were brought together: those that are fused, and the base of task vectors.
        parents: the same, loaded.
        checkpoints: the merged model, computed as it is read; where every task keeps its head, one for each model.
        matched: how the models were matched.
        weights: one for every model that is fused, adding up to one where models are averaged (not task vectors); None
            where the method has none, or where they differ between tensors.
        statistics: of the data that was used: rows and digest for every model.
        notes: what a reader of the result should know.
        after: what repair and heal did, and the held-out loss of the merge without and with them (see
            `cobasin.merging.after`); None where there was neither, so that the result is the merge itself.
    """

    recipe: Recipe
    names: list[str]
    parents: list[Checkpoint]
    checkpoints: list[Checkpoint]
    matched: Matched
    weights: list[float] | None
    statistics: dict[str, Any]
    notes: list[str]
    after: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<Merge by {self.recipe.merge_method} of {', '.join(self.names)}>"

    @property
    def checkpoint(self) -> Checkpoint:
        """The merged model; the one with the head of the first, where every task keeps its own."""
        return self.checkpoints[0]

    @property
    def elements(self) -> list[Element | None]:
        """For every model the element that matched it to the reference; None for that one, and unmatched."""
        return self.matched.elements


def merge(
    models: Sequence[Any],
    method: str = "linear",
    *,
    base: Any = None,
    tokenizer_source: str | int | None = None,
    symmetry: str = "full",
    anchor: str | int = "medoid",
    weights: Iterable[float] | None = None,
    seed: int | None = None,
    head: str | int | None = None,
    statistics: Mapping[str, Any] | None = None,
    repair: bool | Mapping[str, Any] = False,
    heal: int | Mapping[str, Any] = 0,
    progress: Progress | None = None,
    **parameters: Any,
) -> Merge:
    """Match the models to each other, then merge them.

    Args:
        models: anything `load` takes, or ``BASE+ADAPTER`` for a base with a LoRA; of one architecture, configuration
            and, but for ``tokenizer_source``, vocabulary. The result has the dtypes, the sharding and the other files
            of the one that gives the head, if named; else of the base, if there is one; else of the first.
        method: a name from `cobasin.fusion.registry.methods`.
        base: the model that task vectors start from, for methods that need one; it is matched like the others. Of
            another class with the same layers, such as a language model of classifiers, it has a head of zeros.
        tokenizer_source: whose tokenizer the result has: ``union``, ``base``, or the index of a model. Where
            vocabularies differ, all are brought to this one; see `cobasin.merging.vocabulary`.
        symmetry: as in `match`, or ``none`` to merge the models as they are.
        anchor: ``medoid``, ``consensus``, or the index of the model that all are matched to; see `match_all`.
        weights: one a model; equal by default.
        seed: of methods that draw random numbers, as DARE and DELLA do; 0 by default.
        head: ``keep`` for one result a model, each with its own task head; or the index of the model that gives it.
        statistics: as in a recipe: ``{"data": ..., "samples": ...}``, for methods that need data.
        repair: as in a recipe: True, or ``{"data": ..., "samples": ...}``. Afterwards, statistics of the norms are
            reset to those between the models.
        heal: as in a recipe: a number of steps, or ``{"steps": ..., "data": ...}``. In the end, the merged model is
            trained so long. With either, it is held in memory.
        progress: see `Progress`.
        parameters: of the method; a list or tuple gives every model a value of its own. ``lambda_`` is ``lambda``.

    Raises:
        InputError: as in `match`; for parameters that do not fit; for task heads of different label sets without
            ``head``.
    """
    if not isinstance(models, Sequence) or isinstance(models, str):
        raise InputError(f"models: {shown(models)}: expected a list of two or more")
    count = len(models) + (base is not None)
    if count < 2:
        raise InputError(f"a merge needs two models or more, got {count}")
    taken = {str(model) for model in (*models, base) if isinstance(model, (str, Path))}
    names = [
        as_path(model) if isinstance(model, (str, Path)) else unlike(f"model {i}", taken)
        for i, model in enumerate(models)
    ]
    loaded = dict(zip(names, models, strict=True))
    common, own = by_model(method, parameters, weights, len(models))
    blocks: dict[str, Any] = {
        "seed": seed,
        "match": {"symmetry": symmetry, "anchor": named(names, anchor, "anchor")},
        "head": None if head is None else named(names, head, "head"),
        "tokenizer_source": None if tokenizer_source is None else named(names, tokenizer_source, "tokenizer_source"),
    }
    if base is not None:
        said = str(base) if isinstance(base, (str, Path)) else unlike("base", taken)
        blocks["base_model"] = next((name for name, model in loaded.items() if same_given(model, base)), said)
        loaded.setdefault(blocks["base_model"], base)
    if statistics is not None:
        if not isinstance(statistics, Mapping):
            raise InputError(f"statistics {shown(statistics)}: expected keys and values, like {{'data': 'FILE.jsonl'}}")
        blocks["statistics"] = dict(statistics)
    after = (("repair", repair), ("heal", heal))
    blocks |= {key: block for key, block in after if not isinstance(block, (Number, np.bool_)) or block}
    return merge_recipe(of_models(names, method, common, own, blocks), loaded, progress)


def merge_recipe(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    models: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    keep: Kept | None = None,
) -> Merge:
    """Run a recipe.

    Args:
        recipe: a YAML file, its content, or a Recipe.
        models: what the names in the recipe stand for, where they are not folders or hub ids.
        progress: see `Progress`.
        keep: where to keep what is found on the way (see `match_all`), and parts of one run share statistics.

    Raises:
        InputError: for a recipe that cannot be read, models that do not fit it or each other, data that do not fit.
    """
    progress = progress_of(progress)
    check_kept(keep)
    if not isinstance(models, Mapping | None):
        raise InputError(f"models: {shown(models)}: expected names of the recipe, and the model of each")
    if isinstance(recipe, (str, Path)):
        recipe = Recipe.read(recipe)
    elif not isinstance(recipe, Recipe):
        recipe = Recipe.of(recipe)
    if extra := [name for name in models or () if name not in recipe.referenced]:
        raise InputError(f"models: {extra[0]!r} is not in the recipe; it has {', '.join(recipe.referenced)}")
    names, typed = recipe.referenced, prepare(recipe, models or {})
    read = batches_of(recipe, typed)
    (owner, *_) = owning = owners(recipe)
    afterwards = Afterwards.of(recipe, typed, owner)
    chat = chat_template(recipe, typed)
    notes = remarks(recipe, typed, chat)
    if not matches(recipe, typed):  # a match notes it
        notes += [*omissions(typed), *other_pixels(typed)]
    if recipe.method.couple is not None:
        flow_of(typed[0])  # an architecture that it cannot follow is refused before models are matched
    parents = [model.checkpoint for model in typed]
    matched = _matched(recipe, typed, progress, keep)
    matched = replace(matched, typed=equally_tied(matched.typed))
    statistics = statistics_of(recipe, read, matched, progress, keep)
    states = _coupled(recipe, matched, filled(recipe, matched.typed, matched.states), statistics, progress)
    fused, states = as_fused(recipe, matched.typed, states)
    parameters = Parameters(recipe, fused[0])
    if recipe.method.statistics == "grams_in_turn":
        statistics = _in_turn(Fusion(parameters, fused, states), read, matched, progress)
    element = next((element for element in matched.elements if element is not None), None)
    fusion = Fusion(parameters, fused, states, statistics, element)
    notes += fusion.notes
    if recipe.method.stacks and parameters.spec.tied != matched.typed[owner].spec.tied:
        notes.append(UNTIED)
    # what follows a merge needs more digits than its file
    merged = [merged_state(fusion, one, own_head=recipe.head is not None, narrow=afterwards is None) for one in owning]
    after = None
    if afterwards is not None:
        merged[0], after = afterwards.run(fusion, matched, merged[0], progress)
        notes += cautions(after)
    checkpoints = [result(recipe, fused[one], state) for one, state in zip(owning, merged, strict=True)]
    for one, checkpoint in zip(owning, checkpoints, strict=True):
        if (element := matched.elements[one]) is not None:
            checkpoint.beside = moved_beside(element, parents[one])
        checkpoint.beside = checkpoint.beside | tokenizer_of_result(recipe, matched, checkpoint) | chat
    return Merge(recipe, names, parents, checkpoints, matched, parameters.weights, statistics.report, notes, after)


def _matched(recipe: Recipe, typed: list[Typed], progress: Progress, keep: Kept | None) -> Matched:
    """The models brought together, as the recipe says."""
    match = recipe.match
    if not matches(recipe, typed):
        return Matched(typed, [None] * len(typed), 0, {})
    return match_all(
        typed,
        match.symmetry,
        match.layers,
        match.anchor if match.anchor in ("medoid", "consensus") else recipe.referenced.index(match.anchor),
        progress=progress,
        **match.search,
        keep=keep,
    )


def _in_turn(fusion: Fusion, read: Sequence[Batches], matched: Matched, progress: Progress) -> Statistics:
    """What a method needs that collects it on the merged layers before."""
    first = fusion.recipe.positions[0]
    kept = fusion.typed[first].task_heads if fusion.recipe.head else ()  # never fused: of other shapes, perhaps

    def fuse(name: str, grams: list[InputGram] | None) -> Tensor:
        return fusion.states[first][name] if name in kept else fusion.from_tensors(name, grams)

    return in_turn(fusion.recipe, read, matched, fuse, progress)


def _coupled(
    recipe: Recipe, matched: Matched, states: list[State], statistics: Statistics, progress: Progress
) -> list[State]:
    """The matched models, those that are fused coupled by optimal transport where the method does so."""
    fused = recipe.positions
    if recipe.method.couple is None:
        return states
    once = list(dict.fromkeys(fused))  # a model that is listed twice counts twice, but is coupled once
    activations = [statistics.activations[fused.index(i)] for i in once] if statistics.activations else None
    coupled = recipe.method.coupled(
        matched.typed[matched.reference],
        [states[i] for i in once],
        once.index(matched.reference) if matched.reference in once else 0,
        activations,
        recipe.parameters_of("", None, 1),
        lambda done, total: progress("coupling neurons", done, total),
    )
    for i, state in zip(once, coupled, strict=True):
        states[i] = state
    return states
