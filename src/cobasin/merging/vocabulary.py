"""Models of different vocabularies, brought to one: rows of embeddings and output heads go by their tokens."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.configs import GENERATION_FILE
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.writer import Content
from cobasin.data.tokens import tokenizer_files, tokenizer_of
from cobasin.data.vocabulary import VOCABULARY, brought_to, by_row, differ, rows_of, tokens_of
from cobasin.errors import InputError, listed
from cobasin.recipe import Recipe
from cobasin.symmetry.state import Lazy, State, common_dtype


def in_one_vocabulary(recipe: Recipe, typed: list[Typed], owner: int) -> list[Typed]:
    """The models, all with the tokens that the recipe's ``tokenizer_source`` says, where theirs differ.

    What a model has no row for is zero, which brings nothing together, until `filled`.

    Args:
        recipe: which vocabulary, and what is done with the models.
        typed: the models.
        owner: the position of the one whose other files the result has; ``union`` extends its vocabulary.

    Raises:
        InputError: for models without a tokenizer, tokens that nothing can be made of, and merges that run models.
    """
    source = recipe.vocabulary
    if source is None:
        return typed
    place = owner if source == "union" else recipe.referenced.index(source)
    giver = typed[place]
    if not any(differ(giver, model) for model in typed):
        return typed
    if runs := _runs_models(recipe):
        raise InputError(
            f"tokenizer_source {source}: the vocabularies differ, and {runs} would run models on tokens that they do "
            "not know; merge by weights alone, by a method without data"
        )
    own = [tokens_of(model) for model in typed]
    tokenizer = united([model.checkpoint for model in typed], giver.checkpoint) if source == "union" else None
    tokens = own[place] if tokenizer is None else by_row(tokenizer, len(own[place]))
    rows = [rows_of(tokens, theirs) for theirs in own]
    if of_nobody := (torch.stack(rows) < 0).all(0).nonzero().flatten().tolist():
        raise InputError(
            f"tokenizer_source {source}: no model has a row for {listed([repr(tokens[row]) for row in of_nobody])}, "
            "which a tokenizer has; name a model whose vocabulary to take"
        )
    return [brought_to(model, theirs, giver) for model, theirs in zip(typed, rows, strict=True)]


def united(models: Sequence[Checkpoint], giver: Checkpoint) -> Any:
    """The tokenizer of one model, with what those of the others have added to the same vocabulary.

    Raises:
        InputError: where one has tokens that were not added, but cut texts in another way.
    """
    tokenizer = tokenizer_of(giver)
    for model in models:
        other = tokenizer_of(model)
        known = tokenizer.get_vocab()
        added = [token for _, token in sorted(other.added_tokens_decoder.items()) if token.content not in known]
        if others := other.get_vocab().keys() - known.keys() - {token.content for token in added}:
            raise InputError(
                f"tokenizer_source union: {model.label} cuts texts into tokens that {giver.label} lacks "
                f"({listed(sorted(map(repr, others)))}), so no tokenizer is that of both; name the model whose "
                "vocabulary to take"
            )
        tokenizer.add_tokens(added)
    return tokenizer


def tokenizer_of_result(recipe: Recipe, typed: Sequence[Typed], owner: int, own: Path | None) -> dict[str, Content]:
    """The files of the tokenizer that a recipe asks for, by name, and of how to generate with another vocabulary.

    Args:
        recipe, owner: as for `in_one_vocabulary`.
        typed: what that made of the models.
        own: the folder whose files the result has otherwise: those of its tokenizer are left out (None).
    """
    source, brought = recipe.vocabulary, any(model.unknown is not None for model in typed)
    if source is None or (source == "union" and not brought):
        return {}
    giver = typed[owner if source == "union" else recipe.referenced.index(source)].checkpoint
    assert giver.folder is not None
    found: dict[str, Content] = {}
    if own is not None:
        found |= {path.relative_to(own).as_posix(): None for path in tokenizer_files(own)}
    if source == "union":
        with TemporaryDirectory() as folder:
            united([model.checkpoint for model in typed], giver).save_pretrained(folder)
            for path in tokenizer_files(Path(folder)):
                found[path.relative_to(folder).as_posix()] = partial(Path.write_bytes, data=path.read_bytes())
    else:
        for path in tokenizer_files(giver.folder):
            found[path.relative_to(giver.folder).as_posix()] = partial(shutil.copyfile, path)
    if brought and giver.folder != own:  # special tokens have other ids there
        said = giver.folder / GENERATION_FILE
        found[GENERATION_FILE] = partial(shutil.copyfile, said) if said.is_file() else "{}\n"
    return found


def filled(typed: Sequence[Typed], states: Sequence[State], base: int | None) -> list[State]:
    """Matched tensors by spec name, with rows in place of those that are zero for want of a token.

    They are the base's where it has the token; else the mean of those that have it.
    """
    if not any(model.unknown for model in typed):
        return list(states)
    present = torch.stack([_present(model) for model in typed])
    shares = present / present.sum(0)
    if base is not None:
        shares[:, present[base]] = torch.eye(len(typed), dtype=shares.dtype)[base][:, None]

    def of(place: int) -> State:
        model, state = typed[place], states[place]
        missing = (~present[place]).nonzero().flatten()

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
