"""Batches of plain rows, for models of text, images and two-sided models."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from cobasin.data import Batch

PAD = {"labels": -100, "attention_mask": 0, "decoder_attention_mask": 0}

Row = dict[str, Tensor]


class PlainBatches:
    """Rows as the data package would give them: padded to the longest of a batch, on the right."""

    def __init__(self, rows: Sequence[Row], size: int, start: int = 0):
        self.all, self.size, self.start = rows, size, start
        self.rows = len(rows)
        self.reads = 0  # how many batches were asked for

    @property
    def digest(self) -> str:
        return hashlib.sha256(
            repr([(sorted(row), [row[k].tolist() for k in sorted(row)]) for row in self.all]).encode()
        ).hexdigest()

    def __len__(self) -> int:
        return -(-self.rows // self.size) - self.start

    def skip(self, n: int) -> PlainBatches:
        return PlainBatches(self.all, self.size, self.start + n)

    def __iter__(self) -> Iterator[Batch]:
        for first in range(self.start * self.size, self.rows, self.size):
            self.reads += 1
            yield batch(self.all[first : first + self.size])


def batch(rows: Sequence[Row]) -> Batch:
    """One padded batch of rows."""
    inputs = {name: _padded([row[name] for row in rows], PAD.get(name, 0)) for name in rows[0]}
    return Batch(labels=inputs.pop("labels", None), inputs=inputs)


def _padded(values: list[Tensor], pad: int) -> Tensor:
    if values[0].dim() != 1 or len({len(value) for value in values}) == 1:
        return torch.stack(values)
    return torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=pad)


def text_rows(count: int, vocabulary: int, seed: int = 0, labels: str = "none", classes: int = 3) -> list[Row]:
    """Texts of 3 to 9 tokens, with labels for one text (``class``, ``number``, ``flags``) or its ``tokens``."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        length = int(torch.randint(3, 10, (), generator=generator))
        ids = torch.randint(5, vocabulary, (length,), generator=generator)
        row = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        drawn = torch.randint(classes, (length,), generator=generator)
        flags = torch.where(drawn[:classes] == 2, torch.nan, drawn[:classes].double())
        kinds = {"class": drawn[0], "number": torch.randn((), generator=generator, dtype=torch.float64), "flags": flags}
        if labels == "text":
            row["labels"] = ids.clone()
        elif labels == "tokens":
            row["labels"] = torch.where(drawn == 0, -100, drawn)
        elif labels != "none":
            row["labels"] = kinds[labels]
        rows.append(row)
    return rows
