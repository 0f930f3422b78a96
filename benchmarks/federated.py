"""Federated rounds: clients train on images of their own, and a server, which has none, merges what they send.

    python benchmarks/federated.py [--seeds 3] [--dev]

Three clients share CIFAR-10's training images, the classes by a Dirichlet distribution (Hsu, Qi and Brown, 2019). Each
trains alone at first; then in every round the server averages their models, weighted by their images (McMahan et al.,
AISTATS 2017), and each trains what it gets for a few steps. Matching is learned, and an average is healed (trained to
answer as the clients do on average; Lin et al., NeurIPS 2020), on images that are made up. Trained models are kept in
``--out``/models. Scores are of what the server sends.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.output import publishing
from cobasin.checkpoints.running import instantiate
from cobasin.learning.inputs import SAMPLES
from cobasin.merging.merge import merge_recipe
from common.families import Family, Task
from common.results import Results
from common.showing import Table, announce, parser, spread
from common.tuning import fine_tune
from training.data import DEV_IMAGES

FAMILY = "cifar10-vit"
CLIENTS, SKEW = 3, 0.5  # and the concentration of the Dirichlet distribution
ALONE, ROUNDS, STEPS, RATE = 600, 4, 60, 1e-3  # steps before the first round, and in each; RATE is of the latter
STARTS = ("one start", "starts of their own")
LEARNED: Mapping[str, Any] = {"match": {"symmetry": "gl", "method": "learned", "steps": 500, "samples": SAMPLES}}
HEALED: Mapping[str, Any] = {"heal": {"steps": 500, "samples": SAMPLES}}
LARGEST, APART, POOLED = "the largest client's model", "clients alone, their mean", "all images in one place"
# what the server's recipe says beside the average in the first round (None: it takes one model), and in the others
WAYS: Mapping[str, tuple[Mapping[str, Any] | None, Mapping[str, Any]]] = {
    LARGEST: (None, {}),
    "average": ({}, {}),
    "average, healed in every round": (HEALED, HEALED),
    "matched by weights": ({"match": "full"}, {}),
    "matched by weights, healed in every round": ({"match": "full", **HEALED}, HEALED),
    "matched by learned": (LEARNED, {}),
    "matched by learned in every round": (LEARNED, LEARNED),
}
MINUTES = 60.0  # a seed


def shares(labels: np.ndarray, seed: int) -> list[np.ndarray]:
    """The rows of every client: of each class a share that is drawn."""
    random = np.random.default_rng(seed)
    own: list[list[np.ndarray]] = [[] for _ in range(CLIENTS)]
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        cuts = (random.dirichlet([SKEW] * CLIENTS).cumsum()[:-1] * len(rows)).astype(int)
        for client, part in zip(own, np.split(rows, cuts), strict=True):
            client.append(part)
    return [np.sort(np.concatenate(parts)) for parts in own]


class Federation:
    """Clients and their images.

    Args:
        family: of their models.
        seed: of the shares of images, the starts of models, and the order of rows.
        out: folder of ``models``.
    """

    def __init__(self, family: Family, seed: int, out: Path):
        self.seed, self.out = seed, out / "models"
        # whose own models are trained on the dev images, too
        self.training = family.training.model_copy(update={"held_out": DEV_IMAGES})
        self.config = self.training.made_config()
        self.data = self.training.read_data(self.config, family.shared).train
        self.rows = shares(np.asarray(self.data.labels), seed)  # type: ignore[attr-defined] - of images

    def alone(self, start: str, client: int | None) -> Any:
        """A client's model before the first round, trained where it is not there; None for a client that has all."""
        own = client if start != STARTS[0] and client is not None else 0
        name = "pooled" if client is None else f"{start.split()[0]}-{client}"
        folder = self.out / f"federated-{self.seed}-{name}"
        if not folder.exists():
            model = self.training.model(self.seed * CLIENTS + own, self.config)
            arguments = {key: self.training.training[key] for key in ("learning_rate", "weight_decay")}
            with publishing(folder, False, None) as unfinished:
                self._train(model, client, 0, ALONE, unfinished, warmup_steps=ALONE // 10, **arguments)
        return instantiate(load(folder), torch.float32)

    def round(self, model: Any, client: int | None, number: int) -> Any:
        """The model after a client's steps of a round."""
        with tempfile.TemporaryDirectory() as folder:
            self._train(model, client, number, STEPS, Path(folder), learning_rate=RATE)
        return model.eval()

    def _train(self, model: Any, client: int | None, number: int, steps: int, folder: Path, **how: Any) -> None:
        rows = self.data if client is None else Subset(self.data, self.rows[client].tolist())
        size = self.training.training["per_device_train_batch_size"]
        seed = self.seed + 1000 * number + 100 * (client or 0)
        how |= {"max_steps": steps, "per_device_train_batch_size": size, "remove_unused_columns": False}
        fine_tune(model, rows, folder, seed, lambda batch: batch, **how)  # type: ignore[arg-type] - any sequence

    def merged(self, models: Sequence[Any], blocks: Mapping[str, Any]) -> Any:
        """What the server makes of the clients' models, by a recipe with these blocks."""
        names = [f"client {client}" for client in range(CLIENTS)]
        weights = [len(rows) for rows in self.rows]
        listed = [{"model": n, "parameters": {"weight": w}} for n, w in zip(names, weights, strict=True)]
        merge = merge_recipe(
            {"merge_method": "linear", "models": listed, **blocks}, dict(zip(names, models, strict=True))
        )
        return instantiate(merge.checkpoint, torch.float32)

    def run(self, start: str, way: str, task: Task) -> dict[str, Any]:
        """Rounds; scores of what the server sends."""
        models, scores = [self.alone(start, client) for client in range(CLIENTS)], []
        largest = max(range(CLIENTS), key=lambda client: len(self.rows[client]))
        for number in range(1, ROUNDS + 1):
            blocks = WAYS[way][number > 1]
            server = models[largest] if blocks is None else self.merged(models, blocks)
            scores.append(task.score(server))
            if number < ROUNDS:
                models = [self.round(copy.deepcopy(server), client, number) for client in range(CLIENTS)]
        return {"scores": scores}

    def apart(self, start: str, clients: Sequence[int | None], task: Task) -> dict[str, Any]:
        """The same training with no server: scores, and their mean over the clients."""
        each = []
        for client in clients:
            model, own = self.alone(start, client), []
            for number in range(1, ROUNDS + 1):
                own.append(task.score(model))
                model = self.round(model, client, number) if number < ROUNDS else model
            each.append(own)
        found = [{key: mean(one[key] for one in scores) for key in scores[0]} for scores in zip(*each, strict=True)]
        return {"scores": found}


def run(family: Family, seeds: int, dev: bool, out: Path) -> list[dict[str, Any]]:
    """Everything, of every seed."""
    results, task, rows = Results(out / "measured-federated.json"), family.task(1, dev), []
    for seed in range(seeds):
        made = Federation(family, seed, out)
        of = {"seed": seed, "data": task.data, "images": [len(own) for own in made.rows], "alone": ALONE}
        of |= {"steps": STEPS, "rate": RATE}

        def add(start: str, way: str, measure: Callable[[], dict[str, Any]], of: dict[str, Any] = of) -> None:
            rows.append(results.get({**of, "start": start, "way": way}, measure))

        add("", POOLED, partial(made.apart, STARTS[0], [None], task))
        for start in STARTS:
            add(start, APART, partial(made.apart, start, range(CLIENTS), task))
            for way in WAYS:
                add(start, way, partial(made.run, start, way, task))
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """From what `run` gives."""
    body = []
    for start, way in (("", POOLED), *product(STARTS, (APART, *WAYS))):
        own = [row["scores"] for row in rows if (row["of"]["start"], row["of"]["way"]) == (start, way)]
        if not own:
            continue
        cells = [spread([100 * one["accuracy"] for one in scores], "{:.2f}") for scores in zip(*own, strict=True)]
        body.append([f"{start}: {way}" if start else way, *cells])
    return Table(
        "accuracy, %",
        [f"round {number}" for number in range(1, ROUNDS + 1)],
        body,
        "Mean and standard deviation over seeds, where there are several.",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    asked = parser(__doc__, families=False).parse_args(arguments)
    announce(asked.seeds * MINUTES, f"{asked.seeds} seeds; models and results that are there are not made again")
    (family,) = Family.all(asked.shared, asked.out / "models", [FAMILY])
    table(run(family, asked.seeds, asked.dev, asked.out)).show()


if __name__ == "__main__":
    main()
