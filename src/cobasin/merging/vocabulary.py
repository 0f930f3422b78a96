"""Models of different vocabularies, brought to one: rows of embeddings and output heads go by their tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cobasin.checkpoints.checkpoint import Checkpoint, Content
from cobasin.checkpoints.json_files import GENERATION_FILE
from cobasin.checkpoints.typed import Typed
from cobasin.data.vocabulary import VOCABULARY, brought_together, differ, lacks, tokenizer_contents
from cobasin.errors import InputError
from cobasin.finding.beside import generation
from cobasin.finding.match import Matched
from cobasin.merging.owners import giver
from cobasin.merging.tokens import rows_said, tokens_said, with_rows
from cobasin.recipe import Recipe
from cobasin.symmetry.state import Lazy, State, common_dtype


def in_one_vocabulary(recipe: Recipe, typed: list[Typed]) -> list[Typed]:
    """The models, all with the tokens that the recipe's ``tokenizer_source`` or ``tokenizer`` says.

    What a model has no row for is zero, which brings nothing together, until `filled`.

    Args:
        recipe: which vocabulary, and what is done with the models.
        typed: the models.

    Raises:
        InputError: for models without a tokenizer, tokens that nothing can be made of, and merges that run models.
    """
    place, block = giver(recipe), recipe.tokenizer
    given = block is not None and bool(block.tokens or block.pad_to_multiple_of)
    differing = place is not None and any(differ(typed[place], model) for model in typed)
    if place is None or not (given or differing):
        return typed
    if runs := _runs_models(recipe):
        what = "the vocabularies differ" if differing else "it gives models further rows, or others"
        raise InputError(
            f"tokenizer_source {recipe.vocabulary}: {what}, and {runs} would run models on tokens "
            "that they do not know; merge by weights alone, by a method without data"
        )
    return with_rows(recipe, typed, place) if given else brought_together(typed, place, recipe.vocabulary == "union")


def tokenizer_of_result(recipe: Recipe, matched: Matched, result: Checkpoint) -> dict[str, Content]:
    """The files of the tokenizer that a recipe asks for, by name, and of how to generate with another vocabulary.

    Args:
        recipe: as for `in_one_vocabulary`.
        matched: what was made of the models that it returns.
        result: a model with other files than these.
    """
    place, union, models = giver(recipe), recipe.vocabulary == "union", [model.checkpoint for model in matched.typed]
    brought = any(model.unknown is not None for model in matched.typed)
    if place is None or (union and not brought and not lacks(models[place], tokens_said(recipe))):
        return {}
    found = tokenizer_contents(models, place, union, result.folder, tokens_said(recipe))
    if brought and models[place].folder not in (None, result.folder):  # special tokens have other ids there
        found[GENERATION_FILE] = generation(matched.elements[place], models[place])
    return found


def filled(recipe: Recipe, typed: Sequence[Typed], states: Sequence[State]) -> list[State]:
    """Matched tensors by spec name, with rows in place of those that are zero for want of a token.

    They are the base's where it has the token, else the mean of those that have it; or what the recipe's
    ``tokenizer.tokens`` says, which may also be in place of rows that a model has.
    """
    said = tokens_said(recipe)
    if not said and not any(model.unknown for model in typed):
        return list(states)
    present = torch.stack([_present(model) for model in typed])
    shares, replaced = present.double() / present.sum(0).clamp(min=1), ~present
    base = recipe.base_model or recipe.base
    if base is not None:
        own = present[place := recipe.referenced.index(base)]
        shares[:, own] = torch.eye(len(typed), dtype=shares.dtype)[place][:, None]
    for row, token in rows_said(recipe, typed).items():
        if token.source is not None:
            shares[:, row] = 0
        if token.model is not None:
            shares[recipe.referenced.index(token.model), row] = 1
        replaced[:, row] |= token.force

    def of(place: int) -> State:
        model, state = typed[place], states[place]
        missing = replaced[place].nonzero().flatten()

        def tensor(name: str) -> Tensor:
            axis = model.spec.entries[name].layout.axis_of(VOCABULARY)
            if axis is None:
                return state[name]
            given = [one[name].movedim(axis, 0) for one in states]
            dtype = common_dtype(*given)
            rows = [
                torch.einsum("r,r...->r...", share[missing].to(dtype), tensor[missing].to(dtype))
                for share, tensor in zip(shares, given, strict=True)
            ]
            return given[place].to(dtype).index_copy(0, missing, sum(rows[1:], rows[0])).movedim(0, axis)

        return Lazy(state, tensor) if len(missing) else state

    return [of(place) for place in range(len(typed))]


def _present(model: Typed) -> Tensor:
    """For every row of the vocabulary, whether the model's file has it."""
    present = torch.ones(model.spec.sizes[VOCABULARY], dtype=torch.bool)
    if model.unknown:
        present[list(model.unknown)] = False
    return present


def _runs_models(recipe: Recipe) -> str | None:
    """What in a merge runs the models on inputs."""
    if recipe.method.statistics is not None:
        return recipe.merge_method
    if recipe.match.method != "weights":
        return f"matching by {recipe.match.method}"
    return None if recipe.after is None else "what follows the merge"
