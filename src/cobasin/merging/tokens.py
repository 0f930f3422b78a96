"""The rows of single tokens, where the ``tokenizer`` of a recipe says whose they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cobasin.checkpoints.typed import Typed
from cobasin.data.tokens import has_tokenizer
from cobasin.data.vocabulary import (
    ABSENT,
    VOCABULARY,
    ZERO,
    Tokens,
    brought_to,
    by_row,
    check_given,
    rows_of_tokens,
    tokenizer_with,
    tokens_of,
)
from cobasin.errors import InputError, shown
from cobasin.merging.owners import giver
from cobasin.recipe import Recipe
from cobasin.recipe.tokenizer import ModelToken, Token


def tokens_said(recipe: Recipe) -> Mapping[str, Token]:
    """The tokens of which a recipe says which row they have."""
    return (recipe.tokenizer and recipe.tokenizer.tokens) or {}


def rows_said(recipe: Recipe, typed: Sequence[Typed]) -> dict[int, Token]:
    """What a recipe says of rows in the vocabulary of the result."""
    said, place = tokens_said(recipe), giver(recipe)
    if not said or place is None:
        return {}
    ids = tokenizer_of_all(recipe, typed, place).get_vocab()
    return {ids[token]: one for token, one in said.items()}


def tokenizer_of_all(recipe: Recipe, typed: Sequence[Typed], place: int) -> Any:
    """The tokenizer of the result: of the model at this place or the union, with the tokens that the recipe adds.

    Raises:
        InputError: one cannot be read, or there is no union.
    """
    models = [model.checkpoint for model in typed]
    return tokenizer_with(models, place, recipe.vocabulary == "union", tokens_said(recipe))


def with_rows(recipe: Recipe, typed: Sequence[Typed], place: int) -> list[Typed]:
    """The models with the vocabulary that a recipe asks for: that of the model at a place, or the union with others.

    It has the tokens that the recipe lists, and as many rows as it says.

    Raises:
        InputError: for models without a tokenizer; for tokens that a model does not have, or nobody.
    """
    assert recipe.tokenizer is not None
    for model in typed:
        if VOCABULARY in model.spec.sizes and not has_tokenizer(model.checkpoint):
            raise InputError(
                f"tokenizer: {model.checkpoint.label} has no tokenizer that says which token a row of it belongs to: "
                "put its files into the folder"
            )
    own = [tokens_of(model) for model in typed]
    tokens: Tokens = own[place]
    listed = tokens_said(recipe).keys() - {*tokens}
    if listed or recipe.vocabulary == "union":
        tokens = by_row(tokenizer_of_all(recipe, typed, place), len(tokens))
    if hidden := sorted(tokens_said(recipe).keys() - {*tokens}):
        giver = typed[place].checkpoint.label
        raise InputError(f"tokenizer.tokens.{hidden[0]}: the tokenizer of {giver} has another token with its number")
    rows = [rows_of_tokens(tokens, theirs) for theirs in own]
    for token, said in tokens_said(recipe).items():
        row, where = tokens.index(token), f"tokenizer.tokens.{token}"
        if isinstance(said.source, ModelToken):
            theirs = recipe.referenced.index(said.source.model)
            other = _row(said.source, own[theirs], where)
            if rows[theirs][row] not in (ABSENT, other) and not said.force:
                raise InputError(
                    f"{where}: {said.source.model} has {token!r} itself, so the row of another of its tokens is only "
                    "given with force: true; leave the token out, or take it from another model"
                )
            for one in rows if said.force else ():  # what nobody keeps is not compared with another token's row
                one[row] = ZERO
            rows[theirs][row] = other
        elif said.model is not None and rows[recipe.referenced.index(said.model)][row] == ABSENT:
            raise InputError(f"{where}.source: {said.model} has no row for {token!r}")
        elif said.source is None and all(own[row] == ABSENT for own in rows):
            raise InputError(f"{where}: no model has a row for {token!r}, so give its source")
    check_given(tokens, rows, typed[place], [tokens.index(token) for token in tokens_said(recipe)])
    more = -len(tokens) % (recipe.tokenizer.pad_to_multiple_of or 1)
    rows = [torch.cat([theirs, torch.full((more,), ZERO)]) for theirs in rows]
    return [brought_to(model, theirs, typed[place]) for model, theirs in zip(typed, rows, strict=True)]


def _row(source: ModelToken, own: Tokens, where: str) -> int:
    """The row of a model that a source names."""
    if source.token_id is None:
        if source.token not in own:
            raise InputError(f"{where}.source: {source.model} has no row for {shown(source.token)}")
        return own.index(source.token)
    if source.token_id >= len(own):
        raise InputError(f"{where}.source: {source.model} has {len(own)} rows, and none for token_id {source.token_id}")
    return source.token_id
