"""What every part of the symmetry group is worth, one line each, from the raw midpoint to learning.

    python benchmarks/ladder.py [--family cifar10-vit] [--pair 0,1] [--dev]

Every line frees one more part of the group. The lines after "+ GL" compare and learn on training data, with the group
of "+ residual orthogonal", which is the default, unless they say so. Shares its results with ``one_basin.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.families import PAIRS, Family
from common.measuring import Bench
from common.results import write
from common.showing import announce, parser, show, spread
from one_basin import WAYS, minutes, options_of, seeds_of

RUNGS: Mapping[str, dict[str, Any]] = {
    "FFN": {"symmetry": "ffn"},
    "+ rotation": {"symmetry": "ffn,attention"},
    "+ heads": {"symmetry": "ffn,attention,heads"},
    "+ scale": {"symmetry": "ffn,attention,heads,scale"},
    "+ residual permutation": {"symmetry": "ffn,attention,heads,scale,residual-order"},
    "+ residual orthogonal": WAYS["weights"],
    "+ GL": {"symmetry": "gl"},
    "+ activations": WAYS["activations, training data"],
    "+ learned": WAYS["learned, training data"],
    "+ learned, with GL": WAYS["learned, training data"] | {"symmetry": "gl"},
}


def run(bench: Bench, pairs: Sequence[tuple[int, int]], seeds: int, steps: int) -> dict[str, list[dict[str, Any]]]:
    """The results of every rung, over pairs and seeds."""
    found = {"none": [bench.raw(pair) for pair in pairs]}
    for name, way in RUNGS.items():
        options = options_of(way, steps)
        found[name] = [bench.matched(pair, options, seed) for pair in pairs for seed in seeds_of(way, seeds)]
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
    count = sum(map(len, pairs.values()))
    cost = sum(minutes(way, asked.steps) * len(seeds_of(way, asked.seeds)) for way in RUNGS.values())
    announce(count * cost, f"{count} pairs; less where one_basin.py was run with these settings")
    for family in families:
        if pairs[family.name]:
            bench = Bench(family, asked.train, asked.dev, asked.out)
            found = run(bench, pairs[family.name], asked.seeds, asked.steps)
            write(asked.out / f"ladder-{family.name}.json", found)
            table(bench, pairs[family.name], found)


if __name__ == "__main__":
    main()
