"""Independently trained pairs brought into one basin: raw, by weights, by activations, learned.

    python benchmarks/one_basin.py [--family cifar10-vit] [--pair 0,1] [--way paper --way weights] [--dev]

Every way of matching is measured on the test set once, as it is set here; nothing is chosen there. Every pair is run
with every seed of what is random (inputs that are made up, which data, their order, learning).
Every result is written as it comes to ``measured-FAMILY.json`` in ``--out``, from where a later run takes it;
``one_basin-FAMILY.png`` shows the lines between the models of the first pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cobasin.evaluation.path import LossPath
from cobasin.evaluation.plots import plot_paths
from common.families import Family
from common.measured import Measured, Models, Row, cells, options_of
from common.measuring import Bench
from common.showing import Table, announce, parser

FEW = "learned, few made up"
LEARNED: dict[str, Any] = {"method": "learned", "data": True, "symmetry": "gl"}
WAYS: Mapping[str, dict[str, Any]] = {
    "paper": {"symmetry": "paper"},
    "weights": {},
    "activations, made up": {"method": "activations"},
    "activations, training data": {"method": "activations", "data": True},
    # 1,024 images, 128 texts: soon learned
    FEW: {"method": "learned", "symmetry": "gl", "samples": "few", "steps": 500},
    "learned, made up": {"method": "learned", "symmetry": "gl"},
    "learned, training data": LEARNED,
    "learned longer, made up": {"method": "learned", "symmetry": "gl", "times": 2},
    "learned longer, training data": LEARNED | {"times": 2},
}
USUAL = [name for name, way in WAYS.items() if "times" not in way]
Pair = tuple[int, int]


def minutes(way: Mapping[str, Any], steps: int) -> float:
    """CPU minutes that a small pair takes, measuring included: the mean over ViT, GPT-2 and Llama."""
    learned = 1.5 + 0.008 * options_of(way, steps).get("steps", 0)
    return {"weights": 0.5, "activations": 1.2, "learned": learned}[way.get("method", "weights")]


def seeds_of(way: Mapping[str, Any], seeds: int) -> range:
    """The seeds of a way; weight matching is deterministic."""
    return range(seeds if "method" in way else 1)


def runs(way: Mapping[str, Any], pairs: Sequence[Pair], seeds: int) -> list[tuple[Pair, int]]:
    """Every pair with every seed of a way."""
    return [(pair, seed) for pair in pairs for seed in seeds_of(way, seeds)]


def run(bench: Bench, pairs: Sequence[Pair], ways: Sequence[str], seeds: int, steps: int) -> None:
    """Measure these ways to bring one model to another, and the models as they are."""
    for pair in pairs:
        bench.parents(pair)
        bench.raw(pair)
    for name in ways:
        for pair, seed in runs(WAYS[name], pairs, seeds):
            bench.matched(pair, options_of(WAYS[name], steps), seed)


def table(measured: Measured, models: Models) -> Table:
    """What every way is worth for one pair."""
    columns = {
        "loss": "loss",
        "accuracy": "accuracy, %",
        "barrier": "barrier",
        "removed": "removed, %",
        "distance_canonical": "distance",
        "cost": "cost",
        "function": "logits",
    }
    body = [row + [""] * (len(columns) - 2) for row in measured.parents(models, list(columns)[:2])]
    body.append(["midpoint, none", *cells(measured.get(models, way="none"), list(columns)[:-2]), "", ""])
    unit = [row["cpu_seconds"] for row in measured.matched(models, WAYS["weights"])]
    for name, way in WAYS.items():
        if found := measured.matched(models, way):
            found = [{**row, "cost": row["cpu_seconds"] / unit[0]} if unit else row for row in found]
            body.append([measured.label(name, way), *cells(found, list(columns))])
    return Table(
        f"{measured.title}, pair {'-'.join(models)}",
        list(columns.values()),
        body,
        "Mean and standard deviation over seeds of the search. Barrier over 25 points; removed: share of the raw "
        "barrier; distance in one canonical form; cost: CPU time of the match (by weights: 1); logits: their largest "
        "relative change in float64.",
    )


def pairs_table(every: Sequence[tuple[str, Measured, Models]]) -> Table:
    """All pairs: what is left in the middle and at the highest point, and the share of the barrier that is removed."""

    def cell(rows: Sequence[Row]) -> str:
        if not rows:
            return ""
        middle, barrier, removed = cells(rows, ("excess", "barrier", "removed"))
        return f"{middle}, {barrier} ({removed} %)"

    losses = [f"{measured.mean_loss(models):.3f}" for _, measured, models in every]
    raw = [cell(measured.get(models, way="none")).removesuffix(" (0 %)") for _, measured, models in every]
    body = [["mean of the parents' losses", *losses], ["none", *raw]]
    for name, way in WAYS.items():
        found = [cell(measured.matched(models, way)) for _, measured, models in every]
        if any(found):
            body.append([every[0][1].label(name, way), *found])
    return Table(
        "",
        [head for head, _, _ in every],
        body,
        "Loss above the mean of the parents', in the middle and at the highest of 25 points; the share of the raw "
        "barrier that is removed. Mean and standard deviation over seeds of the search.",
    )


def picture(measured: Measured, models: Models, out: Path) -> None:
    """The lines between the models of a pair."""
    title = f"{measured.title}, from model {' to model '.join(models)}"
    plot_paths(lines(measured, models), out, title, "accuracy")


def lines(measured: Measured, models: Models) -> dict[str, LossPath]:
    """What the first seed gave on the line between two models, of the usual ways but one, for want of colours."""
    found = {"none": measured.get(models, way="none")}
    found |= {name: measured.matched(models, WAYS[name]) for name in USUAL if name != FEW}
    paths = {}
    for name, rows in found.items():
        if rows:
            path = rows[0]["path"]
            last = len(path["loss"]) - 1
            paths[name] = LossPath([i / last for i in range(last + 1)], **path)
    return paths


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__)
    options.add_argument(
        "--way",
        action="append",
        choices=list(WAYS),
        help="this one (again for more); all but the longer ones by default",
    )
    asked = options.parse_args(arguments)
    ways = asked.way or USUAL
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
            run(bench, own, ways, asked.seeds, asked.steps or family.steps)
            measured = bench.measured(asked.steps)
            for pair in own:
                table(measured, bench.models(pair)).show()
            every = [(f"{family.name} {anchor}-{source}", (anchor, source)) for anchor, source in own]
            pairs_table([(head, measured, bench.models(pair)) for head, pair in every]).show()
            picture(measured, bench.models(own[0]), asked.out / f"one_basin-{family.name}.png")


if __name__ == "__main__":
    main()
