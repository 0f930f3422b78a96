"""Which tokens the rows of a model are of, and models with other rows."""

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
from cobasin.checkpoints.checkpoint import Checkpoint, Content
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.vocabulary_files import vocabulary_problems
from cobasin.data.tokens import tokenizer_files, tokenizer_of
from cobasin.errors import InputError, listed

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

VOCABULARY = "vocab"
_IDS = ("_token_id", "_token_index", "suppress_tokens")  # how the keys of a config end that say what is special

Tokens = Sequence[str | None]
"""By row of an embedding; None of rows that no token has."""

ABSENT, ZERO = -1, -2
"""In place of a row of a model: none, for now it is zero; none, and it stays zero."""


def brought_together(models: Sequence[Typed], place: int, union: bool) -> list[Typed]:
    """Models whose vocabularies differ, all with that of one of them; or with its `union` with the others.

    Rows go by the names of their tokens. What a model has no row for is zero.

    Raises:
        InputError: for models without a tokenizer, and tokens that nothing can be made of.
    """
    own, giver = [tokens_of(model) for model in models], models[place]
    tokens = own[place]
    if union:
        tokens = by_row(united([model.checkpoint for model in models], giver.checkpoint), len(tokens))
    rows = [rows_of_tokens(tokens, theirs) for theirs in own]
    check_given(tokens, rows, giver)
    return [brought_to(model, theirs, giver) for model, theirs in zip(models, rows, strict=True)]


def check_given(tokens: Tokens, rows: Sequence[Tensor], giver: Typed, others: Collection[int] = ()) -> None:
    """Raise InputError for a token that no model has a row for, except for the `others`."""
    nobodys = (torch.stack([*rows]) == ABSENT).all(0).nonzero().flatten().tolist()
    if lacking := [row for row in nobodys if row not in others]:
        raise InputError(
            f"no model has a row for {listed([repr(tokens[row]) for row in lacking])}, which the tokenizer of "
            f"{giver.checkpoint.label} has; resize that model's embeddings, or take another model's vocabulary"
        )


def in_common(models: Sequence[Typed]) -> tuple[list[Typed], list[Tensor], list[str]]:
    """Models whose vocabularies differ, with the tokens that all have, in the order of the first.

    Returns them; for each which of its rows these are; and a note on it.

    Raises:
        InputError: for models without a tokenizer, or without a token in common.
    """
    own, labels = [tokens_of(model) for model in models], [model.checkpoint.label for model in models]
    shared = set.intersection(*(set(tokens) for tokens in own)) - {None}
    if not shared:
        raise InputError(f"the vocabularies of {' and '.join(labels)} have no token in common")
    common = [token for token in own[0] if token in shared]
    rows = [rows_of_tokens(common, tokens) for tokens in own]
    made = [brought_to(model, theirs, models[0]) for model, theirs in zip(models, rows, strict=True)]
    left = [f"{len({*tokens} - shared - {None})} of {label}" for tokens, label in zip(own, labels, strict=True)]
    note = f"the vocabularies differ: compared are the {len(shared)} common tokens, and not {', '.join(left)}"
    return made, rows, [note]


def united(models: Sequence[Checkpoint], giver: Checkpoint) -> Any:
    """The tokenizer of one model, with what those of the others have added to the same vocabulary.

    Raises:
        InputError: where one has tokens that were not added, but cut texts in another way; where those that are added
            get numbers that others have, as behind a number without a token.
    """
    tokenizer = tokenizer_of(giver)
    for model in models:
        other = tokenizer_of(model)
        known = tokenizer.get_vocab()
        added = [token for _, token in sorted(other.added_tokens_decoder.items()) if token.content not in known]
        if others := other.get_vocab().keys() - known.keys() - {token.content for token in added}:
            raise InputError(
                f"{model.label} cuts texts into tokens that {giver.label} lacks ({listed(sorted(map(repr, others)))}), "
                "so no tokenizer is that of both; a merge can take the vocabulary of one of them (--tokenizer-source)"
            )
        tokenizer.add_tokens(added)
    _check_numbers(tokenizer, giver)
    return tokenizer


def tokenizer_with(models: Sequence[Checkpoint], place: int, union: bool, tokens: Collection[str]) -> Any:
    """The tokenizer of one model, or of its `union` with the others, and behind it those of the tokens that it lacks.

    They are as the first of the models has added them; special tokens where none has.

    Raises:
        InputError: one cannot be read, or there is no union; as `united` for numbers without a token.
    """
    from tokenizers import AddedToken

    giver = models[place]
    tokenizer = united(models, giver) if union else tokenizer_of(giver)
    if lacking := [token for token in tokens if token not in tokenizer.get_vocab()]:
        theirs = [token for model in models for token in tokenizer_of(model).added_tokens_decoder.values()]
        known = {token.content: token for token in reversed(theirs)}
        special = [AddedToken(token, special=True, normalized=False) for token in lacking]
        tokenizer.add_tokens([known.get(token.content, token) for token in special])
        _check_numbers(tokenizer, giver)
    return tokenizer


def lacks(model: Checkpoint, tokens: Collection[str]) -> bool:
    """Whether the tokenizer of a model lacks some of these; it may have rows that no token has yet."""
    return bool(tokens) and not tokenizer_of(model).get_vocab().keys() >= {*tokens}


def _check_numbers(tokenizer: Any, giver: Checkpoint) -> None:
    """Raise InputError where two tokens have one number."""
    if len({*(ids := tokenizer.get_vocab()).values()}) < len(ids):
        raise InputError(
            f"{giver.label}: its tokenizer has numbers without a token, and gives one that is added the number of "
            "another; a merge can take the vocabulary of one of the models (--tokenizer-source)"
        )


def tokenizer_contents(
    models: Sequence[Checkpoint], place: int, union: bool, instead_of: Path | None, tokens: Collection[str] = ()
) -> dict[str, Content]:
    """The files of one model's tokenizer, by name; or of its `union` with the others; with further tokens.

    ``instead_of``: the folder whose other files go with them; those of its tokenizer are left out (None).
    """
    giver, found = models[place], dict[str, Content]()
    assert giver.folder is not None
    if instead_of is not None:
        found |= {path.relative_to(instead_of).as_posix(): None for path in tokenizer_files(instead_of)}
    if not union and not lacks(giver, tokens):
        files = tokenizer_files(giver.folder)
        return found | {path.relative_to(giver.folder).as_posix(): partial(shutil.copyfile, path) for path in files}
    with TemporaryDirectory() as folder:
        tokenizer_with(models, place, union, tokens).save_pretrained(folder)
        for path in tokenizer_files(Path(folder)):
            found[path.relative_to(folder).as_posix()] = partial(Path.write_bytes, data=path.read_bytes())
    return found


def differ(one: Typed, other: Typed) -> bool:
    """Whether two models have different vocabularies, as far as their sizes and files tell."""
    if one.spec.sizes.get(VOCABULARY) != other.spec.sizes.get(VOCABULARY):
        return True
    a, b = one.checkpoint.folder, other.checkpoint.folder
    return a is not None and b is not None and bool(vocabulary_problems(a, b))


def told_apart(models: Sequence[Typed]) -> bool:
    """Whether vocabularies differ, were not brought to one yet, and tokenizers tell in what."""
    if any(model.unknown is not None for model in models):
        return False
    folders = [model.checkpoint.folder for model in models]
    return any(differ(model, models[-1]) for model in models) and all(one and tokenizer_files(one) for one in folders)


def tokens_of(model: Typed) -> Tokens:
    """The tokens of a model.

    Raises:
        InputError: it has no vocabulary, or no tokenizer for it.
    """
    checkpoint, rows = model.checkpoint, model.spec.sizes.get(VOCABULARY)
    if rows is None:
        raise InputError(f"{checkpoint.label}: a {checkpoint.architecture} has no vocabulary, as the other models have")
    if checkpoint.folder is None or not tokenizer_files(checkpoint.folder):
        raise InputError(
            f"{checkpoint.label}: has another vocabulary than the other models, and no tokenizer that says which token "
            "a row of it belongs to: put its files into the folder"
        )
    tokenizer = tokenizer_of(checkpoint)
    if tokenizer.get_vocab().keys() <= {*tokenizer.all_special_tokens}:  # made up by Transformers
        raise InputError(
            f"{checkpoint.folder}: the tokenizer has no tokens but special ones; a file of its vocabulary is missing"
        )
    return by_row(tokenizer, rows)[:rows]  # some tokenizers have tokens that the model never got


def by_row(tokenizer: Any, rows: int) -> Tokens:
    """The tokens of a tokenizer, of as many rows, or more where it has more."""
    ids = tokenizer.get_vocab()
    found: list[str | None] = [None] * max(rows, 1 + max(ids.values()))
    for token, row in ids.items():
        found[row] = token
    return found


def rows_of_tokens(tokens: Tokens, own: Tokens) -> Tensor:
    """For every row of a vocabulary, the one of a model with the same token, or none at the same place; or `ABSENT`."""
    place = {token: row for row, token in enumerate(own) if token is not None}

    def found(row: int, token: str | None) -> int:
        if token is not None:
            return place.get(token, ABSENT)
        return row if row < len(own) and own[row] is None else ABSENT

    return torch.tensor([found(row, token) for row, token in enumerate(tokens)], dtype=torch.long)


def brought_to(model: Typed, rows: Tensor, giver: Typed) -> Typed:
    """A model with these rows of its own in its vocabulary, and the special ids of another.

    ``rows``: `ABSENT` and `ZERO` where it has none.

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
        kept = not isinstance(token, int) or token >= size or rows[token : token + 1].tolist() == [token]
        if key.endswith(_IDS) and not kept:
            raise InputError(
                f"{given.label}: {key} is {token}, and what the model computes depends on it; in the vocabulary that "
                "models are brought to here, that token has another place, or none"
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
    unknown = (*(rows == ABSENT).nonzero().flatten().tolist(),)
    return replace(model, checkpoint=made, spec=spec, copied=(), unknown=unknown).copying(model.copied)


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
