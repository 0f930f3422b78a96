"""What a pair of very large models would take: bytes, memory, jobs, hours and cost, from rates that were measured.

    python benchmarks/scale.py --only average,match-related,match-unrelated      # measures the rates
    python benchmarks/plan.py [--rates benchmarks/out/scale/scale-1.1b.json] [--price 0.1]

FFN and attention are matched, then the models are averaged. Rates are those of one node, the machine that was measured:
bytes that pass through an average, products of the FFNs' Grams, assignments, which grow with the cube of the width, and
what matching takes in their units: of a related pair less than the products, as a part of them proves the order. Of a
round's jobs the FFNs take nearly all the time, one a layer, so no more nodes than layers are of use. The order of the
experts of a layer is assigned, too (``full``), or stays (``--symmetry ffn,attention,scale``). All pairs of related
experts are compared by a part of their neurons and weights, and each with its twin; of others all pairs are multiplied.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from cobasin.matching.neurons import EVERY, TABLE
from cobasin.merging.plan import PARTS, gains_size
from common.showing import Table
from common.synthetic import Geometry
from scale import SIZES

BFLOAT16, FLOAT32 = 2, 4
LARGE = {
    "7B": SIZES["7b"],
    "70B (Llama 3)": Geometry(8192, 28672, 80, 64, 8, 128256),
    "400B, 128 experts a layer": Geometry(6144, 2560, 66, 64, 8, 152064, 128),
}
NODES = (1, 8, 64)
PRICE = 0.1  # dollars for an hour of a node


@dataclass(frozen=True)
class Rates:
    """What one node does.

    Attributes:
        stream: bytes a second that are read or written by an average.
        products: floating point operations a second, of Grams.
        assignment: seconds of an assignment over the cube of its width.
        related: what matching takes of a related pair, in units of its Grams' products.
        unrelated: of an unrelated pair, in units of products and assignments.
    """

    stream: float
    products: float
    assignment: float
    related: float
    unrelated: float

    @classmethod
    def of(cls, measured: Mapping[str, Any], geometry: Geometry) -> Rates:
        """From what `scale` has measured on models of a geometry."""

        def seconds(case: str, who: str = "cobasin") -> float:
            return median(one["wall_s"] for one in measured[case]["rounds"][who])

        average = seconds("average")
        cases = ("match-related", "match-unrelated")
        (grams, solved), (related, unrelated) = (
            [seconds(case, who) for case in cases] for who in ("grams and assignments", "cobasin")
        )
        return cls(
            3 * size(geometry) / average,
            flops(geometry) / grams,
            max(0.0, solved - grams) / (geometry.layers * geometry.ffn**3),
            (related - average) / grams,
            (unrelated - average) / solved,
        )


def size(geometry: Geometry) -> int:
    """Bytes of a model in bfloat16."""
    return BFLOAT16 * sum(math.prod(shape) for _, shape in geometry.shapes())


def ffn_pairs(geometry: Geometry, ordered: bool) -> int:
    """Pairs of FFNs whose neurons are compared in a layer: one, or all pairs of experts, or each with its twin."""
    return max(1, geometry.experts) ** (1 if ordered else 2)


def flops(geometry: Geometry, ordered: bool = False) -> float:
    """Of the Grams of all pairs of FFNs, three products each."""
    return geometry.layers * ffn_pairs(geometry, ordered) * 6.0 * geometry.ffn**2 * geometry.hidden


def memory(geometry: Geometry, related: bool) -> float:
    """Bytes of a node: tables of an FFN's neurons, tensors of both models; or the largest tensor, twice.

    Tables are made in parts; of pairs that are not related one is held, in float64 where it is solved exactly. Of
    experts the three tensors of all in a layer are held of both models.
    """
    matrix = geometry.ffn * geometry.hidden
    solved = 0 if related else gains_size(geometry.ffn)
    held = 6 * geometry.experts if geometry.experts else 4
    largest = max(math.prod(shape) for _, shape in geometry.shapes())
    return max(PARTS * TABLE + solved + held * FLOAT32 * matrix, 2 * BFLOAT16 * largest)


def hours(geometry: Geometry, rates: Rates, nodes: int, related: bool, ordered: bool = False) -> float:
    """Of wall time."""
    own = -(-geometry.layers // nodes) / geometry.layers  # the share of the node that has most to do
    if related:
        matching = rates.related * flops(geometry, ordered=True) / rates.products
        if geometry.experts and not ordered:
            matching += (flops(geometry) / EVERY**2 + flops(geometry, ordered=True) / EVERY) / rates.products
    else:
        assigned = geometry.ffn**3 * geometry.layers * ffn_pairs(geometry, ordered)
        matching = rates.unrelated * (flops(geometry, ordered) / rates.products + rates.assignment * assigned)
    return (matching * own + 3 * size(geometry) / rates.stream / nodes) / 3600


def table(rates: Rates, price: float) -> Table:
    """A line for every model and kind of pair."""
    found = []
    for name, geometry in LARGE.items():
        for kind in ("related, experts in their order", "related", "unrelated")[not geometry.experts :]:
            related, ordered = kind != "unrelated", kind.endswith("order")
            wall = [hours(geometry, rates, nodes, related, ordered) for nodes in NODES]
            found.append(
                [
                    f"{name}, {kind}",
                    f"{size(geometry) / 1e9:,.0f}",
                    f"{3 * size(geometry) / 1e9:,.0f}",
                    f"{memory(geometry, related) / 1e9:.1f}",
                    f"{3 * geometry.layers:,}",  # queries and keys, values and outputs, FFN
                    *(f"{one:,.2f}" for one in wall),
                    f"{price * wall[0]:,.3f}",
                ]
            )
    columns = ["GB a model", "GB moved", "GB of memory", "jobs a round"]
    columns += [f"hours, {count} node{'s' * (count > 1)}" for count in NODES]
    return Table(
        "pair",
        [*columns, "dollars"],
        found,
        "FFN and attention matched, then averaged; bfloat16. "
        f"A node moves {rates.stream / 1e9:.2f} GB/s and multiplies {rates.products / 1e9:.0f} GFLOP/s; matching takes "
        f"{rates.related:.2f} times its products of a related pair, {rates.unrelated:.2f} times products and "
        "assignments of an unrelated one. Memory is beside the interpreter.",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rates", type=Path, default=Path("benchmarks/out/scale/scale-1.1b.json"), help="of 1.1B pairs"
    )
    parser.add_argument("--price", type=float, default=PRICE, help="dollars for an hour of a node")
    options = parser.parse_args(arguments)
    if not options.rates.exists():
        parser.error(f"{options.rates}: no such file; run benchmarks/scale.py first")
    rates = Rates.of(json.loads(options.rates.read_text()), SIZES["1.1b"])
    table(rates, options.price).show()


if __name__ == "__main__":
    main()
