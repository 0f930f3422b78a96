"""What every part of the symmetry group is worth, one line each, from the raw midpoint to learning.

    python benchmarks/ladder.py [--family cifar10-vit] [--pair 0,1] [--dev]

Every line frees one more part of the group; the last two compare, and then learn, on training data. Shares its results
with ``one_basin.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.families import PAIRS, Family
from common.measuring import Bench
from common.results import write
from common.showing import announce, parser, show, spread
from one_basin import WAYS, minutes, options_of, runs

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


def run(bench: Bench, pairs: Sequence[tuple[int, int]], seeds: int, steps: int) -> dict[str, list[dict[str, Any]]]:
    """The results of every rung, over pairs and seeds."""
    found = {"none": [bench.raw(pair) for pair in pairs]}
    for name, way in RUNGS.items():
        options = options_of(way, steps)
        found[name] = [bench.matched(pair, options, seed) for pair, seed in runs(way, pairs, seeds)]
    return found


def table(bench: Bench, pairs: Sequence[tuple[int, int]], found: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    each = [parent for pair in pairs for parent in bench.parents(pair)["each"]]
    rows = [["parents", *_cells(each, ("accuracy", "loss"))]]
    columns = ("accuracy", "loss", "barrier", "distance_canonical", "distance_files")
    rows += [[name, *_cells(own, columns)] for name, own in found.items()]
    show(
        f"{bench.family.name}, {bench.task.data}",
        ["matched by", "accuracy, %", "loss", "barrier", "distance, canonical form", "distance, files"],
        rows,
        f"Midpoint of the pairs {' '.join('-'.join(map(str, pair)) for pair in pairs)}, mean and standard deviation "
        "over pairs and seeds. The canonical form is one for all lines: norms folded, free biases moved or dropped.",
    )


def _cells(rows: Sequence[Mapping[str, float]], columns: Sequence[str]) -> list[str]:
    form = {"accuracy": "{:.2%}", "loss": "{:.3f}", "barrier": "{:.3f}"}
    return [spread([row[column] for row in rows], form.get(column, "{:.2f}")) for column in columns]


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
            found = run(bench, pairs[family.name], asked.seeds, asked.steps or family.steps)
            write(asked.out / f"ladder-{family.name}.json", found)
            table(bench, pairs[family.name], found)


if __name__ == "__main__":
    main()
