"""Documents cut into the blocks that a language model reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cobasin.data.examples import token_ids
from cobasin.data.rows import MemoryRows, Rows, check_text
from cobasin.errors import InputError, shown


class Blocks(MemoryRows):
    """Blocks of token ids, and where they come from."""

    def __init__(self, label: str, blocks: Sequence[tuple[str, list[int]]]):
        super().__init__([{"input_ids": ids} for _, ids in blocks], label)
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
    are.

    Raises:
        InputError: a document is no text, and no list of ids either.
    """
    found: list[tuple[str, list[int]]] = []
    used = 0
    for index in choose(len(documents), None if samples is None else len(documents), seed):
        row, where = documents[index], documents.where(index)
        if tokenizer is None:
            ids = token_ids(row.get("input_ids"), row.get("attention_mask"), where, vocabulary)
            cut = [ids[start : start + length] for start in range(0, len(ids), length)]
        else:
            cut = _cut_text(row.get("text"), where, length, tokenizer)
        cut = [block for block in cut if len(block) > 1]
        found += [(f"{where}, block {number}", block) for number, block in enumerate(cut)]
        used += bool(cut)
        if used == samples:
            break
    return Blocks(documents.label, found)


def _cut_text(text: Any, where: str, length: int, tokenizer: Any) -> list[list[int]]:
    if not isinstance(text, str):
        raise InputError(f"{where}: text is {shown(text)}; expected a string")
    check_text(text, where, "text")
    if not text.strip():
        return []
    return tokenizer(text, truncation=True, max_length=length, return_overflowing_tokens=True)["input_ids"]
