"""Layers of one trained model on top of those of another: the first k of one, the others of the other.

    python benchmarks/stacks.py [--family cifar10-vit] [--pair 0,1] [--dev]

The models of a pair are trained from different seeds. The second is brought to the first as in one_basin.py, without
data that it learned from, or left as it is; then layers are stacked (``merge_method: passthrough``), and the stack is
measured. Results are written to ``stacks.json`` in ``--out``, from where a later run takes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.running import instantiate
from cobasin.finding.applying import transform
from cobasin.merging.merge import merge_recipe
from common.families import Family
from common.measuring import Bench
from common.results import Results
from common.showing import Table, announce, parser
from one_basin import WAYS

NONE = "none"
USUAL = [NONE, "weights", "activations, made up"]  # what the paper moves lies within layers: no stack notices
MINUTES = 1.5  # CPU minutes that a small pair takes


def stacked(lower: Checkpoint, upper: Checkpoint, count: int) -> Checkpoint:
    """The first ``count`` layers of one model, and the layers behind them of the other."""
    parts = {"lower": (lower, 0, count), "upper": (upper, count, lower.config.num_hidden_layers)}
    parts = {name: part for name, part in parts.items() if part[1] < part[2]}
    slices = [{"sources": [{"model": name, "layer_range": part[1:]}]} for name, part in parts.items()]
    models = {name: model for name, (model, *_) in parts.items()}
    return merge_recipe({"merge_method": "passthrough", "slices": slices}, models).checkpoint


def measure(bench: Bench, pair: Sequence[int], way: str) -> dict[str, Any]:
    """The ``scores`` for every number of layers from below, from none of the first model to all."""
    lower, upper = map(load, bench.folders(pair))
    if way != NONE:
        (element,) = (one for one in bench.match(pair, WAYS[way]).elements if one is not None)
        upper = transform(element, upper)
    counts = range(lower.config.num_hidden_layers + 1)
    models = (instantiate(stacked(lower, upper, count), torch.float32) for count in counts)
    return {"scores": [bench.task.score(torch.nn.Module.to(model, bench.device)) for model in models]}


def table(rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> Table:
    """The loss of every stack; ``titles`` of families by name."""
    body = []
    for row in rows:
        own = row["of"]
        losses = [f"{score['loss']:.3f}" for score in row["scores"]]
        label = f"{titles.get(own['family'], own['family'])} {'-'.join(own['models'])}"
        body.append([f"{label}, {own['way']}", *losses])
    most = max(len(row["scores"]) for row in rows)
    columns = [f"{count}" for count in range(most)]
    return Table("layers of the first model", columns, [line + [""] * (most + 1 - len(line)) for line in body], "Loss.")


def main(arguments: Sequence[str] | None = None) -> None:
    asked = parser(__doc__, seeds=False).parse_args(arguments)
    families = Family.all(asked.shared, asked.out / "models", asked.family)
    pairs = {family.name: family.pairs(asked.pair or [(0, 1)]) for family in families}
    announce(MINUTES * sum(map(len, pairs.values())), "what was measured before is not measured again")
    results, rows = Results(asked.out / "stacks.json"), []
    for family in families:
        for pair in pairs[family.name]:
            bench = Bench(family, asked.train, asked.dev, asked.out)
            for way in USUAL:
                of = {"family": family.name, "models": bench.models(pair), "data": bench.task.data, "way": way}
                rows.append(results.get(of, lambda bench=bench, pair=pair, way=way: measure(bench, pair, way)))
    table(rows, {}).show()


if __name__ == "__main__":
    main()
