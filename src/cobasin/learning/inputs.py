"""What models are run on: rows of data, or inputs that are made up where there are none."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import torch

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.limits import counts_padding
from cobasin.checkpoints.pictures_in_text import READ
from cobasin.data import Batch, Batches, DataSet, batches, task_of
from cobasin.data.synthetic import check_synthetic, images, reads_text
from cobasin.data.writing import Blank, blank_of, texts
from cobasin.errors import InputError
from cobasin.learning.descent import HELD_OUT, Data
from cobasin.progress import Progress, silent
from cobasin.statistics.rows import generator_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SAMPLES, TEXTS = 1024, 128  # rows of data, or images made up; texts made up
# images, and texts, made up to learn from: the answers to far fewer are learned by heart
IMAGES, WRITTEN = 32_768, 1024
MOST = 1_000_000  # made up
BATCH = {"image": 128, "causal_lm": 16, "masked_lm": 16, "seq2seq_lm": 16}  # rows; of other tasks 32, or one by one


@dataclass(frozen=True)
class Inputs:
    """Inputs of models of one architecture.

    Attributes:
        checkpoint: a model, or one like it.
        blank: what masked language models fill where texts are made up; None where they cannot.
        task: of the models, as `task_of` says.
        count: how many.
        size: of a batch: one batch in `HELD_OUT` can be held out.
        data: where they come from; None where they are made up.
        seed: of which they are.
    """

    checkpoint: Checkpoint
    blank: Blank | None
    task: str
    count: int
    size: int
    data: Batches | None
    seed: int

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        data: DataSet | None,
        samples: int | None,
        seed: int,
        usual: tuple[int, int] | None = None,
    ) -> Inputs:
        """Inputs of a model; what has to be read is read, no model is run.

        Args:
            checkpoint: the model, or one like it.
            data: as `batches` takes it; None to make inputs up.
            samples: how many, at most.
            seed: of which rows are taken, or of what is made up.
            usual: how many where ``samples`` does not say, and how many texts where these are made up. None to learn
                from them: all data there are, or `IMAGES`, or `WRITTEN` texts.

        Raises:
            InputError: data that does not fit, inputs that cannot be made up.
        """
        task = task_of(checkpoint)
        most = BATCH.get(task, 32)
        if data is None:
            check_synthetic(checkpoint)
            pictures, written = usual or (IMAGES, WRITTEN)
            count = samples or (written if reads_text(checkpoint) else pictures)
            if count > MOST:
                raise InputError(f"samples {count}: at most {MOST:,} inputs are made up")
            return cls(checkpoint, blank_of(checkpoint), task, count, _batch_size(count, most), None, seed)
        if counts_padding(checkpoint.config, checkpoint.architecture):
            most = 1
        count = samples or (sys.maxsize if usual is None else usual[0])
        size = _batch_size(count, most)
        found = batches(checkpoint, data, samples=count, batch_size=size, seed=seed)
        if (fewer := _batch_size(found.rows, most)) < size:
            size, found = fewer, batches(checkpoint, data, samples=count, batch_size=fewer, seed=seed)
        return cls(checkpoint, None, task, found.rows, size, found, seed)

    @property
    def labelled(self) -> bool:
        """Whether they have labels that the models predict."""
        return self.data is not None and self.task != "features" and self.data.labelled

    @property
    def no_labels(self) -> str:
        """Why there are none."""
        if self.task == "features":
            return f"a {self.checkpoint.architecture} predicts none"
        return (
            "inputs that are made up have none" if self.data is None else f"the data has none: {self.data.unlabelled()}"
        )

    @property
    def kind(self) -> str:
        """What they are, in words."""
        pictures = " (texts, without pictures)" if self.checkpoint.config.model_type in READ else ""
        if self.data is not None:
            return f"rows of data{pictures}"
        drawn = self.task == "masked_lm" and self.blank is None
        return "rows of random tokens" if drawn else f"inputs that were made up{pictures}"

    @property
    def report(self) -> dict[str, Any]:
        """What a report says of them."""
        digest = None if self.data is None else self.data.digest
        return {"kind": self.kind, "count": self.count, "digest": digest, "seed": self.seed}

    def batches(self, models: Sequence[PreTrainedModel], progress: Progress = silent) -> Data:
        """They themselves; texts that are made up are written by these models, in their order."""
        if self.data is not None:
            return self.data
        if not reads_text(self.checkpoint):
            sizes = [min(self.size, self.count - start) for start in range(0, self.count, self.size)]
            seeds = [generator_of(self.seed, number).initial_seed() for number, _ in enumerate(sizes)]
            return _Images(self.checkpoint, sizes, seeds)
        rows = texts(models, self.count, self.seed, self.blank, partial(progress, "writing texts"))
        if self.blank is not None or self.task == "seq2seq_lm":  # masked, or moved by one, as data are
            return batches(self.checkpoint, rows, samples=None, batch_size=self.size, seed=self.seed)
        ids = torch.tensor([row["input_ids"] for row in rows])
        return [Batch({"input_ids": some}, None) for some in ids.split(self.size)]


@dataclass(frozen=True)
class _Images(Sequence[Batch]):
    """Batches of images that are made up whenever they are asked for, every time the same: thousands take gigabytes.

    Attributes:
        checkpoint: a model that reads them.
        sizes: images of every batch.
        seeds: of every batch.
    """

    checkpoint: Checkpoint
    sizes: Sequence[int]
    seeds: Sequence[int]

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, at: int) -> Batch: ...

    @overload
    def __getitem__(self, at: slice) -> _Images: ...

    def __getitem__(self, at: int | slice) -> Batch | _Images:
        if isinstance(at, slice):
            return _Images(self.checkpoint, self.sizes[at], self.seeds[at])
        return Batch(images(self.checkpoint, self.sizes[at], self.seeds[at]), None)


def _batch_size(count: int, most: int) -> int:
    return max(1, min(most, count // HELD_OUT))
