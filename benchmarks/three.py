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
from common.measuring import Bench, ends_of
from common.results import write
from common.showing import announce, parser, show, spread
from one_basin import LEARNED, minutes, options_of, seeds_of

MODELS = (0, 1, 2)
WAYS: Mapping[str, Mapping[str, Any]] = {
    "medoid": {"anchor": "medoid"},
    "consensus": {"anchor": "consensus"},
    "learned from the medoid": LEARNED | {"anchor": "medoid"},
    "learned from the consensus": LEARNED | {"anchor": "consensus"},
}
STEPS, FEW = 500, 10  # of learning, and where orders are compared


def run(bench: Bench, seeds: int, steps: int) -> dict[str, Any]:
    """The results of every way, and how many different ones the orders of the models led to."""
    found: dict[str, Any] = {"parents": bench.parents(MODELS), "none": [bench.raw(MODELS)]}
    for name, way in WAYS.items():
        found[name] = [bench.matched(MODELS, options_of(way, steps), seed) for seed in seeds_of(way, seeds)]
    found["orders"] = {
        name: bench.other(MODELS, {"way": "orders", "options": options}, lambda o=options: orders(bench, o))["hashes"]
        for name, options in ((name, options_of(way, FEW)) for name, way in WAYS.items())
    }
    return found


def orders(bench: Bench, options: dict[str, Any]) -> dict[str, list[str]]:
    """The ``hashes`` of the matched models, for every order in which they are given."""
    hashes = []
    for order in permutations(MODELS):
        ends = dict(zip(order, ends_of(bench.match(order, options)), strict=True))
        hashes.append(hashlib.sha256("".join(fingerprint(ends[model]) for model in MODELS).encode()).hexdigest())
    return {"hashes": hashes}


def table(bench: Bench, found: Mapping[str, Any]) -> None:
    parents = found["parents"]
    rows = [[f"parent {model}", *_cells([parent])] for model, parent in zip(MODELS, parents["each"], strict=True)]
    rows.append(["probability ensemble, three times the cost", *_cells([parents["ensemble"]])])
    for name in ("none", *WAYS):
        different = len(set(found["orders"][name])) if name in WAYS else 1
        order = "" if name not in WAYS else "the same" if different == 1 else f"{different} DIFFERENT"
        excess = spread([row["excess"] for row in found[name]])
        changed = f"{max(row['function'] for row in found[name]):.0e}" if name in WAYS else ""
        rows.append([f"average, {name}", *_cells(found[name]), excess, order, changed])
    show(
        f"{bench.family.name}, three into one, {bench.task.data}",
        ["", "accuracy, %", "loss", "above the parents' mean loss", "in all 6 orders", "change of logits"],
        rows,
        "Mean and standard deviation over seeds. The logits' largest relative change is in float64.",
    )


def _cells(rows: Sequence[Mapping[str, float]]) -> list[str]:
    return [spread([row["accuracy"] for row in rows], "{:.2%}"), spread([row["loss"] for row in rows])]


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
        found = run(bench, asked.seeds, steps)
        write(asked.out / f"three-{family.name}.json", found)
        table(bench, found)


if __name__ == "__main__":
    main()
