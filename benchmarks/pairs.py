"""Independently trained pairs merged: as they are, with the paper's matching, with full matching.

    python benchmarks/pairs.py [--dev]

Runs what ``cobasin merge`` runs. Reads the test sets once; nothing is chosen on them. Weight matching is deterministic:
there is no seed. More ways of matching, more pairs and the line between the models: ``one_basin.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.evaluation.running import instantiate
from cobasin.finding.applying import transform
from cobasin.merging.merge import merge
from cobasin.verification import verify
from common.families import PAIRS, Family, parents
from common.measuring import tolerance
from common.results import write
from common.showing import announce, parser, show

SYMMETRIES = ("none", "paper", "full")


def measure(family: Family, dev: bool) -> dict[str, Any]:
    """Scores of the parents and of every merge of the first pair, and what matching did."""
    folders, task = family.paths(PAIRS[0]), family.task(1, dev)
    assert folders is not None
    source, found = load(folders[1]), {"data": task.data, "parents": parents(task, folders)["each"]}
    for symmetry in SYMMETRIES:
        merged = merge(folders, symmetry=symmetry)
        found[symmetry] = row = dict(task.score(instantiate(merged.checkpoint, torch.float32)))
        if element := merged.elements[1]:
            exact = verify(source, transform(element, source, torch.float64), tolerance(source))
            row |= {name: element.report[name] for name in ("distance_before", "distance_after", "rounds")}
            row |= {"function": exact.relative_float64, "function_kept": exact.same}
    return found


def table(name: str, found: Mapping[str, Any]) -> None:
    scores = {f"parent {i}": row for i, row in enumerate(found["parents"])}
    scores |= {f"midpoint, {symmetry}": found[symmetry] for symmetry in SYMMETRIES}
    rows = []
    for way, row in scores.items():
        line = [way, f"{row['accuracy']:.2%}", f"{row['loss']:.3f}"]
        if "rounds" in row:
            kept = "kept" if row["function_kept"] else "CHANGED"
            line += [f"{row['distance_after']:.2f} of {row['distance_before']:.2f}", f"{row['function']:.1e} {kept}"]
        rows.append(line)
    columns = ["model", "accuracy", "loss", "distance of the files", "change of logits (float64)"]
    show(f"{name}, {found['data']}", columns, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    asked = parser(__doc__, seeds=False, families=False).parse_args(arguments)
    families = [family for family in Family.all(asked.shared, asked.out / "models") if family.paths(PAIRS[0])]
    announce(2 * len(families), f"{len(families)} pairs")
    results = {}
    for family in families:
        results[family.name] = measure(family, asked.dev)
        table(family.name, results[family.name])
    write(asked.out / "pairs.json", results)


if __name__ == "__main__":
    main()
