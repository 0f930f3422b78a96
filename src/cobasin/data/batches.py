"""A data set in batches."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.limits import counts_padding, takes_no_padding
from cobasin.data.answers import check_one_tokenizer
from cobasin.data.blocks import blocks_of, choose
from cobasin.data.config import DataConfig, DataSet
from cobasin.data.encoder import Batch, Encoder, inputs_of
from cobasin.data.examples import Example, Examples, text_role
from cobasin.data.hub import DatasetRows, is_dataset
from cobasin.data.rows import MemoryRows, feed
from cobasin.data.sources import rows_of
from cobasin.data.tasks import task_of
from cobasin.data.tokens import reads_looks, text_length, tokenizer_of
from cobasin.errors import InputError, whole

BLOCK = 512  # tokens that a language model reads at once, where the recipe does not say
_ONE_ROW = "read one row at a time (batch_size: 1 under statistics, --batch-size 1 of cobasin path)"


class Batches:
    """The batches of a data set, made as they are iterated over, every time the same.

    Attributes:
        rows: how many rows (of a language model: blocks) are used, also after `skip`.
        size: rows a batch; the last may have fewer.
        digest: SHA-256, in hexadecimal, of what these rows hold and of how it becomes inputs and labels.
    """

    def __init__(self, examples: Examples, order: Sequence[int], encoder: Encoder, batch_size: int):
        self.rows = len(order)
        self._examples, self._order, self._encoder, self.size = examples, order, encoder, batch_size
        self._numbers: Sequence[int] = range(-(-self.rows // batch_size))
        sha = hashlib.sha256(json.dumps([encoder.settings, batch_size], sort_keys=True).encode())
        for place in order:
            example = examples[place]
            feed(sha, {key: value for key, value in example.items() if key != "where"})
        self.digest = sha.hexdigest()

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Batch]:
        for number in self._numbers:
            places = self._order[number * self.size : (number + 1) * self.size]
            yield self._encoder([self._examples[place] for place in places], number)

    @property
    def labelled(self) -> bool:
        """Whether the rows have labels."""
        return next(iter(self)).labels is not None

    def unlabelled(self) -> InputError:
        """That the first row has no column of what is predicted."""
        return self._examples.unlabelled()

    def skip(self, count: int) -> Batches:
        """The same without the first `count` batches."""
        return self._of(self._numbers[count:])

    def shuffled(self, generator: torch.Generator) -> Batches:
        """The same batches in another order."""
        return self._of([self._numbers[i] for i in torch.randperm(len(self), generator=generator).tolist()])

    def by_length(self) -> Batches:
        """The same rows, the longest first: rows of one batch are of about one length, and little is padded.

        Those of a masked language model stay as they are: what is masked depends on the batch.
        """
        if self._encoder.masks is not None:
            return self
        left = [place for i in self._numbers for place in self._order[i * self.size : (i + 1) * self.size]]
        rest = self._of(range(len(self)))
        rest._order = sorted(left, key=lambda place: -_length(self._examples[place]))
        return rest

    def _of(self, numbers: Sequence[int]) -> Batches:
        rest = copy.copy(self)
        rest._numbers = numbers
        return rest


def batches(
    checkpoint: Checkpoint,
    data: DataSet,
    *,
    samples: int | None,
    batch_size: int,
    seed: int,
) -> Batches:
    """Batches of a data set for a model.

    Args:
        checkpoint: its config says what it reads, its folder has the tokenizer or image processor.
        data: a data set by its path, by its keys and values, or rows by role (see `DataConfig`).
        samples: how many rows are used, shuffled (of a language model: blocks); None: all, in order.
        batch_size: rows a batch; the last may have fewer.
        seed: of the shuffle, and of the masks of a masked language model; not negative.

    Raises:
        InputError: the data set cannot be read, or does not fit the model: with the first bad row of those that
            are used. Texts that have no tokens and files that are no pictures are found when they are reached.
    """
    given = (batch_size, 1 if samples is None else samples, seed)
    if not all(whole(number) for number in given) or min(given[:2]) < 1 or not 0 <= seed < 1 << 63:
        raise InputError(
            f"batch_size {batch_size!r}, samples {samples!r}, seed {seed!r}: expected whole numbers from 1 "
            "on, a seed from 0 to 2^63 - 1"
        )
    task = task_of(checkpoint)
    reads = inputs_of(checkpoint, task)
    if batch_size > 1 and takes_no_padding(checkpoint.config, checkpoint.architecture):
        raise InputError(
            f"{checkpoint.label}: the config has no pad_token_id, by which padding is told from text; add it, or "
            f"{_ONE_ROW}"
        )
    if batch_size > 1 and counts_padding(checkpoint.config, checkpoint.architecture):
        summary = checkpoint.config.summary_type
        raise InputError(f"{checkpoint.label}: takes padding for text (summary_type: {summary}); {_ONE_ROW}")
    if isinstance(data, (str, Path, Mapping, DataConfig)):
        data = DataConfig.of(data)
        rows = rows_of(data)
    else:
        rows = DatasetRows(data) if is_dataset(data) else MemoryRows(data)
        data = DataConfig(path="rows")
    lm = task in ("causal_lm", "masked_lm")
    rows = rows.documents() if lm else rows
    if not len(rows):
        raise InputError(f"{rows.label}: is empty")
    tokenizer, length = None, 0
    target_text = "decoder_input_ids" in reads and isinstance(rows[0].get("label"), str)
    if "input_ids" in reads:
        role = text_role(rows, task)
        if (lm or role == "input_ids") and reads_looks(checkpoint):
            raise InputError(
                f"{checkpoint.label}: reads how characters look and sound, which neither ids of tokens nor blocks of a "
                "language model say; match and merge it by weights, or give texts to a class that reads them whole"
            )
        if role != "input_ids" or task == "masked_lm" or target_text:
            tokenizer = tokenizer_of(checkpoint, words=role == "tokens", blocks=lm)
        key = "block" if lm and data.block else "max_length"
        length = text_length(checkpoint, tokenizer, getattr(data, key), BLOCK if lm else None, key)
        if lm:
            cutter = None if role == "input_ids" else tokenizer
            vocabulary = reads["input_ids"]["vocab_size"]
            rows = blocks_of(rows, cutter, vocabulary, length, samples, seed)
            if not len(rows):
                raise InputError(f"{rows.label}: no text has two tokens, the least that a language model learns from")
        elif target_text:
            check_one_tokenizer(checkpoint)
    elif "decoder_input_ids" in reads:  # what is written about a picture
        tokenizer = tokenizer_of(checkpoint) if target_text else None
        length = text_length(checkpoint, tokenizer, data.max_length, None)
    examples = Examples(rows, checkpoint, task, data, reads, length)
    encoder = Encoder(checkpoint, task, reads, tokenizer, data, length, seed)
    return Batches(examples, choose(len(rows), samples, seed), encoder, batch_size)


def _length(example: Example) -> int:
    """Words, ids or characters; all examples of a data set are of one kind, pictures of one size."""
    return sum(len(example[role]) for role in ("input_ids", "tokens", "text", "text_b") if role in example)
