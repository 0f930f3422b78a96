"""How elements are found: by weights, with activations, or learned; and what that needs.

Each method starts where the one before it ends. ``activations`` matches what two models compute on the same inputs
together with their weights; ``learned`` goes on with the loss of the models between the models. The inputs are made up
unless data is given. Where the weights alone agree the other two have nothing to add, and a planted element stays
exact.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.typed import Typed
from cobasin.data import Batch, Batches, DataConfig, batches, task_of
from cobasin.data.synthetic import check_synthetic, synthetic_inputs
from cobasin.errors import InputError
from cobasin.evaluation.running import input_sizes
from cobasin.learning.descent import HELD_OUT, Data
from cobasin.matching.learned import Loss
from cobasin.statistics.collect import device_of

Method = Literal["weights", "activations", "learned"]
Move = Literal["source", "all"]

SAMPLES = 1024  # rows that are compared, images that are made up
TEXTS = 128  # that are made up
STEPS = 1000
BATCH = {"image": 128, "causal_lm": 16, "masked_lm": 16, "seq2seq_lm": 16}  # rows; of other tasks 32


@dataclass(frozen=True)
class Search:
    """What is asked for.

    Attributes:
        method: ``weights``, ``activations`` or ``learned``.
        data: the inputs, as `cobasin.data.batches` takes them; made up where None.
        samples: how many inputs; by default `SAMPLES`, or `TEXTS` that are made up. To learn from data, all of it.
        seed: of the inputs, and of what is random in learning.
        steps: of learning, at most.
        loss: what a model between the models learns: ``parents``, to answer as they do on average, which needs no
            labels; ``labels``, those of the data.
        move: ``source``, all models but the reference move; ``all``, its scales and general maps do, too.
        device: where models run, in torch's words; ``auto`` leaves it to accelerate.
        state: a file that keeps how far learning is, for a run that is interrupted. Whoever names it removes it.
        resume: whether learning goes on from the state, where there is one; it is overwritten otherwise. That of
            another search (other models, data or settings) is refused.

    Raises:
        InputError: for unknown words, what does not go with the method, numbers out of range.
    """

    method: str = "weights"
    data: DataConfig | Sequence[Mapping[str, Any]] | None = None
    samples: int | None = None
    seed: int = 0
    steps: int = STEPS
    loss: str = "parents"
    move: str = "source"
    device: str = "auto"
    state: Path | None = None
    resume: bool = True

    def __post_init__(self) -> None:
        for name, words in (("method", Method), ("loss", Loss), ("move", Move)):
            if (given := getattr(self, name)) not in get_args(words):
                raise InputError(f"{name} {given!r} is unknown; expected one of {', '.join(get_args(words))}")
        if self.method == "weights" and (self.data is not None or self.device != "auto"):
            what = "reads no data" if self.data is not None else "runs no model, on no device"
            raise InputError(f"method weights {what}; leave it out, or take method activations or learned")
        if self.method != "learned" and (self.loss, self.move, self.state) != ("parents", "source", None):
            raise InputError(
                f"method {self.method} learns nothing; loss, move and state (--loss, --anchor-out, --resume) go with "
                "method learned"
            )
        if self.loss == "labels" and self.data is None:
            raise InputError("loss labels: inputs that are made up have no labels; give data that has, or take parents")
        if min(self.steps, self.seed + 1, 1 if self.samples is None else self.samples) < 1:
            raise InputError(
                f"samples {self.samples}, steps {self.steps}, seed {self.seed}: expected whole numbers from 1 on, a "
                "seed from 0"
            )

    def prepared(self, typed: Sequence[Typed]) -> Prepared | None:
        """What running the models needs, None where they are not run; all checks that need no tensor are done.

        Raises:
            InputError: inputs that cannot be made up, data that do not fit, labels that are missing, no such device.
        """
        if self.method == "weights":
            return None
        first = typed[0].checkpoint
        if self.data is None:
            check_synthetic(first)
        task, device = task_of(first), device_of(self.device)
        if self.method == "learned" and any(model.labels != typed[0].labels for model in typed):
            raise InputError(
                "the task heads have different labels: no common answers to learn; take method activations"
            )
        texts = self.data is None and "input_ids" in input_sizes(first.config, first.architecture)
        everything = self.method == "learned" and self.data is not None
        count = self.samples or (sys.maxsize if everything else TEXTS if texts else SAMPLES)
        most, found = BATCH.get(task, 32), None
        size = _batch_size(count, most)
        if self.data is not None:
            found = self._batches(first, count, size)
            if (fewer := _batch_size(found.rows, most)) < size:
                size, found = fewer, self._batches(first, count, fewer)
            count = found.rows
        if self.method == "learned" and count < 2:
            raise InputError("learning holds some inputs out: 1 is too few; give more, or take method activations")
        if found is not None and self.loss == "labels" and (task == "features" or next(iter(found)).labels is None):
            why = f"a {first.architecture} predicts none" if task == "features" else "the data has none"
            raise InputError(f"loss labels: {why}; take loss parents, which needs none")
        return Prepared(self, task, count, size, found, device)

    def _batches(self, checkpoint: Checkpoint, count: int, size: int) -> Batches:
        assert self.data is not None
        return batches(checkpoint, self.data, samples=count, batch_size=size, seed=self.seed)


def _batch_size(count: int, most: int) -> int:
    """So that one batch in `HELD_OUT` can be held out."""
    return max(1, min(most, count // HELD_OUT))


@dataclass(frozen=True)
class Prepared:
    """A search whose inputs are known.

    Attributes:
        search: what is asked for.
        task: of the models.
        count: inputs.
        size: of a batch.
        data: the inputs; None where they are made up.
        device: where models run.
    """

    search: Search
    task: str
    count: int
    size: int
    data: Batches | None
    device: torch.device

    @property
    def kind(self) -> str:
        """What the inputs are, in words."""
        return "inputs that were made up" if self.data is None else "rows of data"

    @property
    def report(self) -> dict[str, Any]:
        """What a report says of it."""
        digest = None if self.data is None else self.data.digest
        inputs = {"count": self.count, "digest": digest, "seed": self.search.seed}
        return {"method": self.search.method, "inputs": inputs}

    def batches(self, models: Sequence[Any]) -> Data:
        """The inputs; texts that are made up are written by these models, in their order."""
        if self.data is not None:
            return self.data
        inputs = synthetic_inputs(models, self.count, self.search.seed)
        parts = (x.split(self.size) for x in inputs.values())
        return [Batch(dict(zip(inputs, batch, strict=True)), None) for batch in zip(*parts, strict=True)]
