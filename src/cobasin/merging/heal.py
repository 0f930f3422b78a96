"""A short heal: a few steps of training of all parameters, in which the merged model may leave the line of its parents.

By default it learns to answer as its parents do on average, so it needs no labels, and inputs may be made up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cobasin.data import Batch
from cobasin.learning.answers import against_labels, against_mean, answers, mean_answer, mean_loss
from cobasin.learning.descent import Data, Descent, descend
from cobasin.progress import Looks, silent

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RATE = 3e-4
PATIENCE = 5


@dataclass(frozen=True)
class Judge:
    """The loss of models in memory, against the mean answer of others or against labels.

    Attributes:
        parents: the others.
        task: as `cobasin.data.task_of` says.
    """

    parents: Sequence[PreTrainedModel]
    task: str

    def loss(self, model: PreTrainedModel, batch: Batch, against: str) -> Tensor:
        """The mean loss on one batch, differentiable; ``against`` is ``parents`` or ``labels``."""
        batch = batch.to(model.device, model.dtype)
        output = model(**batch.inputs)
        if against == "labels":
            return against_labels(self.task, output.logits, batch)
        with torch.no_grad():
            parents = [answers(self.task, parent(**batch.inputs), batch.inputs) for parent in self.parents]
        mean = mean_answer(self.task, parents)
        return against_mean(self.task, answers(self.task, output, batch.inputs), mean)

    @torch.no_grad()
    def mean(self, model: PreTrainedModel, batches: Sequence[Batch], against: str) -> float:
        """The mean over batches; of labels over all of them.

        Raises:
            InputError: no label counts.
        """
        return mean_loss(self.task, batches, against == "labels", lambda batch: self.loss(model, batch, against))


def heal(
    model: PreTrainedModel,
    judge: Judge,
    held: Sequence[Batch],
    seen: Data,
    *,
    steps: int,
    against: str = "parents",
    rate: float = RATE,
    seed: int = 0,
    patience: int = PATIENCE,
    progress: Looks = silent,
) -> Descent:
    """Train a model in place; what it is in the end did best on the held-out batches, and may be what it was.

    Args:
        model: on the device where it runs.
        judge: of its loss.
        held: batches that are only looked at.
        seen: batches that are learned from.
        steps: at most.
        against: as `Judge.loss`.
        rate: the highest learning rate.
        seed: of the order of the batches.
        patience: looks without a gain, after which it ends.
        progress: called with the number of the step and the loss on the held-out batches.

    Raises:
        InputError: as `descend`.
    """
    return descend(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lambda batch, *_: judge.loss(model, batch, against),
        lambda: judge.mean(model, held, against),
        seen,
        steps=steps,
        rate=rate,
        seed=seed,
        patience=patience,
        report=progress,
    )
