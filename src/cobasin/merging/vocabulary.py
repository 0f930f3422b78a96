"""Models of different vocabularies, brought to one: rows of embeddings and output heads go by their tokens."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cobasin.architectures import declare
from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.configs import GENERATION_FILE
from cobasin.checkpoints.pairs import vocabulary_problems
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.writer import Content
from cobasin.data.tokens import tokenizer_files, tokenizer_of
from cobasin.errors import InputError, listed
from cobasin.recipe import Recipe
from cobasin.symmetry.state import Lazy, State, common_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

VOCABULARY = "vocab"
_IDS = ("_token_id", "_token_index")  # how the keys of a config end that say which token is a special one

Tokens = Sequence[str | None]
"""By row of an embedding; None of rows that no token has."""


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
    if not any(_differ(giver, model) for model in typed):
        return typed
    if runs := _runs_models(recipe):
        raise InputError(
            f"tokenizer_source {source}: the vocabularies differ, and {runs} would run models on tokens that they do "
            "not know; merge by weights alone, by a method without data"
        )
    own = [_tokens(model) for model in typed]
    tokenizer = united([model.checkpoint for model in typed], giver.checkpoint) if source == "union" else None
    tokens = own[place] if tokenizer is None else _by_row(tokenizer, len(own[place]))
    return [brought_to(model, _rows(tokens, theirs), giver) for model, theirs in zip(typed, own, strict=True)]


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


def _differ(one: Typed, other: Typed) -> bool:
    if one.spec.sizes.get(VOCABULARY) != other.spec.sizes.get(VOCABULARY):
        return True
    a, b = one.checkpoint.folder, other.checkpoint.folder
    return a is not None and b is not None and bool(vocabulary_problems(a, b))


def _runs_models(recipe: Recipe) -> str | None:
    """What in a merge runs the models on inputs."""
    if recipe.method.statistics is not None:
        return recipe.merge_method
    if recipe.match.method != "weights":
        return f"matching by {recipe.match.method}"
    return None if recipe.after is None else "what follows the merge"


def _tokens(model: Typed) -> Tokens:
    """The tokens of a model."""
    checkpoint, rows = model.checkpoint, model.spec.sizes[VOCABULARY]
    if checkpoint.folder is None or not tokenizer_files(checkpoint.folder):
        raise InputError(
            f"{checkpoint.label}: has another vocabulary than the other models, and no tokenizer that says which token "
            "a row of it belongs to: put its files into the folder"
        )
    tokens = _by_row(tokenizer_of(checkpoint), rows)
    if len(tokens) > rows:
        raise InputError(
            f"{checkpoint.label}: its tokenizer has ids up to {len(tokens) - 1}, its vocabulary has {rows} rows; take "
            "the tokenizer that it was trained with"
        )
    return tokens


def _by_row(tokenizer: Any, rows: int) -> Tokens:
    """The tokens of a tokenizer, of as many rows, or more where it has more."""
    ids = tokenizer.get_vocab()
    found: list[str | None] = [None] * max(rows, 1 + max(ids.values()))
    for token, row in ids.items():
        found[row] = token
    return found


def _rows(tokens: Tokens, own: Tokens) -> Tensor:
    """For every row of a vocabulary, the one of a model that has the same token, or none at the same place; else -1."""
    place = {token: row for row, token in enumerate(own) if token is not None}
    same = [row if token is None and row < len(own) and own[row] is None else -1 for row, token in enumerate(tokens)]
    return torch.tensor([place.get(token, -1) if token else row for token, row in zip(tokens, same, strict=True)])


def brought_to(model: Typed, rows: Tensor, giver: Typed) -> Typed:
    """A model with these rows of its own in its vocabulary, zero where there is none, and the special ids of another.

    Raises:
        InputError: where its function depends on the number of a special token, which would be another one.
    """
    size = model.spec.sizes[VOCABULARY]
    if not _differ(giver, model) and torch.equal(rows, torch.arange(size)):
        return model
    given, config = model.checkpoint, copy.deepcopy(model.checkpoint.config)
    layouts = [entry.layout for entry in model.spec.entries.values()]
    in_parts = any(axis.space == VOCABULARY and one.axis_of(VOCABULARY) is None for one in layouts for axis in one.axes)
    if in_parts or [space for space in model.spec.spaces if space.endswith(VOCABULARY)] != [VOCABULARY]:
        raise InputError(
            f"{given.label}: a {given.architecture} has rows for tokens that its tokenizer tells nothing of, so its "
            "vocabulary cannot be brought to another one"
        )
    for key in model.spec.function_keys:
        token = reduce(lambda part, name: getattr(part, name, None), key.split("."), config)
        kept = not isinstance(token, int) or token >= size or (rows == token).nonzero().tolist() == [[token]]
        if key.endswith(_IDS) and not kept:
            raise InputError(
                f"{given.label}: {key} is {token}, and what the model computes depends on it; the vocabulary of "
                f"{giver.checkpoint.label} has that token at another place, or not at all"
            )
    _say(config, giver.checkpoint.config, size, len(rows), model.spec.function_keys)
    axes = {disk: _axis(model, name) for name, disk in model.disk_names.items()}
    headers = dict(given.headers)
    for disk, axis in axes.items():
        if axis is not None:
            before, after = headers[disk].shape[:axis], headers[disk].shape[axis + 1 :]
            headers[disk] = replace(headers[disk], shape=(*before, len(rows), *after))
    missing = (rows < 0).nonzero().flatten()

    def read(disk: str) -> Tensor:
        axis = axes.get(disk)
        if axis is None:
            return given[disk]
        return given[disk].index_select(axis, rows.clamp(min=0)).index_fill_(axis, missing, 0)

    made = replace(given, config=config, headers=headers, read=read, stored=False)
    spec = declare(config, given.architecture, headers)
    return replace(model, checkpoint=made, spec=spec, unknown=(*missing.tolist(),))


def _axis(model: Typed, part: str) -> int | None:
    """The axis of a tensor of the file that is the vocabulary, if one is."""
    name, place = model.spec.file_entries[part]
    return None if place is not None else model.spec.entries[name].layout.axis_of(VOCABULARY)


def _say(config: PreTrainedConfig, giver: Any, size: int, rows: int, kept: Collection[str], within: str = "") -> None:
    """Make a config that of another vocabulary, with the special tokens of the giver's, but for keys that are kept."""
    from transformers import PreTrainedConfig

    for key, value in list(vars(config).items()):
        if isinstance(value, PreTrainedConfig):
            _say(value, getattr(giver, key, None), size, rows, kept, f"{within}{key}.")
        elif key == "vocab_size" and value == size:
            config.vocab_size = rows
        elif key.endswith(_IDS) and within + key not in kept:
            setattr(config, key, getattr(giver, key, None))
