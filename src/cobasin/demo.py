"""The whole story on real data: two models of handwritten digits, averaged with and without matching."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from rich.box import SIMPLE
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from cobasin.checkpoints import writer
from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.output import working
from cobasin.checkpoints.running import instantiate
from cobasin.errors import InputError
from cobasin.evaluation.path import LossPath, loss_path
from cobasin.evaluation.plots import plot_paths
from cobasin.execution.jobs import torch_threads
from cobasin.finding.applying import transform
from cobasin.finding.match import match
from cobasin.merging.merge import merge
from cobasin.presenting.console import output
from cobasin.presenting.progress import steps
from cobasin.symmetry.state import apart
from cobasin.verification import Verdict, verify

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Small enough to train in a minute. Chosen with the merge in view: an illustration, not a benchmark; docs/results.md
# has what other settings gave.
MODEL = {
    "image_size": 8,
    "patch_size": 4,
    "num_channels": 1,
    "num_labels": 10,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    # The usual 0.02 is meant for models ten times as wide.
    "initializer_range": 0.05,
}
EPOCHS = 150
BATCH = 64
LEARNING_RATE = 2e-3
WEIGHT_DECAY = 0.5
WARM_UP_STEPS = 50

NAMES = {"none": "unmatched", "paper": "paper's matching", "full": "full matching", "learned": "learned, no data"}
OPTIONS: dict[str, dict[str, Any]] = {
    "paper": {"symmetry": "paper"},
    "full": {},
    "learned": {"method": "learned", "symmetry": "gl", "device": "cpu"},
}


@dataclass(frozen=True)
class Digits:
    """Images [n, 1, 8, 8] from -1 (paper) to 1 (ink), and their labels [n], for training and for testing."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor


@dataclass(frozen=True)
class Outcome:
    """What one way of matching led to; without matching there is neither a report nor a verdict."""

    accuracy: float
    loss: float
    path: LossPath
    distance: float
    report: dict[str, Any] | None
    verdict: Verdict | None


class Show(Protocol):
    """Tells the reader what is going on."""

    def __call__(self, doing: str, steps: int = 1) -> None:
        """Show what is being done, and that the end is `steps` steps nearer."""


def run(out: Path, *, epochs: int = EPOCHS, points: int = 25, overwrite: bool = False) -> dict[str, Any]:
    """Train, match, merge, verify and measure; write everything to the folder `out`.

    Written are the models (`model-0`, the anchor, and `model-1`), the matched models (`matched-paper`,
    `matched-full`, `matched-learned`), the averages (`merged-none`, `merged-paper` and so on), `path.png`
    and `demo.json`, whose content is returned; the folder is there once all of it is. Progress goes to stderr.

    Raises:
        InputError: scikit-learn is not installed, or `out` cannot be used.
    """
    with working(out, overwrite) as folder:
        return _run(folder, out, epochs, points)


def _run(out: Path, final: Path, epochs: int, points: int) -> dict[str, Any]:
    digits = load_digits()
    started = time.perf_counter()
    # The models are tiny: a second thread would only wait for the first, and results would depend on the machine.
    with torch_threads(1), _steps(2 * epochs + len(NAMES) * points) as show:
        parents = []
        for seed in (0, 1):
            model = train(digits, seed, epochs, lambda seed=seed: show(f"training model {seed}"))
            writer.save(load(model), out / f"model-{seed}")
            loss, accuracy = evaluate(model, digits)
            parents.append({"accuracy": accuracy, "loss": loss})
        outcomes = {way: _match_and_merge(out, way, digits, points, show) for way in NAMES}
    paths = {NAMES[way]: outcome.path for way, outcome in outcomes.items()}
    plot_paths(paths, out / "path.png", "From model 0 to model 1 in a straight line", "test accuracy")
    result = {
        "out": str(final),
        "test_images": len(digits.test_labels),
        "parents": parents,
        "merged": {way: _as_dict(outcome) for way, outcome in outcomes.items()},
        "seconds": time.perf_counter() - started,
    }
    (out / "demo.json").write_text(json.dumps(result, indent=2) + "\n")
    return result


def load_digits() -> Digits:
    """scikit-learn's 1,797 scanned digits (part of the package, no download), a quarter of them for testing.

    Raises:
        InputError: scikit-learn is not installed.
    """
    try:
        from sklearn import datasets
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise InputError("the demo needs scikit-learn: pip install 'cobasin[demo]'") from error
    images, labels = datasets.load_digits(return_X_y=True)
    parts = train_test_split(images, labels, test_size=0.25, random_state=0, stratify=labels)
    ink = [torch.tensor(part, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1 for part in parts[:2]]
    classes = [torch.tensor(part) for part in parts[2:]]
    return Digits(ink[0], classes[0], ink[1], classes[1])


def train(digits: Digits, seed: int, epochs: int, after_epoch: Callable[[], None]) -> PreTrainedModel:
    """A small vision transformer; the seed decides its first weights, the images' order and their shifts."""
    from transformers import ViTConfig, ViTForImageClassification

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ViTForImageClassification(ViTConfig(**MODEL)).train()
        steps = epochs * math.ceil(len(digits.labels) / BATCH)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda step: min((step + 1) / WARM_UP_STEPS, 0.5 + 0.5 * math.cos(math.pi * step / steps)),
        )
        for _ in range(epochs):
            for batch in torch.randperm(len(digits.labels)).split(BATCH):
                logits = model(pixel_values=_shift(digits.images[batch])).logits
                loss = cross_entropy(logits, digits.labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
            after_epoch()
    return model.eval()


def _shift(images: Tensor) -> Tensor:
    """Each image [n, 1, 8, 8] moved by up to a pixel in each direction."""
    count, _, height, width = images.shape
    padded = pad(images, (1, 1, 1, 1), value=-1.0)
    down, right = torch.randint(0, 3, (2, count, 1, 1))
    rows = down + torch.arange(height)[:, None]
    columns = right + torch.arange(width)
    return padded[torch.arange(count)[:, None, None], 0, rows, columns][:, None]


@torch.no_grad()
def evaluate(model: PreTrainedModel, digits: Digits) -> tuple[float, float]:
    """Mean cross-entropy (nats) and accuracy on the test digits."""
    logits = model(pixel_values=digits.test_images).logits
    correct = logits.argmax(1) == digits.test_labels
    return cross_entropy(logits, digits.test_labels).item(), correct.double().mean().item()


def _match_and_merge(out: Path, way: str, digits: Digits, points: int, show: Show) -> Outcome:
    anchor, source = (load(out / f"model-{seed}") for seed in (0, 1))
    matched, report, verdict = source, None, None
    if way in OPTIONS:
        element = match(
            source,
            anchor,
            **OPTIONS[way],
            progress=lambda doing, *_: show(f"{NAMES[way]}, {doing}", 0),
        )
        folder = out / f"matched-{way}"
        writer.save(transform(element, source), folder)
        # From here on the file is used, so that what is measured is what a reader would load.
        matched, report = load(folder), element.report
        verdict = verify(source, matched)
    average = merge([anchor, matched], symmetry="none").checkpoint
    writer.save(average, out / f"merged-{way}")
    merged = instantiate(load(out / f"merged-{way}"), torch.float32)
    loss, accuracy = evaluate(merged, digits)

    def evaluate_point(model: PreTrainedModel) -> tuple[float, float]:
        show(f"path, {NAMES[way]}")
        return evaluate(model, digits)

    path = loss_path(anchor, matched, evaluate_point, points)
    distance = apart(anchor, matched, anchor)
    return Outcome(accuracy, loss, path, distance, report, verdict)


def _as_dict(outcome: Outcome) -> dict[str, Any]:
    return {
        "distance": outcome.distance,
        "accuracy": outcome.accuracy,
        "loss": outcome.loss,
        "barrier": outcome.path.barrier,
        "match": outcome.report,
        "verify": outcome.verdict and outcome.verdict.to_dict(),
        "path": outcome.path.to_dict(),
    }


def show(result: dict[str, Any]) -> None:
    """Print the table of a result of `run` on standard output."""
    title = f"Two models of handwritten digits and their average, on {result['test_images']} test images"
    table = Table(title=title, box=SIMPLE, pad_edge=False, collapse_padding=True)
    table.add_column("model", no_wrap=True)
    for heading in ("accuracy", "loss", "barrier", "distance"):
        table.add_column(heading, justify="right")
    table.add_column("function")
    for seed, scores in enumerate(result["parents"]):
        row = f"model {seed}", f"{scores['accuracy']:.1%}", f"{scores['loss']:.3f}"
        table.add_row(*row, end_section=seed == len(result["parents"]) - 1)
    for way, outcome in result["merged"].items():
        table.add_row(
            f"average, {NAMES[way]}",
            f"{outcome['accuracy']:.1%}",
            f"{outcome['loss']:.3f}",
            f"{outcome['barrier']:.3f}",
            f"{outcome['distance']:.2f}",
            _sentence(outcome["verify"]),
        )
    output.table(table)
    output.print(f"written to {result['out']}; the losses on the line between the models: {result['out']}/path.png")


def _sentence(verdict: dict[str, Any] | None) -> str:
    if verdict is None:
        return ""
    judgement = {True: "kept", False: "CHANGED", None: "cannot tell"}[verdict["same"]]
    change = verdict["relative_float64"]
    return judgement if change is None else f"{judgement} ({change:.0e})"


@contextmanager
def _steps(total: int) -> Iterator[Show]:
    """A progress bar on stderr."""
    done = 0
    with steps("starting") as progress:

        def show(doing: str, steps: int = 1) -> None:
            nonlocal done
            done += steps
            progress(doing, done, total)

        yield show
