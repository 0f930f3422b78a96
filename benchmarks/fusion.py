"""Fusion methods with and without matching, on two independently trained vision transformers (the paper's Table 2).

    python benchmarks/fusion.py [--shared ../shared] [--out benchmarks/out/fusion.json]

Statistics are collected on training images, drawn with three seeds. Nothing is chosen on the test set: all parameters
are the methods' defaults.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cross_entropy

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.evaluation.running import instantiate
from cobasin.fusion.registry import find
from cobasin.merging.merge import merge

METHODS = {
    "linear": "Simple",
    "fisher": "Fisher",
    "regmean": "RegMean",
    "regmean++": "RegMean++",
    "ot_acts_emd": "OT-ACTS-EMD",
    "ot_acts": "OT-ACTS",
    "ot_wts": "OT-WTS",
}
SYMMETRIES = ("none", "paper", "full")
SEEDS = (0, 1, 2)
SAMPLES = 1000
MEAN, DEVIATION, SIZE = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), 24


class Images:
    """CIFAR-10 as the models read it."""

    def __init__(self, shared: Path, folder: Path):
        sys.path.insert(0, str(shared / "data"))
        from load import cifar10 as read  # type: ignore[import-not-found]

        train, labels, test, classes = read()
        path = folder / "train.npz"
        np.savez(path, image=train, label=labels)
        self.data = {"path": str(path), "mean": MEAN, "std": DEVIATION, "crop": SIZE}
        centre = torch.tensor(test[:, 4:28, 4:28]).permute(0, 3, 1, 2) / 255
        self.pixels = (centre - torch.tensor(MEAN)[:, None, None]) / torch.tensor(DEVIATION)[:, None, None]
        self.classes = torch.tensor(classes).long()

    @torch.no_grad()
    def logits(self, checkpoint: Checkpoint) -> Tensor:
        """Of all test images."""
        model = instantiate(checkpoint, torch.float32)
        return torch.cat([model(pixel_values=batch).logits for batch in self.pixels.split(500)])

    def score(self, logits: Tensor) -> dict[str, float]:
        """Accuracy and cross-entropy."""
        accuracy = (logits.argmax(1) == self.classes).double().mean().item()
        return {"accuracy": accuracy, "loss": cross_entropy(logits, self.classes).item()}


def rows_of(models: list[Path], images: Images, cache: Path, done: Callable[[], None]) -> dict:
    """Scores for every method and symmetry, one for every seed where the method reads data."""
    logits = [images.logits(load(model)) for model in models]
    ensemble = torch.stack([one.softmax(1) for one in logits]).mean(0).log()
    rows: dict = {"parents": [images.score(one) for one in logits], "ensemble": images.score(ensemble), "merged": {}}
    for method in METHODS:
        for symmetry in SYMMETRIES:
            found = rows["merged"].setdefault(method, {})[symmetry] = []
            for seed in SEEDS if find(method).statistics else SEEDS[:1]:
                settings = {
                    "data": images.data,
                    "samples": SAMPLES,
                    "batch_size": 50,
                    "seed": seed,
                    "cache": str(cache),
                }
                merged = merge(models, method, symmetry=symmetry, statistics=settings)
                found.append(images.score(images.logits(merged.checkpoint)))
                done()
    return rows


def show(rows: dict) -> None:
    parents = ", ".join(f"{one['accuracy']:.2%}" for one in rows["parents"])
    table = Table(
        "method",
        *SYMMETRIES,
        title=f"CIFAR-10 test accuracy of the merged ViT (%); parents {parents}, ensemble of both "
        f"{rows['ensemble']['accuracy']:.2%}",
        caption=f"{SAMPLES} training images for statistics; mean and standard deviation over seeds {SEEDS}",
    )
    for method, name in METHODS.items():
        table.add_row(name, *(_spread(rows["merged"][method][symmetry]) for symmetry in SYMMETRIES))
    Console().print(table)


def _spread(scores: list[dict]) -> str:
    values = [100 * one["accuracy"] for one in scores]
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="folder with data/ and models/")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/fusion.json"))
    options = parser.parse_args()
    total = sum(len(SYMMETRIES) * (len(SEEDS) if find(method).statistics else 1) for method in METHODS)
    with tempfile.TemporaryDirectory() as folder:
        images = Images(options.shared, Path(folder))
        steps = iter(track(range(total + 1), "merging and evaluating", console=Console(stderr=True)))
        next(steps)
        models = [options.shared / "models" / f"cifar10-vit-seed{seed}" for seed in (0, 1)]
        rows = rows_of(models, images, Path(folder) / "cache", lambda: next(steps))
    show(rows)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
