"""What every part of the symmetry group is worth, one line each, from the raw midpoint to learning.

    python benchmarks/ladder.py [--family cifar10-vit] [--pair 0,1] [--dev]

Every line frees one more part of the group; the last two compare, and then learn, on training data. Shares its results
with ``one_basin.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.families import PAIRS, Family
from common.measured import Measured, Models, cells, options_of
from common.measuring import Bench
from common.showing import Table, announce, parser
from one_basin import WAYS, Pair, minutes, runs

RUNGS: Mapping[str, dict[str, Any]] = {
    "FFN": {"symmetry": "ffn"},
    "+ rotation": {"symmetry": "ffn,attention"},
    "+ heads": {"symmetry": "ffn,attention,heads"},
    "+ scale": {"symmetry": "ffn,attention,heads,scale"},
    "+ residual permutation": {"symmetry": "ffn,attention,heads,scale,residual-order"},
    "+ residual orthogonal": WAYS["weights"],
    "+ GL": {"symmetry": "gl"},
    "+ activations": WAYS["activations, training data"] | {"symmetry": "gl"},
    "+ learned": WAYS["learned, training data"],
}


def run(bench: Bench, pairs: Sequence[Pair], seeds: int, steps: int) -> None:
    """Measure every rung, over pairs and seeds."""
    for pair in pairs:
        bench.raw(pair)
    for way in RUNGS.values():
        for pair, seed in runs(way, pairs, seeds):
            bench.matched(pair, options_of(way, steps), seed)


def table(every: Sequence[tuple[str, Measured, Models]]) -> Table:
    """Of pairs of models, side by side."""
    columns = {"accuracy": "accuracy, %", "barrier": "barrier", "distance_canonical": "distance"}
    body = [["none", *(cell for _, one, models in every for cell in cells(one.get(models, way="none"), list(columns)))]]
    for name, way in RUNGS.items():
        found = [one.matched(models, way) for _, one, models in every]
        body.append([name, *(cell for rows in found for cell in cells(rows, list(columns)))])
    return Table(
        "matched by",
        [f"{head}: {column}" for head, _, _ in every for column in columns.values()],
        body,
        "Midpoints; mean and standard deviation over seeds. The distance is in one canonical form for all lines: "
        "norms folded, free biases moved or dropped.",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    asked = parser(__doc__).parse_args(arguments)
    families = Family.all(asked.shared, asked.out / "models", asked.family)
    pairs = {family.name: family.pairs(asked.pair or PAIRS[:1]) for family in families}
    cost = sum(
        minutes(way, asked.steps or family.steps) * len(runs(way, pairs[family.name], asked.seeds))
        for family in families
        for way in RUNGS.values()
    )
    announce(cost, f"{sum(map(len, pairs.values()))} pairs; less where one_basin.py was run with these settings")
    for family in families:
        if pairs[family.name]:
            bench = Bench(family, asked.train, asked.dev, asked.out)
            run(bench, pairs[family.name], asked.seeds, asked.steps or family.steps)
            measured = bench.measured(asked.steps)
            for pair in pairs[family.name]:
                table([(f"{family.name} {pair[0]}-{pair[1]}", measured, bench.models(pair))]).show()


if __name__ == "__main__":
    main()
