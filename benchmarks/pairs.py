"""Independently trained pairs: the midpoint raw, with the paper's matching, with full matching.

    python benchmarks/pairs.py [--shared ../shared] [--out benchmarks/out/pairs.json]

Reads the test sets once; nothing is chosen on them. Weight matching is deterministic: there is no seed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import cross_entropy

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.evaluation.running import instantiate
from cobasin.finding import match as api
from cobasin.finding.applying import transform
from cobasin.merging.merge import merge
from cobasin.verification import verify

SYMMETRIES = ("none", "paper", "full")
# Transformers computes parts of Llama in float32, even in a float64 model.
TOLERANCE = {"cifar10-vit-seed": 1e-9, "gpt2-shakespeare-": 1e-9, "llama-shakespeare-": 5e-6}

Evaluate = Callable[[Checkpoint], dict[str, float]]


def cifar10(shared: Path) -> Evaluate:
    sys.path.insert(0, str(shared / "data"))
    from load import cifar10 as read  # type: ignore[import-not-found]

    _, _, images, labels = read()
    centre = torch.tensor(images[:, 4:28, 4:28]).permute(0, 3, 1, 2) / 255
    mean, deviation = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    pixels = (centre - mean[:, None, None]) / deviation[:, None, None]
    classes = torch.tensor(labels).long()

    @torch.no_grad()
    def evaluate(checkpoint: Checkpoint) -> dict[str, float]:
        model = instantiate(checkpoint, torch.float32)
        logits = torch.cat([model(pixel_values=batch).logits for batch in pixels.split(500)])
        accuracy = (logits.argmax(1) == classes).double().mean().item()
        return {"accuracy": accuracy, "loss": cross_entropy(logits, classes).item()}

    return evaluate


def shakespeare(shared: Path, folder: Path) -> Evaluate:
    number = {c: i for i, c in enumerate(json.loads((folder / "chars.json").read_text()))}
    text = (shared / "data/lm/tinyshakespeare/test.txt").read_text()
    tokens = torch.tensor([number[c] for c in text])
    blocks = tokens[: len(tokens) // 128 * 128].view(-1, 128)

    @torch.no_grad()
    def evaluate(checkpoint: Checkpoint) -> dict[str, float]:
        model, total = instantiate(checkpoint, torch.float32), 0.0
        for batch in blocks.split(64):
            logits = model(input_ids=batch).logits[:, :-1]
            total += cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum").item()
        return {"loss": total / (len(blocks) * 127)}

    return evaluate


def measure(shared: Path, name: str, evaluate: Evaluate) -> dict:
    anchor, source = (shared / "models" / f"{name}{seed}" for seed in (0, 1))
    rows: dict = {"parents": [evaluate(api.load(model)) for model in (anchor, source)]}
    for symmetry in SYMMETRIES:
        merged = merge([anchor, source], symmetry=symmetry)
        row: dict = dict(evaluate(merged.checkpoint))
        if element := merged.elements[1]:
            exact = verify(api.load(source), transform(element, source, torch.float64), TOLERANCE[name])
            row |= {
                "distance": element.report["distance_after"],
                "rounds": element.report["rounds"],
                "seconds": element.report["seconds"],
                "function": exact.relative_float64,
                "function_kept": exact.same,
            }
            rows.setdefault("distance", element.report["distance_before"])
        rows[symmetry] = row
    return rows


def show(name: str, rows: dict) -> None:
    table = Table("model", "accuracy", "loss", "distance", "change of logits (float64)", "seconds", title=name)
    for seed, parent in enumerate(rows["parents"]):
        table.add_row(f"parent {seed}", _percent(parent), f"{parent['loss']:.3f}")
    for symmetry in SYMMETRIES:
        row = rows[symmetry]
        change = f"{row['function']:.1e} {'kept' if row['function_kept'] else 'CHANGED'}" if "function" in row else ""
        table.add_row(
            f"midpoint, {symmetry}",
            _percent(row),
            f"{row['loss']:.3f}",
            f"{row.get('distance', rows['distance']):.2f}",
            change,
            f"{row['seconds']:.1f}" if "seconds" in row else "",
        )
    Console().print(table)


def _percent(row: dict) -> str:
    return f"{row['accuracy']:.2%}" if "accuracy" in row else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="folder with data/ and models/")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/pairs.json"))
    options = parser.parse_args()
    results = {}
    for name in TOLERANCE:
        folder = options.shared / "models" / f"{name}0"
        evaluate = cifar10(options.shared) if "cifar" in name else shakespeare(options.shared, folder)
        results[name] = measure(options.shared, name, evaluate)
        show(name, results[name])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
