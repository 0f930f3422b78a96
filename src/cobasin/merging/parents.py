"""The models of a merge: loaded, and all checked that headers and configs can tell."""

from __future__ import annotations

import filecmp
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from cobasin.adapters.added import load_named
from cobasin.checkpoints.alike import alike
from cobasin.checkpoints.by_name import by_name, check_by_name
from cobasin.checkpoints.checkpoint import Checkpoint, Content
from cobasin.checkpoints.headed import headed_as, of_another_class
from cobasin.checkpoints.pairs import check_pair
from cobasin.checkpoints.relayered import depth_of
from cobasin.checkpoints.sentence_transformers import differing_modules
from cobasin.checkpoints.typed import Typed
from cobasin.data.tokens import has_tokenizer
from cobasin.errors import InputError, NotDeclared, shown
from cobasin.finding.beside import check_beside
from cobasin.matching.choice import Choice
from cobasin.merging.chat import unknown_tokens
from cobasin.merging.owners import owners
from cobasin.merging.parameters import Parameters
from cobasin.merging.stacked import as_fused
from cobasin.merging.vocabulary import in_one_vocabulary
from cobasin.recipe import Recipe
from cobasin.symmetry.keys import is_layer
from cobasin.symmetry.spec import UNDECLARED


def prepare(recipe: Recipe, models: Mapping[str, Any]) -> list[Typed]:
    """The models that a recipe refers to, all that headers and configs can tell checked.

    Raises:
        InputError: they do not go together, or not with the recipe.
    """
    names = recipe.referenced
    loaded = [_loaded(name, models.get(name, name)) for name in names]
    try:
        typed, check = [Typed.of(model) for model in loaded], check_pair
    except NotDeclared:
        if not _as_they_are(recipe):
            raise
        typed, check = [by_name(model) for model in loaded], check_by_name
        recipe.check_named(layers=any(map(is_layer, typed[0].spec.sizes)))
    else:
        typed = alike(_with_headed_base(recipe, in_one_vocabulary(recipe, typed)))
    for other in typed[1:]:
        check(other, typed[0])
    sizes = typed[0].spec.sizes
    for depth in [depth_of(typed[0])] if recipe.method.stacks else [sizes[space] for space in sizes if is_layer(space)]:
        recipe.check_layers(depth)
    head = recipe.head
    if head is not None and not typed[0].heads:
        what = "keep" if head == "keep" else "take"
        raise InputError(
            f"{names[0]} is a {typed[0].spec.architecture}: it has no task head to {what} (a head with "
            "labels); leave --head-from and --keep-heads (in a recipe head) out"
        )
    if head not in (None, "keep") and {*(giver := typed[names.index(head)]).lacking} & {*giver.task_heads}:
        raise InputError(
            f"{head}: as the base it has no task head to give, only zeros for one; name one of the models that are "
            "merged (--head-from MODEL, in a recipe head), or keep all of their heads (--keep-heads)"
        )
    different = next((model for model in typed if model.labels != typed[0].labels), None)
    if different is not None and head is None:
        raise InputError(
            f"the task heads of {names[0]} and {different.checkpoint.label} have different labels and cannot be "
            f"averaged ({shown(typed[0].labels)} and {shown(different.labels)}); name the model whose head to take "
            "(--head-from MODEL), keep them all (--keep-heads), or write the same id2label into both configs if they "
            "mean the same"
        )
    for place in owners(recipe):
        check_beside(typed[place].checkpoint)
    source = recipe.vocabulary
    if source not in (None, "union") and not has_tokenizer(typed[names.index(source)].checkpoint):
        raise InputError(f"tokenizer_source: {source} has no tokenizer to take; name a folder with one")
    merged = ends(recipe, typed)
    (fused, *_), _ = as_fused(recipe, merged, merged)
    Parameters(recipe, fused).check(merged[0].task_heads if head else ())
    return typed


def _as_they_are(recipe: Recipe) -> bool:
    """Whether nothing need be known of tensors but their names: neither what acts on them nor what they compute."""
    method = recipe.method
    known = recipe.match.symmetry != "none" or recipe.head is not None or recipe.vocabulary is not None
    runs = method.statistics is not None or method.couple is not None or recipe.after is not None
    return not (known or runs or method.stacks)


def _with_headed_base(recipe: Recipe, typed: list[Typed]) -> list[Typed]:
    """The models, the base of task vectors as one of their class: mostly it has none of their heads, or another."""
    if recipe.base is None or recipe.base in recipe.between:
        return typed
    place = recipe.referenced.index(recipe.base)
    # one whose head is its own, if any: all are untied then, and the base is no other for their order
    like = min((typed[i] for i in recipe.positions), key=lambda model: len(model.spec.tied))
    if not of_another_class(typed[place], like):
        return typed
    return [headed_as(model, like) if i == place else model for i, model in enumerate(typed)]


def _loaded(name: str, model: Any) -> Checkpoint:
    """A model; what is in memory only goes by its name in the recipe."""
    checkpoint = load_named(model)
    return replace(checkpoint, label=name) if checkpoint.folder is None else checkpoint


def ends(recipe: Recipe, typed: list[Typed]) -> list[Typed]:
    """The models of `prepare` as they are merged: untied, where matching moves a norm into a tied head."""
    spec = typed[0].spec
    folds = matches(recipe, typed) and spec.norms and Choice.parse(recipe.match.symmetry, recipe.match.layers).folded
    if folds and any(model.spec.unties for model in typed):
        return [model.untied() for model in typed]
    return typed


def matches(recipe: Recipe, typed: Sequence[Typed]) -> bool:
    """Whether models are matched at all: not where a recipe does not ask for it, or has one model, given twice."""
    return recipe.match.symmetry != "none" and len(typed) > 1


def remarks(recipe: Recipe, typed: Sequence[Typed], chat: Mapping[str, Content]) -> list[str]:
    """What a reader of the result should know before anything is matched or computed; ``chat``: its template's file."""
    names, (owner, *_) = recipe.referenced, owners(recipe)
    found = [*recipe.notes, *_unmerged(names, typed, owner)]
    if (spec := typed[0].spec).version == UNDECLARED:
        layers = "" if any(map(is_layer, spec.sizes)) else "; which layers they are of is not known"
        found.append(f"no declaration covers this {spec.architecture}: tensors are merged by name, as they are{layers}")
        found += _constants(names, typed, owner)
    if recipe.chat_template and not chat:
        found.append("chat_template: auto: no model has a template, so the result has none")
    found += unknown_tokens(recipe, typed)
    found += [] if recipe.method.stacks else _repeated(names, typed, recipe.base)
    return found if recipe.out_dtype or recipe.dtype else found + _coarsened(names, typed, owner)


def _constants(names: Sequence[str], models: Sequence[Typed], owner: int) -> list[str]:
    """A note on tensors that are no weights, of which the result has those of the ``owner``; counters tell nothing."""
    own, merged = models[owner].checkpoint, {*models[owner].disk_names.values()}
    copied = [name for name, header in own.headers.items() if name not in merged and header.shape]
    differing = [n for n in copied if not all(torch.equal(own[n], model.checkpoint[n]) for model in models)]
    what = f"no weights, so not merged, but taken from {names[owner]}; the models differ there"
    return [f"{', '.join(differing)}: {what}"] if differing else []


def _repeated(names: Sequence[str], models: Sequence[Typed], base: str | None) -> list[str]:
    """A warning for every model that is given twice."""
    found = []
    for i, model in enumerate(models):
        same = (j for j in range(i) if _same_files(model.checkpoint, models[j].checkpoint))
        if (j := next(same, None)) is not None:
            effect = "its task vector is zero" if base in (names[i], names[j]) else "it counts twice"
            found.append(f"{names[i]} and {names[j]} are the same model: {effect}")
    return found


def _coarsened(names: Sequence[str], models: Sequence[Typed], owner: int) -> list[str]:
    """A note where the result, which has the ``owner``'s dtypes, is rounded more than the file of another model."""
    rounding = [model.checkpoint.rounding for model in models]
    finer = [name for name, one in zip(names, rounding, strict=True) if one < rounding[owner]]
    if not finer:
        return []
    return [f"the result is rounded to the dtypes of {names[owner]}, coarser than those of {', '.join(finer)}"]


def _unmerged(names: Sequence[str], models: Sequence[Typed], owner: int) -> list[str]:
    """A note on further modules of Sentence Transformers, of which the result has those of the ``owner``."""
    own, found = models[owner].checkpoint.folder, set[str]()
    for model in models:
        folder = model.checkpoint.folder
        if own is not None and folder is not None and folder != own:
            found.update(differing_modules(own, folder))
    listed = ", ".join(sorted(found))
    return [f"{listed}: not merged, but taken from {names[owner]}; the models differ there"] if listed else []


def _same_files(a: Checkpoint, b: Checkpoint) -> bool:
    """Whether two models are of the same weight files."""
    shards = [sorted({header.shard for header in one.headers.values()}) for one in (a, b)]
    if not (a.stored and b.stored and a.folder and b.folder) or shards[0] != shards[1]:
        return False
    return all(filecmp.cmp(a.folder / shard, b.folder / shard, shallow=False) for shard in shards[0])
