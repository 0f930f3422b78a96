"""Documents cut into the blocks that a language model reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from cobasin.data.config import Role
from cobasin.data.examples import text_of, token_ids, unpadded
from cobasin.data.rows import MemoryRows, Rows
from cobasin.data.tasks import IGNORED
from cobasin.errors import InputError, shown


class Blocks(MemoryRows):
    """Blocks of token ids, perhaps with their labels, and where they come from."""

    def __init__(self, label: str, blocks: Sequence[tuple[str, dict[Role, list[int]]]]):
        super().__init__([block for _, block in blocks], label)
        self.places = [place for place, _ in blocks]

    def where(self, index: int) -> str:  # noqa: D102
        return self.places[index]


def choose(count: int, samples: int | None, seed: int) -> list[int]:
    """`samples` out of so many, shuffled; all in order for None."""
    if samples is None:
        return list(range(count))
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:samples].tolist()


def blocks_of(documents: Rows, tokenizer: Any, vocabulary: int, length: int, samples: int | None, seed: int) -> Blocks:
    """Every document's tokens in blocks of `length`, its special tokens in each; the last one may be shorter.

    Blank documents and blocks of a single token are left out. Of `samples` blocks that will be chosen, no two
    need be of one document, so no more than `samples` documents (chosen likewise) are read, each as a whole: the
    choice is among all of its blocks. Documents of given ``input_ids`` (then there is no tokenizer) are cut as they
    are, and so are their ``labels``, where they have some.

    Raises:
        InputError: a document is no text, and no list of ids either; the labels are of other tokens.
    """
    found: list[tuple[str, dict[Role, list[int]]]] = []
    used = 0
    for index in choose(len(documents), None if samples is None else len(documents), seed):
        row, where = documents[index], documents.where(index)
        cut: list[dict[Role, list[int]]]
        if tokenizer is None:
            given = _given(row, where, vocabulary)
            starts = range(0, len(given["input_ids"]), length)
            cut = [{role: ids[start : start + length] for role, ids in given.items()} for start in starts]
        else:
            cut = [{"input_ids": ids} for ids in _cut_text(row.get("text"), where, length, tokenizer)]
        cut = [block for block in cut if len(block["input_ids"]) > 1]
        found += [(f"{where}, block {number}", block) for number, block in enumerate(cut)]
        used += bool(cut)
        if used == samples:
            break
    return Blocks(documents.label, found)


def _given(row: Mapping[Role, Any], where: str, vocabulary: int) -> dict[Role, list[int]]:
    """The ids of a row without padding, and its labels: the same ids, or -100 where nothing is predicted."""
    mask, labels = row.get("attention_mask"), row.get("labels")
    ids = token_ids(row.get("input_ids"), mask, where, vocabulary)
    if labels is None:
        return {"input_ids": ids}
    kept = np.asarray(unpadded(labels, mask))
    if kept.shape != (len(ids),) or not ((kept == ids) | (kept == IGNORED)).all():
        raise InputError(
            f"{where}: labels are {shown(labels)}; expected input_ids again, or -100 where nothing is predicted, as "
            "models shift them themselves; or leave them out (columns: {labels: null})"
        )
    return {"input_ids": ids, "labels": kept.tolist()}


def _cut_text(text: Any, where: str, length: int, tokenizer: Any) -> list[list[int]]:
    if not (checked := text_of(text, where, "text")).strip():
        return []
    return tokenizer(checked, truncation=True, max_length=length, return_overflowing_tokens=True)["input_ids"]
