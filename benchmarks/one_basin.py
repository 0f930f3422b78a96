"""Independently trained pairs brought into one basin: raw, by weights, by activations, learned.

    python benchmarks/one_basin.py [--family cifar10-vit] [--pair 0,1] [--way paper --way weights] [--dev]

Every way of matching is measured on the test set once, as it is set here; nothing is chosen there. Every pair is run,
and the first one again with every seed of what is random (inputs that are made up, which data, their order, learning).
Every result is written as it comes to ``measured-FAMILY.json`` in ``--out``, from where a later run takes it;
``one_basin-FAMILY.png`` shows the lines between the models of the first pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from cobasin.evaluation.path import LossPath
from cobasin.evaluation.plots import plot_paths
from common.families import Family
from common.measuring import Bench
from common.results import write
from common.showing import announce, parser, show, spread

LEARNED: dict[str, Any] = {"method": "learned", "data": True, "symmetry": "gl"}
WAYS: Mapping[str, dict[str, Any]] = {
    "paper": {"symmetry": "paper"},
    "weights": {},
    "activations, made up": {"method": "activations"},
    "activations, training data": {"method": "activations", "data": True},
    "learned, made up": {"method": "learned", "symmetry": "gl", "steps": 500},  # few inputs, soon learned
    "learned, training data": LEARNED,
}
SHARES = ("accuracy", "removed")
Pair = tuple[int, int]


def minutes(way: Mapping[str, Any], steps: int) -> float:
    """CPU minutes that a small pair takes, measuring included: the mean over ViT, GPT-2 and Llama."""
    learned = 1.5 + 0.008 * options_of(way, steps).get("steps", 0)
    return {"weights": 0.5, "activations": 1.2, "learned": learned}[way.get("method", "weights")]


def options_of(way: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """A way, as `match_all` takes it."""
    return dict(way) | ({"steps": min(steps, way.get("steps", steps))} if way.get("method") == "learned" else {})


def seeds_of(way: Mapping[str, Any], seeds: int) -> range:
    """The seeds of a way; weight matching is deterministic."""
    return range(seeds if "method" in way else 1)


def runs(way: Mapping[str, Any], pairs: Sequence[Pair], seeds: int) -> list[tuple[Pair, int]]:
    """Every pair with seed 0, and the first one with all."""
    return [(pair, seed) for pair in pairs for seed in (seeds_of(way, seeds) if pair == pairs[0] else range(1))]


def run(
    bench: Bench, pairs: Sequence[Pair], ways: Sequence[str], seeds: int, steps: int
) -> dict[str, list[dict[str, Any]]]:
    """These ways to bring one model to another: a list of results for every way, with their ``pair``."""
    found = {
        "parents": [bench.parents(pair) | {"pair": pair} for pair in pairs],
        "none": [bench.raw(pair) | {"pair": pair} for pair in pairs],
    }
    for name in ways:
        options = options_of(WAYS[name], steps)
        found[name] = [
            bench.matched(pair, options, seed) | {"pair": pair, "seed": seed}
            for pair, seed in runs(WAYS[name], pairs, seeds)
        ]
    raw = {row["pair"]: row["barrier"] for row in found["none"]}
    for row in (row for name in ways for row in found[name]):
        row["removed"] = 1 - row["barrier"] / raw[row["pair"]] if raw[row["pair"]] else 0.0
    return found


def table(bench: Bench, pair: Pair, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """What every way is worth for one pair."""
    own = {name: [row for row in rows if row["pair"] == pair] for name, rows in found.items()}
    parents, ensemble = own["parents"][0]["each"], own["parents"][0]["ensemble"]
    columns = ("loss", "accuracy", "excess", "distance_files", "barrier")
    rows = [
        [f"parent {seed}", *_cells([parent], "loss", "accuracy")] for seed, parent in zip(pair, parents, strict=True)
    ]
    rows.append(["probability ensemble", *_cells([ensemble], "loss", "accuracy")])
    rows.append(["none", *_cells(own["none"], *columns)])
    cheapest = min(mean(row["cpu_seconds"] for row in own[name]) for name in _ways(found))
    for name in _ways(found):
        kept = all(row["function_kept"] and row["loads"] for row in own[name])
        cpu = mean(row["cpu_seconds"] for row in own[name]) / cheapest
        logits = f"{max(row['function'] for row in own[name]):.0e}{'' if kept else ' CHANGED'}"
        rows.append([name, *_cells(own[name], *columns, "removed"), f"{cpu:.1f}", logits])
    show(
        f"{bench.family.name}, midpoint of {pair[0]} and {pair[1]}, {bench.task.data}",
        ["", "loss", "accuracy, %", "above parents", "distance", "barrier", "removed, %", "CPU", "logits"],
        rows,
        "Mean and standard deviation over seeds of the search. Above the mean of the parents' loss; distance of the "
        "files; barrier over 25 points; removed: share of the raw barrier; CPU of the match (cheapest: 1); largest "
        "relative change of the logits in float64.",
    )


def summary(bench: Bench, pairs: Sequence[Pair], found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """How much of the raw barrier every way removes, over pairs."""
    rows = []
    for name in _ways(found):
        each = [100 * mean(row["removed"] for row in found[name] if row["pair"] == pair) for pair in pairs]
        rows.append([name, *(f"{share:.1f}" for share in each), spread(each, "{:.1f}")])
    show(
        f"{bench.family.name}, share of the raw barrier that is removed, %",
        ["", *(f"{anchor}-{source}" for anchor, source in pairs), "all pairs"],
        rows,
        "Mean over seeds; last column: mean and standard deviation over pairs.",
    )


def picture(bench: Bench, pair: Pair, found: Mapping[str, Sequence[Mapping[str, Any]]], out: Path) -> None:
    """The lines between the models of a pair, of every way the first seed's."""
    paths = {}
    for name in ("none", *_ways(found)):
        path = next(row for row in found[name] if row["pair"] == pair)["path"]
        last = len(path["loss"]) - 1
        paths[name] = LossPath([i / last for i in range(last + 1)], **path)
    plot_paths(paths, out, f"{bench.family.name}, from model {pair[0]} to model {pair[1]}", "accuracy")


def _ways(found: Mapping[str, Any]) -> list[str]:
    return [name for name in found if name in WAYS]


def _cells(rows: Sequence[Mapping[str, float]], *columns: str) -> list[str]:
    form = {"accuracy": "{:.2f}", "removed": "{:.1f}", "distance_files": "{:.2f}"}
    return [
        spread([row[column] * (100 if column in SHARES else 1) for row in rows], form.get(column, "{:.3f}"))
        for column in columns
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__)
    options.add_argument("--way", action="append", choices=list(WAYS), help="only this one (again for more)")
    asked = options.parse_args(arguments)
    ways = asked.way or list(WAYS)
    families = Family.all(asked.shared, asked.out / "models", asked.family)
    pairs = {family.name: family.pairs(asked.pair) for family in families}
    cost = sum(
        minutes(WAYS[way], asked.steps or family.steps) * len(runs(WAYS[way], pairs[family.name], asked.seeds))
        for family in families
        for way in ways
    )
    announce(cost, f"{sum(map(len, pairs.values()))} pairs; what was measured before is not measured again")
    for family in families:
        if own := pairs[family.name]:
            bench = Bench(family, asked.train, asked.dev, asked.out)
            found = run(bench, own, ways, asked.seeds, asked.steps or family.steps)
            write(asked.out / f"one_basin-{family.name}.json", found)
            for pair in own:
                table(bench, pair, found)
            summary(bench, own, found)
            picture(bench, own[0], found, asked.out / f"one_basin-{family.name}.png")


if __name__ == "__main__":
    main()
