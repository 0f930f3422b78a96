"""The loss of a model's answers: against those of its parents, or against labels, for every task.

The parents' answers are averaged as answers: as probabilities where the task has them (the teacher of Hinton, Vinyals
and Dean, *Distilling the Knowledge in a Neural Network*, 2015, as an ensemble), as numbers else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from cobasin.checkpoints.fingerprint import tensor_hash
from cobasin.checkpoints.running import OUTPUT_NAMES
from cobasin.data import Batch
from cobasin.errors import InputError
from cobasin.evaluation.tasks import labels_of
from cobasin.statistics.likelihood import counted, loss_of
from cobasin.statistics.rows import Tokens

REMEMBERED = 1 << 28  # bytes
SPANS = ("start_logits", "end_logits")
NUMBERS = ("regression", "features")
"""Tasks whose answers are numbers, not probabilities; ``features`` are whatever a model without a usual head puts out:
its last hidden state, embeddings, or the logits of a head that no rows are read for."""


def answers(task: str, output: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """What a model answers, padding left out: logits ``[n, classes]``; for features all numbers in a row.

    Args:
        task: as `cobasin.data.task_of` says.
        output: of the model.
        inputs: of the model.
    """
    tokens = Tokens(inputs)
    if task != "features":
        return tokens.counted(output.logits)
    names = next(names for names in OUTPUT_NAMES if any(output.get(name) is not None for name in names))
    found = [(name, value) for name in names if (value := output.get(name)) is not None]
    # where a span starts and ends are numbers of every token
    found = [value[..., None] if name in SPANS else value for name, value in found]
    return torch.cat([tokens.counted(value).flatten() for value in found])


def mean_answer(task: str, parents: Sequence[Tensor]) -> Tensor:
    """What models answer on average: probabilities, or numbers.

    Args:
        task: as `cobasin.data.task_of` says.
        parents: `answers` of each on the same inputs.
    """
    if task in NUMBERS:
        return torch.stack(list(parents)).mean(0)
    if task == "multilabel":
        return torch.stack([logits.sigmoid() for logits in parents]).mean(0)
    return torch.stack([logits.softmax(-1) for logits in parents]).mean(0)


def against_mean(task: str, found: Tensor, mean: Tensor) -> Tensor:
    """Mean loss where a `mean_answer` is right: cross-entropy, or squared difference.

    Args:
        task: as `cobasin.data.task_of` says.
        found: `answers` of the model.
        mean: of others on the same inputs.
    """
    if task in NUMBERS:
        return mse_loss(found, mean)
    return (binary_cross_entropy_with_logits if task == "multilabel" else cross_entropy)(found, mean)


class Memory:
    """What was computed for batches before, up to a size in all; a batch is known by what is in it."""

    def __init__(self, most: int = REMEMBERED):
        """Remember tensors of ``most`` bytes in all; what comes after that is computed each time."""
        self._found: dict[str, Tensor] = {}
        self._left = most

    def get(self, batch: Batch, compute: Callable[[], Tensor]) -> Tensor:
        """What ``compute`` gives for this batch."""
        key = hashlib.sha256(repr([(name, tensor_hash(x)) for name, x in batch.inputs.items()]).encode()).hexdigest()
        if key in self._found:
            return self._found[key]
        found = compute()
        if found.nbytes <= self._left:
            self._found[key] = found
            self._left -= found.nbytes
        return found


def against_labels(task: str, logits: Tensor, batch: Batch) -> Tensor:
    """Mean loss over the labels that are there (neither -100 nor NaN), as `cobasin.evaluation.tasks.evaluate` has it.

    Args:
        task: as `cobasin.data.task_of` says, but ``features``.
        logits: of the model, as it puts them out.
        batch: with labels, on the device of the logits.

    Raises:
        InputError: the batch has none.
    """
    loss, counts = loss_of(task, logits, labels_of(batch), batch.inputs)
    return loss / counts.sum().clamp_min(1)


def mean_loss(task: str, batches: Sequence[Batch], labels: bool, loss: Callable[[Batch], Tensor]) -> float:
    """The mean of a loss over batches.

    Args:
        task: as `cobasin.data.task_of` says.
        batches: of any sizes.
        labels: whether the loss is one `against_labels`, of which the mean is that over all labels that are there.
        loss: of a batch.

    Raises:
        InputError: it is against labels, and none is there.
    """
    counts = [label_count(task, batch) if labels else 1 for batch in batches]
    if not any(counts):
        raise InputError("the rows that are held out have no label that counts: give more rows with labels")
    sums = (count * float(loss(batch)) for count, batch in zip(counts, batches, strict=True) if count)
    return sum(sums) / sum(counts)


def label_count(task: str, batch: Batch) -> int:
    """How many labels of a batch count (neither -100 nor NaN)."""
    return int(counted(task, labels_of(batch)).sum())
