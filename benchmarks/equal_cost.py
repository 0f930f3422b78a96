"""Matching against what else can be done with two models, for the same number of passes over training rows.

    python benchmarks/equal_cost.py [--family cifar10-vit] [--pair 0,1] [--steps 500] [--dev]

A pass is a forward and a backward run of one model over one row. Learned matching, fine-tuning and distillation take as
many of them, over the same rows in the same batches with the same optimiser (Adam, warm-up, cosine; what did best on
held-out rows is kept). Who learns from the parents' answers runs both parents forward, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.evaluation.blend import Blend
from cobasin.evaluation.running import instantiate
from cobasin.learning.descent import hold_out
from cobasin.learning.inputs import Inputs
from cobasin.merging.heal import Judge, heal
from common.families import PAIRS, Family
from common.measuring import Bench, ends_of
from common.results import write
from common.showing import announce, parser, show, spread
from one_basin import LEARNED, minutes, options_of, runs

STEPS = 500
LABELS, ANSWERS = "labels", "answers"
MATCHED: Mapping[str, Mapping[str, Any]] = {
    "weights": {},
    "activations": {"method": "activations", "data": True},
    f"learned, {ANSWERS}": LEARNED,
    f"learned, {LABELS}": LEARNED | {"loss": "labels"},
}
PARENT, RAW, WEIGHTS = "one parent", "raw average", "average matched by weights"
STARTS = {PARENT: 1e-4, RAW: 1e-3, WEIGHTS: 1e-3}  # what is trained, and at which rate: the best on held-out rows


def run(bench: Bench, pairs: Sequence[tuple[int, int]], seeds: int, steps: int) -> dict[str, list[dict[str, Any]]]:
    """The scores of everything, over pairs and seeds."""
    parents = [bench.parents(pair) for pair in pairs]
    found = {
        "parents": [parent for row in parents for parent in row["each"]],
        "probability ensemble": [row["ensemble"] for row in parents],
        "raw average": [bench.raw(pair) for pair in pairs],
    }
    for name, way in MATCHED.items():
        found[f"matched by {name}"] = [
            bench.matched(pair, options_of(way, steps), seed) for pair, seed in runs(way, pairs, seeds)
        ]
    for start, target in product(STARTS, (ANSWERS, LABELS)):
        found[f"{start}, trained, {target}"] = [
            bench.other(
                pair,
                {"way": "train", "start": start, "target": target, "steps": steps, "rate": STARTS[start], "seed": seed},
                lambda pair=pair, start=start, target=target, seed=seed: trained(
                    bench, pair, start, target, steps, seed
                ),
            )
            for pair, seed in runs(LEARNED, pairs, seeds)
        ]
    return found


def trained(bench: Bench, pair: tuple[int, int], start: str, target: str, steps: int, seed: int) -> dict[str, Any]:
    """Scores of a model that went on learning from ``start``, and its losses on held-out rows."""
    task = bench.task
    ends = [load(folder) for folder in bench.folders(pair)]
    judge = Judge([instantiate(end, torch.float32).requires_grad_(False) for end in ends], task.kind)
    inputs = Inputs.of(ends[0], task.train, task.samples, seed)
    assert inputs.data is not None
    if start == WEIGHTS:
        ends = ends_of(bench.match(pair, {}))
    model = instantiate(ends[0], torch.float32) if start == PARENT else Blend(ends).at([0.5, 0.5])
    against = "labels" if target == LABELS else "parents"
    losses = heal(model, judge, *hold_out(inputs.data), steps=steps, against=against, rate=STARTS[start], seed=seed)
    return task.score(model) | {"held_out": losses, "batch": inputs.size}


def table(bench: Bench, found: Mapping[str, Sequence[Mapping[str, float]]], steps: int) -> None:
    rows, size = [], found[f"{PARENT}, trained, {LABELS}"][0]["batch"]
    for name, own in found.items():
        learns = name.endswith((LABELS, ANSWERS))
        passes = f"{steps * size:,}" if learns else "0"
        rows.append(
            [
                name,
                passes + (" and 2 forward" if name.endswith(ANSWERS) else ""),
                "2" if "ensemble" in name else "1",
                spread([row["accuracy"] for row in own], "{:.2%}"),
                spread([row["loss"] for row in own]),
            ]
        )
    show(
        f"{bench.family.name}, {bench.task.data}",
        ["", "passes over rows, at most", "cost of inference", "accuracy", "loss"],
        rows,
        "Mean and standard deviation over pairs and seeds. Activations are compared on at most 256 rows, forward. "
        + verdict(found),
    )


def verdict(found: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Whether matching pays: the best single model with matching in it against the best without, by loss."""
    losses = {name: sum(row["loss"] for row in own) / len(own) for name, own in found.items()}
    single = [name for name in losses if name != "probability ensemble"]
    lines = []
    for what, group in (
        ("without training", [name for name in single if not name.endswith((LABELS, ANSWERS))]),
        ("without labels", [name for name in single if name.endswith(ANSWERS)]),
        ("with labels", [name for name in single if name.endswith(LABELS)]),
    ):
        first = {kind: min(names, key=losses.__getitem__) for kind, names in _by_matching(group).items()}
        pays = losses[first[True]] < losses[first[False]]
        lines.append(
            f"{what} matching {'pays' if pays else 'does not pay'}: {first[True]} {losses[first[True]]:.3f}, "
            f"{first[False]} {losses[first[False]]:.3f}"
        )
    return "; ".join(lines).capitalize() + "."


def _by_matching(names: Sequence[str]) -> dict[bool, list[str]]:
    return {matched: [name for name in names if ("matched" in name) is matched] for matched in (True, False)}


def main(arguments: Sequence[str] | None = None) -> None:
    asked = parser(__doc__).parse_args(arguments)
    families = Family.all(asked.shared, asked.out / "models", asked.family)
    pairs = {family.name: family.pairs(asked.pair or PAIRS[:1]) for family in families}
    steps = asked.steps or STEPS
    trained_ways = [LEARNED] * len(STARTS)  # each against two targets, at half the cost
    cost = sum(
        minutes(way, steps) * len(runs(way, own, asked.seeds))
        for own in pairs.values()
        for way in [*MATCHED.values(), *trained_ways]
    )
    announce(cost, f"{sum(map(len, pairs.values()))} pairs; less where one_basin.py was run with these settings")
    for family in families:
        if pairs[family.name]:
            bench = Bench(family, asked.train, asked.dev, asked.out)
            found = run(bench, pairs[family.name], asked.seeds, steps)
            write(asked.out / f"equal_cost-{family.name}-{steps}.json", found)
            table(bench, found, steps)


if __name__ == "__main__":
    main()
