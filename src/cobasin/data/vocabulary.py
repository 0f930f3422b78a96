"""Which tokens the rows of a model are of, and models with other rows."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cobasin.architectures import declare
from cobasin.checkpoints.pairs import vocabulary_problems
from cobasin.checkpoints.typed import Typed
from cobasin.data.tokens import tokenizer_files, tokenizer_of
from cobasin.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

VOCABULARY = "vocab"
_IDS = ("_token_id", "_token_index")  # how the keys of a config end that say which token is a special one

Tokens = Sequence[str | None]
"""By row of an embedding; None of rows that no token has."""


def differ(one: Typed, other: Typed) -> bool:
    """Whether two models have different vocabularies, as far as their sizes and files tell."""
    if one.spec.sizes.get(VOCABULARY) != other.spec.sizes.get(VOCABULARY):
        return True
    a, b = one.checkpoint.folder, other.checkpoint.folder
    return a is not None and b is not None and bool(vocabulary_problems(a, b))


def tokens_of(model: Typed) -> Tokens:
    """The tokens of a model.

    Raises:
        InputError: it has no tokenizer.
    """
    checkpoint, rows = model.checkpoint, model.spec.sizes[VOCABULARY]
    if checkpoint.folder is None or not tokenizer_files(checkpoint.folder):
        raise InputError(
            f"{checkpoint.label}: has another vocabulary than the other models, and no tokenizer that says which token "
            "a row of it belongs to: put its files into the folder"
        )
    return by_row(tokenizer_of(checkpoint), rows)[:rows]  # some tokenizers have tokens that the model never got


def by_row(tokenizer: Any, rows: int) -> Tokens:
    """The tokens of a tokenizer, of as many rows, or more where it has more."""
    ids = tokenizer.get_vocab()
    found: list[str | None] = [None] * max(rows, 1 + max(ids.values()))
    for token, row in ids.items():
        found[row] = token
    return found


def rows_of(tokens: Tokens, own: Tokens) -> Tensor:
    """For every row of a vocabulary, the one of a model that has the same token, or none at the same place; else -1."""
    place = {token: row for row, token in enumerate(own) if token is not None}

    def found(row: int, token: str | None) -> int:
        if token is not None:
            return place.get(token, -1)
        return row if row < len(own) and own[row] is None else -1

    return torch.tensor([found(row, token) for row, token in enumerate(tokens)])


def brought_to(model: Typed, rows: Tensor, giver: Typed) -> Typed:
    """A model with these rows of its own in its vocabulary, zero where there is none, and the special ids of another.

    Raises:
        InputError: where its function depends on the number of a special token, which would be another one.
    """
    size = model.spec.sizes[VOCABULARY]
    if not differ(giver, model) and torch.equal(rows, torch.arange(size)):
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
