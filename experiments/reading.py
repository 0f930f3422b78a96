"""The data sets of an experiment as its models read them, and how well models do on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cobasin.checkpoints.checkpoint import load
from cobasin.data import Batch, batches, rows_of, task_of
from cobasin.evaluation.tasks import evaluate
from experiment import Experiment, Split
from models import End, rows_digest
from world import World

BATCH = 16  # rows that are evaluated at once


class Reading:
    """What is read of the data sets of one experiment.

    Attributes:
        data: those that are used, by name.
    """

    def __init__(self, experiment: Experiment, world: World):
        self.experiment, self.world, self.data = experiment, world, experiment.used()
        self._read: dict[tuple[End, str, Split], list[Batch]] = {}

    def evaluated(self, model: Any, end: End, test: str, split: Split) -> dict[str, Any]:
        """Loss and metric of a model that reads what this end model reads."""
        found = evaluate(model, self.read(end, test, split), task_of(load(end.folder)), self.data[test].metric)
        return {"loss": found.loss, "metric": found.metric, "metric_name": found.metric_name}

    def read(self, end: End, test: str, split: Split) -> list[Batch]:
        """Rows of a data set for an end model, read once: some hundred merges are evaluated on them."""
        key = (end, test, split)
        if key not in self._read:
            config, limit = self.data[test].config(split, self.world), self.experiment.rows.get(split)
            samples = None if limit is None or limit >= len(rows_of(config)) else limit
            found = batches(load(end.folder), config, samples=samples, batch_size=BATCH, seed=0)
            self._read[key] = list(found.by_length())
        return self._read[key]

    def annotated(self, end: End) -> Tensor:
        """[labels], which of them the data of a multi-label end model annotates."""
        labels = [batch.labels for batch in self.read(end, end.data, "test") if batch.labels is not None]
        return ~torch.cat(labels).isnan().all(0)

    def tests_of(self, group: list[End]) -> list[str]:
        """The data sets that models which are merged are evaluated on."""
        return self.experiment.unseen or list(dict.fromkeys(end.data for end in group))

    def digests(self, group: list[End], split: Split) -> dict[str, Any]:
        """What tells `tests_of` these models from others, by name."""
        return {test: self.test_digest(test, split) for test in self.tests_of(group)}

    def test_digest(self, test: str, split: Split) -> list[Any]:
        """What tells a test from others: its rows, and how they are read."""
        data = self.data[test]
        return [data.read, data.metric, self.digest(test, split), self.experiment.rows.get(split)]

    def digest(self, name: str, split: Split) -> str:
        """What tells the rows of a data set from others."""
        return rows_digest(self.data[name].config(split, self.world).model_dump_json())
