"""Matching against what else can be done with two models, for the same number of passes over training rows.

    python benchmarks/equal_cost.py [--family cifar10-vit] [--pair 0,1] [--steps 500] [--dev]

A pass is a forward and a backward run of one model over one row. Learned matching, fine-tuning and distillation take as
many of them, over the same rows in the same batches with the same optimiser (Adam, warm-up, cosine; what did best on
held-out rows is kept). Who learns from the parents' answers runs both parents forward, too. The parent that is trained
is the one that is better on held-out rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import mean
from typing import Any

import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.running import instantiate
from cobasin.evaluation.blend import Blend
from cobasin.evaluation.tasks import evaluate
from cobasin.learning.descent import hold_out
from cobasin.learning.inputs import Inputs
from cobasin.merging.heal import Judge, heal
from common.families import PAIRS, Family
from common.measured import Measured, Models, Row, cells, options_of
from common.measuring import Bench
from common.showing import Table, announce, parser
from one_basin import LEARNED, Pair, minutes, runs

STEPS = 500
LABELS, ANSWERS = "labels", "answers"
MATCHED: Mapping[str, Mapping[str, Any]] = {
    "weights": {},
    "activations": {"method": "activations", "data": True},
    f"learned, {ANSWERS}": LEARNED,
    f"learned, {LABELS}": LEARNED | {"loss": "labels"},
}
PARENT, RAW, WEIGHTS = "better parent", "raw average", "average matched by weights"
STARTS = {PARENT: 1e-4, RAW: 1e-3, WEIGHTS: 1e-3}  # what is trained, and at which rate: the best on held-out rows
TRAINED = tuple(product(STARTS, (ANSWERS, LABELS)))


def run(bench: Bench, pairs: Sequence[Pair], seeds: int, steps: int) -> None:
    """Measure everything, over pairs and seeds."""
    for pair in pairs:
        bench.parents(pair)
        bench.raw(pair)
    for way in MATCHED.values():
        for pair, seed in runs(way, pairs, seeds):
            bench.matched(pair, options_of(way, steps), seed)
    for start, target in TRAINED:
        for pair, seed in runs(LEARNED, pairs, seeds):
            bench.other(
                pair,
                {**of_trained(start, target, steps), "seed": seed},
                lambda pair=pair, start=start, target=target, seed=seed: trained(
                    bench, pair, start, target, steps, seed
                ),
            )


def of_trained(start: str, target: str, steps: int) -> dict[str, Any]:
    """What the record says of a model that was trained."""
    return {"way": "train", "start": start, "target": target, "steps": steps, "rate": STARTS[start]}


def trained(bench: Bench, pair: tuple[int, int], start: str, target: str, steps: int, seed: int) -> dict[str, Any]:
    """Scores of a model that went on learning from ``start``, and its losses on held-out rows."""
    task = bench.task
    ends = [load(folder) for folder in bench.folders(pair)]
    judge = Judge([instantiate(end, torch.float32).requires_grad_(False) for end in ends], task.kind)
    inputs = Inputs.of(ends[0], task.train, task.samples, seed)
    assert inputs.data is not None
    if start == WEIGHTS:
        ends = bench.match(pair, {}).ends
    held, seen = hold_out(inputs.data)
    if start == PARENT:
        parents = [instantiate(end, torch.float32) for end in ends]
        model = min(parents, key=lambda parent: evaluate(parent, held, task.kind).loss)
    else:
        model = Blend(ends).at([0.5, 0.5]).requires_grad_()
    against = "labels" if target == LABELS else "parents"
    how: dict[str, Any] = {"steps": steps, "against": against, "rate": STARTS[start], "seed": seed}
    losses = heal(model, judge, held, seen, **how, patience=steps).losses  # all steps are taken
    return task.score(model) | {"held_out": losses, "batch": inputs.size}


def table(measured: Measured, models: Models, steps: int) -> Table:
    """Of a pair; what learns, of the seeds that there are of all that is trained."""
    training = {
        f"{start}, trained, {target}": measured.get(models, **of_trained(start, target, steps))
        for start, target in TRAINED
    }
    seeds = {row["of"]["seed"] for rows in training.values() for row in rows}
    found = {RAW: measured.get(models, way="none")}
    for name, way in MATCHED.items():
        rows = measured.matched(models, way, steps)
        found[f"matched by {name}"] = [row for row in rows if row["of"]["seed"] in seeds]
    found |= training
    (parents,) = measured.get(models, way="parents")
    size = found[f"{PARENT}, trained, {LABELS}"][0]["batch"]
    body = [[line[0], "0", *line[1:]] for line in measured.parents(models, ["accuracy", "loss"])]
    for name, rows in found.items():
        passes = f"{steps * size:,}" if name.endswith((LABELS, ANSWERS)) else "0"
        body.append(
            [
                name,
                passes + (", both parents forward" if name.endswith(ANSWERS) else ""),
                *cells(rows, ["accuracy", "loss"]),
            ]
        )
    return Table(
        f"{measured.title}, pair {'-'.join(models)}",
        ["passes over rows, at most", "accuracy, %", "loss"],
        body,
        "Mean and standard deviation over seeds. Activations are compared on at most 256 rows, forward. An ensemble "
        f"costs twice as much where it is used. {verdict(found | {'parents': parents['each']})}",
    )


def verdict(found: Mapping[str, Sequence[Row]]) -> str:
    """Whether matching pays: the best single model with matching in it against the best without, by loss."""
    losses = {name: (min if name == "parents" else mean)(row["loss"] for row in own) for name, own in found.items()}
    lines = []
    for what, group in (
        ("without training", [name for name in losses if not name.endswith((LABELS, ANSWERS))]),
        ("without labels", [name for name in losses if name.endswith(ANSWERS)]),
        ("with labels", [name for name in losses if name.endswith(LABELS)]),
    ):
        best = {
            matched: min((name for name in group if ("matched" in name) is matched), key=losses.__getitem__)
            for matched in (True, False)
        }
        pays = losses[best[True]] < losses[best[False]]
        lines.append(
            f"{what} matching {'pays' if pays else 'does not pay'}: {best[True]} {losses[best[True]]:.3f}, "
            f"{best[False]} {losses[best[False]]:.3f}"
        )
    return "; ".join(lines).capitalize() + "."


def main(arguments: Sequence[str] | None = None) -> None:
    asked = parser(__doc__).parse_args(arguments)
    families = Family.all(asked.shared, asked.out / "models", asked.family)
    pairs = {family.name: family.pairs(asked.pair or PAIRS[:1]) for family in families}
    steps = asked.steps or STEPS
    trained_ways = [LEARNED] * (len(TRAINED) // 2)  # at half the cost
    cost = sum(
        minutes(way, steps) * len(runs(way, own, asked.seeds))
        for own in pairs.values()
        for way in [*MATCHED.values(), *trained_ways]
    )
    announce(cost, f"{sum(map(len, pairs.values()))} pairs; less where one_basin.py was run with these settings")
    for family in families:
        if pairs[family.name]:
            bench = Bench(family, asked.train, asked.dev, asked.out)
            run(bench, pairs[family.name], asked.seeds, steps)
            measured = bench.measured()
            for pair in pairs[family.name]:
                table(measured, bench.models(pair), steps).show()


if __name__ == "__main__":
    main()
