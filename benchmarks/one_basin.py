"""Independently trained pairs brought into one basin: raw, by weights, by activations, learned.

    python benchmarks/one_basin.py [--pair cifar10-vit-seed] [--shared ../shared] [--out benchmarks/out]

Every way of matching is measured on the test set once, at its defaults but for ``--steps`` and ``--train``; nothing is
chosen here. What is random (inputs that are made up, the order of the data, learning) is run with every seed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cross_entropy

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.evaluation.path import loss_path
from cobasin.evaluation.running import instantiate
from cobasin.finding import match as api
from cobasin.finding.applying import transform
from cobasin.verification import verify

PAIRS = ("cifar10-vit-seed", "gpt2-shakespeare-", "llama-shakespeare-")
WAYS: dict[str, dict[str, Any]] = {
    "paper": {"symmetry": "paper"},
    "weights": {},
    "activations, made up": {"method": "activations"},
    "learned, made up": {"method": "learned"},
    "learned, training data": {"method": "learned", "data": True},
}
SEEDED = [name for name, options in WAYS.items() if "method" in options]
TOLERANCE = 5e-6  # Transformers computes parts of Llama in float32; the figure itself is in the report


@dataclass(frozen=True)
class Task:
    """Test inputs and what they should give, and rows of training data.

    Attributes:
        inputs: ``[rows, ...]``, under the name that the model gives them.
        labels: ``[rows, ...]``.
        train: rows for `cobasin.match`.
        part: how many of the first test rows the line is measured on; the midpoint is measured on all.
    """

    name: str
    inputs: Tensor
    labels: Tensor
    train: list[Mapping[str, Any]]
    part: int

    @torch.no_grad()
    def logits(self, model: Any, rows: int | None = None) -> Tensor:
        """``[predictions, classes]``."""
        found = torch.cat([model(**{self.name: part}).logits for part in self.inputs[:rows].split(250)])
        return found if self.name == "pixel_values" else found[:, :-1].flatten(0, 1)

    def score(self, logits: Tensor) -> tuple[float, float]:
        """Loss and accuracy of log-probabilities or logits, of as many of the first rows as there are."""
        labels = self.labels.flatten()[: len(logits)]
        return cross_entropy(logits, labels).item(), (logits.argmax(1) == labels).double().mean().item()


def cifar10(shared: Path, train: int) -> Task:
    sys.path.insert(0, str(shared / "data"))
    from load import cifar10 as read  # type: ignore[import-not-found]

    own, _, test, labels = read()
    mean_, deviation = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])

    def normalised(images: Any) -> Tensor:
        return (torch.tensor(images[:, 4:28, 4:28]) / 255 - mean_) / deviation

    rows: list[Mapping[str, Any]] = [{"image": image.numpy()} for image in normalised(own[:train])]
    return Task("pixel_values", normalised(test).permute(0, 3, 1, 2), torch.tensor(labels).long(), rows, 1000)


def shakespeare(shared: Path, folder: Path, train: int) -> Task:
    number = {c: i for i, c in enumerate(json.loads((folder / "chars.json").read_text()))}

    def blocks(split: str) -> Tensor:
        text = (shared / f"data/lm/tinyshakespeare/{split}.txt").read_text()
        tokens = torch.tensor([number[c] for c in text])
        return tokens[: len(tokens) // 128 * 128].view(-1, 128)

    test, own = blocks("test"), blocks("train")
    chosen = own[torch.randperm(len(own), generator=torch.Generator().manual_seed(0))[:train]]
    return Task("input_ids", test, test[:, 1:], [{"input_ids": block.tolist()} for block in chosen], 100)


def measure(task: Task, ends: Sequence[Any]) -> dict[str, float]:
    """Midpoint on all test rows, barrier over 25 points on the first of them."""

    def evaluate(model: Any) -> tuple[float, float]:
        return task.score(task.logits(model, task.part))

    middle = _middle(ends)
    loss, accuracy = task.score(task.logits(middle))
    return {"loss": loss, "accuracy": accuracy, "barrier": loss_path(ends[0], ends[1], evaluate).barrier}


@torch.no_grad()
def _middle(ends: Sequence[Checkpoint]) -> Any:
    middle, *others = (instantiate(end, torch.float32) for end in ends)
    for target, other in zip(middle.parameters(), others[0].parameters(), strict=True):
        target.lerp_(other, 0.5)
    return middle


def run(task: Task, anchor: Path, source: Path, seeds: int, steps: int, log: Callable[[str], None]) -> dict[str, Any]:
    """All ways to bring one model to another."""
    logits = [task.logits(instantiate(load(model), torch.float32)) for model in (anchor, source)]
    ensemble = torch.stack([x.softmax(-1) for x in logits]).mean(0).log()
    found: dict[str, Any] = {
        "parents": [dict(zip(("loss", "accuracy"), task.score(x), strict=True)) for x in logits],
        "probability ensemble": dict(zip(("loss", "accuracy"), task.score(ensemble), strict=True)),
        "none": [measure(task, [load(anchor), load(source)])],
    }
    for name, options in WAYS.items():
        found[name] = []
        options = dict(options)
        if "method" in options:
            options |= {"steps": steps}
        if options.pop("data", False):
            options |= {"data": task.train, "samples": len(task.train)}
        for seed in range(seeds if name in SEEDED else 1):
            started = time.process_time()
            matched = api.match_all([anchor, source], anchor=0, seed=seed, **options)
            seconds = time.process_time() - started
            ends = [
                model.derived(state, torch.float32) for model, state in zip(matched.typed, matched.states, strict=True)
            ]
            element = matched.elements[1]
            assert element is not None
            kept = verify(load(source), transform(element, source, torch.float64), TOLERANCE)
            row = {"seed": seed, **measure(task, ends), "seconds": seconds, "notes": element.report["notes"]}
            row |= {"function": kept.relative_float64, "function_kept": kept.same}
            found[name].append(row)
            log(f"{name}, seed {seed}: {row}")
    return found


def show(name: str, found: dict[str, Any]) -> None:
    table = Table("", "loss", "accuracy", "barrier", "CPU seconds", "change of logits (float64)", title=name)
    for i, parent in enumerate(found["parents"]):
        table.add_row(f"parent {i}", f"{parent['loss']:.3f}", f"{parent['accuracy']:.2%}")
    ensemble = found["probability ensemble"]
    table.add_row("probability ensemble", f"{ensemble['loss']:.3f}", f"{ensemble['accuracy']:.2%}")
    for way in ("none", *WAYS):
        rows = found[way]
        table.add_row(
            f"midpoint, {way}",
            _spread([row["loss"] for row in rows], "{:.3f}"),
            _spread([100 * row["accuracy"] for row in rows], "{:.2f}"),
            _spread([row["barrier"] for row in rows], "{:.3f}"),
            "" if way == "none" else f"{mean(row['seconds'] for row in rows):.0f}",
            "" if way == "none" else f"{max(row['function'] for row in rows):.1e}",
        )
    Console(width=140).print(table)


def _spread(values: list[float], form: str) -> str:
    centre = form.format(mean(values))
    return centre if len(values) == 1 else f"{centre} ± {form.format(stdev(values))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", choices=PAIRS, help="only this one")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200, help="of learning")
    parser.add_argument("--train", type=int, default=2048, help="rows of training data")
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="folder with data/ and models/")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in [options.pair] if options.pair else PAIRS:
        anchor, source = (options.shared / "models" / f"{name}{seed}" for seed in (0, 1))
        vision = name.startswith("cifar")
        task = cifar10(options.shared, options.train) if vision else shakespeare(options.shared, anchor, options.train)
        found = run(task, anchor, source, options.seeds, options.steps, lambda line: print(line, file=sys.stderr))
        settings = {"steps": options.steps, "train": len(task.train), "path_rows": task.part}
        (options.out / f"one_basin-{name.rstrip('-')}.json").write_text(
            json.dumps({"settings": settings, **found}, indent=2) + "\n"
        )
        show(name, found)


if __name__ == "__main__":
    main()
