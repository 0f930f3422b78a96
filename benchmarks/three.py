"""Three independently trained models into one: raw, at their medoid, at their consensus, learned jointly.

    python benchmarks/three.py [--family cifar10-vit] [--steps 500] [--dev]

The models of seeds 0, 1 and 2 are brought together and averaged. Whatever the order in which they are given, the
matched tensors must be the same to the last bit, which is checked by their hash (of learning after a few steps).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

from cobasin.checkpoints.fingerprint import fingerprint
from common.families import Family
from common.measured import Measured, Models, cells, options_of
from common.measuring import Bench
from common.showing import Table, announce, parser
from one_basin import LEARNED, minutes, seeds_of

MODELS = (0, 1, 2)
WAYS: Mapping[str, Mapping[str, Any]] = {
    "medoid": {"anchor": "medoid"},
    "consensus": {"anchor": "consensus"},
    "learned from the medoid": LEARNED | {"anchor": "medoid"},
    "learned from the consensus": LEARNED | {"anchor": "consensus"},
}
STEPS, FEW = 500, 10  # of learning, and where orders are compared


def run(bench: Bench, seeds: int, steps: int) -> None:
    """Measure every way, and compare the orders in which the models can be given."""
    bench.parents(MODELS)
    bench.raw(MODELS)
    for way in WAYS.values():
        for seed in seeds_of(way, seeds):
            bench.matched(MODELS, options_of(way, steps), seed)
        few = options_of(way, FEW)
        bench.other(MODELS, {"way": "orders", "options": few}, lambda few=few: orders(bench, few))


def orders(bench: Bench, options: dict[str, Any]) -> dict[str, list[str]]:
    """The ``hashes`` of the matched models, for every order in which they are given."""
    hashes = []
    for order in permutations(MODELS):
        ends = dict(zip(order, bench.match(order, options).ends, strict=True))
        hashes.append(hashlib.sha256("".join(fingerprint(ends[model]) for model in MODELS).encode()).hexdigest())
    return {"hashes": hashes}


def table(measured: Measured, models: Models, steps: int) -> Table:
    """What the average of all is worth, and whether it depends on the order in which they are given."""
    found = {"none": measured.get(models, way="none")}
    found |= {name: measured.matched(models, way, steps) for name, way in WAYS.items()}
    raw = found["none"][0]["excess"]
    scores = ["loss", "accuracy"]
    body = [[*line, "", "", "", ""] for line in measured.parents(models, scores)]
    for name, rows in found.items():
        rows = [{**row, "removed": 1 - row["excess"] / raw} for row in rows]
        line = [f"average, {name}", *cells(rows, [*scores, "excess", "removed"])]
        if name in WAYS:
            (hashes,) = measured.get(models, way="orders", options=options_of(WAYS[name], FEW))
            count = len(set(hashes["hashes"]))
            line += ["the same" if count == 1 else f"{count} DIFFERENT", *cells(rows, ["function"])]
        body.append(line + [""] * (7 - len(line)))
    return Table(
        f"{measured.title}, models {', '.join(models)}",
        ["loss", "accuracy, %", "above the parents", "removed, %", "in all 6 orders", "logits"],
        body,
        "Mean and standard deviation over seeds; loss above the parents' mean; removed: the share of what the raw "
        "average has of that; logits: their largest relative change in float64. An ensemble costs three times as much.",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    asked = parser(__doc__, pairs=False).parse_args(arguments)
    families = [
        family
        for family in Family.all(asked.shared, asked.out / "models", asked.family)
        if family.paths(MODELS) is not None
    ]
    steps = asked.steps or STEPS
    cost = sum(3 * minutes(way, steps) * len(seeds_of(way, asked.seeds)) for way in WAYS.values())
    cost += sum(6 * 3 * minutes(way, FEW) for way in WAYS.values())
    announce(len(families) * cost, f"{len(families)} families; what was measured before is not measured again")
    for family in families:
        bench = Bench(family, asked.train, asked.dev, asked.out)
        run(bench, asked.seeds, steps)
        table(bench.measured(), bench.models(MODELS), steps).show()


if __name__ == "__main__":
    main()
