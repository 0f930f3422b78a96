"""Independently trained pairs brought into one basin: raw, by weights, by activations, learned.

    python benchmarks/one_basin.py [--family cifar10-vit] [--pair 0,1] [--dev]

Every way of matching is measured on the test set once, at its defaults but for ``--steps`` and ``--train``; nothing is
chosen here. What is random (inputs that are made up, which data, their order, learning) is run with every seed. Every
result is written as it comes to ``measured-FAMILY.json`` in ``--out``, from where a later run takes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import mean
from typing import Any

from common.families import Family
from common.measuring import Bench
from common.results import write
from common.showing import announce, parser, show, spread

LEARNED: dict[str, Any] = {"method": "learned", "data": True}
WAYS: Mapping[str, dict[str, Any]] = {
    "paper": {"symmetry": "paper"},
    "weights": {},
    "activations, made up": {"method": "activations"},
    "activations, training data": {"method": "activations", "data": True},
    "learned, made up": {"method": "learned"},
    "learned, training data": LEARNED,
    "learned, training labels": LEARNED | {"loss": "labels"},
    "learned, labels, both move": LEARNED | {"loss": "labels", "move": "all"},
}


def minutes(way: Mapping[str, Any], steps: int) -> float:
    """CPU minutes that a small pair takes, measuring included: the mean over ViT, GPT-2 and Llama."""
    return {"weights": 0.5, "activations": 1.2, "learned": 1.2 + 0.01 * steps}[way.get("method", "weights")]


def options_of(way: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """A way, as `match_all` takes it."""
    return dict(way) | ({"steps": steps} if way.get("method") == "learned" else {})


def seeds_of(way: Mapping[str, Any], seeds: int) -> range:
    """The seeds of a way; weight matching is deterministic."""
    return range(seeds if "method" in way else 1)


def run(bench: Bench, pairs: Sequence[tuple[int, int]], seeds: int, steps: int) -> dict[str, Any]:
    """All ways to bring one model to another, for all pairs: a list of results for every way."""
    found: dict[str, Any] = {
        "parents": [bench.parents(pair) for pair in pairs],
        "none": [bench.raw(pair) | {"pair": pair} for pair in pairs],
    }
    for name, way in WAYS.items():
        found[name] = [
            bench.matched(pair, options_of(way, steps), seed) | {"pair": pair}
            for pair, seed in product(pairs, seeds_of(way, seeds))
        ]
    raw = {row["pair"]: row["barrier"] for row in found["none"]}
    for row in (row for name in WAYS for row in found[name]):
        row["removed"] = 1 - row["barrier"] / raw[row["pair"]] if raw[row["pair"]] else 0.0
    return found


def table(bench: Bench, pairs: Sequence[tuple[int, int]], found: dict[str, Any]) -> None:
    rows = [
        ["parents", *_cells([parent for row in found["parents"] for parent in row["each"]], "loss", "accuracy")],
        ["probability ensemble", *_cells([row["ensemble"] for row in found["parents"]], "loss", "accuracy")],
    ]
    weights = mean(row["cpu_seconds"] for row in found["weights"])
    columns = ("loss", "accuracy", "excess", "barrier")
    rows.append(["none", *_cells(found["none"], *columns)])
    for name in WAYS:
        own = found[name]
        each = [[row for row in own if row["pair"] == pair] for pair in pairs]
        kept = all(row["function_kept"] and row["loads"] for row in own)
        rows.append(
            [
                name,
                *_cells(own, *columns, "removed"),
                *(_cells(part, "removed")[0] for part in each),
                f"{mean(row['cpu_seconds'] for row in own) / weights:.1f}",
                f"{max(row['function'] for row in own):.0e}{'' if kept else ' CHANGED'}",
            ]
        )
    show(
        f"{bench.family.name}, midpoints, {bench.task.data}",
        [
            *("", "loss", "accuracy, %", "above parents", "barrier", "removed, %"),
            *(f"{anchor}-{source}" for anchor, source in pairs),
            *("CPU", "logits"),
        ],
        rows,
        "Mean and standard deviation over pairs and seeds. Loss, accuracy and loss above the mean of the parents' on "
        "all rows; barrier over 25 points on the first of them; removed: share of the raw barrier, in all and by pair. "
        "CPU time as a multiple of that of weights; largest relative change of the logits in float64.",
    )


def _cells(rows: Sequence[Mapping[str, float]], *columns: str) -> list[str]:
    form = {"accuracy": "{:.2f}", "removed": "{:.1f}"}
    return [
        spread([row[column] * (100 if column in form else 1) for row in rows], form.get(column, "{:.3f}"))
        for column in columns
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    asked = parser(__doc__).parse_args(arguments)
    families = Family.all(asked.shared, asked.out / "models", asked.family)
    pairs = {family.name: family.pairs(asked.pair) for family in families}
    count = sum(map(len, pairs.values()))
    cost = sum(minutes(way, asked.steps) * len(seeds_of(way, asked.seeds)) for way in WAYS.values())
    announce(count * cost, f"{count} pairs; what was measured before is not measured again")
    for family in families:
        if pairs[family.name]:
            bench = Bench(family, asked.train, asked.dev, asked.out)
            found = run(bench, pairs[family.name], asked.seeds, asked.steps)
            write(asked.out / f"one_basin-{family.name}.json", found)
            table(bench, pairs[family.name], found)


if __name__ == "__main__":
    main()
