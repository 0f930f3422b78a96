"""The tables of docs/one-basin.md and docs/adapters.md from what was measured: python benchmarks/page.py.

A page has a block for each, between ``<!-- measured: TABLE FAMILY [FAMILY ...] -->`` and ``<!-- end -->``. A table is
one of `TABLES`; its rows are those of ``benchmarks/measured/measured-FAMILY.json`` that are of test data
(``transport-measured-FAMILY.json``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import equal_cost
import ladder
import three
import transport
from common import pages
from common.families import PAIRS, Family
from common.pages import table
from common.showing import spread
from one_basin import WAYS, options_of

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / name for name in ("one-basin.md", "adapters.md")]
MEASURED = ROOT / "benchmarks" / "measured"
SMALL = ROOT / "benchmarks" / "training" / "small"
Row = Mapping[str, Any]
Models = Mapping[str, str]
TITLES = {
    "cifar10-vit": "ViT, CIFAR-10",
    "gpt2-shakespeare": "GPT-2",
    "llama-shakespeare": "Llama",
    "bert-shakespeare": "BERT",
    "qwen3": "Qwen3",
    "qwen2-moe": "Qwen2-MoE, 4 experts and a shared one",
    "mixtral": "Mixtral, 4 experts",
    "gemma2": "Gemma 2",
    "olmo2": "OLMo 2",
}
FORMS = {
    "loss": "{:.3f}",
    "accuracy": "{:.2f}",
    "barrier": "{:.3f}",
    "removed": "{:.0f}",
    "distance_canonical": "{:.2f}",
}


@dataclass(frozen=True)
class Measured:
    """What was measured of a family.

    Attributes:
        steps: of learning, where nothing else is asked for.
        rows: of test data.
    """

    steps: int
    rows: Sequence[Row]

    @classmethod
    def of(cls, name: str) -> Measured:
        """A family by the name of its file."""
        small = SMALL / f"{name}.yaml"
        (family,) = Family.all(ROOT, ROOT, [str(small) if small.exists() else name])
        return cls(family.steps, [row for row in _rows(f"measured-{name}") if "test" in row["of"]["data"]])

    def models(self, seeds: Sequence[int]) -> list[Models]:
        """The models of these seeds by their fingerprints; more than one, where a seed was trained more than once."""
        own = [row["of"]["models"] for row in self.rows]
        return list({json.dumps(one): one for one in own if list(one) == [str(seed) for seed in seeds]}.values())

    def get(self, models: Models, **what: Any) -> list[Row]:
        """The rows of something that was done with these models, one a seed; with the share of the barrier removed."""
        found = [row for row in self.rows if row["of"]["models"] == models]
        raw = next((row.get("barrier") for row in found if row["of"]["way"] == "none"), None)
        found = [row for row in found if all(row["of"].get(key) == value for key, value in what.items())]
        return [{**row, "removed": 1 - row["barrier"] / raw} if raw and "barrier" in row else row for row in found]

    def matched(self, models: Models, way: Mapping[str, Any], steps: int | None = None) -> list[Row]:
        """The rows of a way to match."""
        return self.get(models, way="match", options=options_of(way, steps or self.steps))


def ways(*names: str) -> list[str]:
    """Everything that brings model 1 to model 0, and the parents, of every family."""
    lines = []
    for name, one in ((name, Measured.of(name)) for name in names):
        (models,) = one.models((0, 1))
        columns = ("loss", "accuracy", "barrier", "removed")
        body = [[*row, "", ""] for row in _parents(one, models, columns[:2])]
        body.append(["midpoint, none", *_cells(one.get(models, way="none"), columns[:3]), ""])
        body += [[_label(way, one), *_cells(one.matched(models, WAYS[way]), columns)] for way in WAYS]
        lines += table([f"{TITLES[name]}, pair 0-1", "loss", "accuracy, %", "barrier", "removed, %"], body)
    return lines


def pairs(*names: str) -> list[str]:
    """All pairs: what is left in the middle and at the highest point, and the share of the barrier that is removed."""
    every, heads = [], [""]
    for name, pair in product(names, PAIRS):
        one = Measured.of(name)
        found = one.models(pair)
        every += [(one, models) for models in found]
        heads += [f"{TITLES[name]} {pair[0]}-{pair[1]}{', again' if i else ''}" for i in range(len(found))]

    def cell(rows: Sequence[Row]) -> str:
        if not rows:
            return ""
        left = f"{mean(row['excess'] for row in rows):.3f}, {mean(row['barrier'] for row in rows):.3f}"
        return f"{left} ({100 * mean(row['removed'] for row in rows):.0f} %)"

    means = [f"{_mean_loss(one, models):.3f}" for one, models in every]
    body = [["mean of the parents' losses", *means]]
    body.append(["none", *(cell(one.get(models, way="none")).removesuffix(" (0 %)") for one, models in every)])
    body += [
        [_label(way, every[0][0]), *(cell(one.matched(models, WAYS[way])) for one, models in every)] for way in WAYS
    ]
    return table(heads, body)


def small(*names: str) -> list[str]:
    """Barriers of small families."""

    def cell(rows: Sequence[Row]) -> str:
        return f"{_cells(rows, ['barrier'])[0]} ({_cells(rows, ['removed'])[0]} %)"

    shown = [way for way in WAYS if not WAYS[way].get("data")]
    body = []
    for name, one in ((name, Measured.of(name)) for name in names):
        (models,) = one.models((0, 1))
        raw = _cells(one.get(models, way="none"), ["barrier"])
        body.append(
            [
                TITLES[name],
                _parents(one, models, ["loss"])[0][1],
                *raw,
                *(cell(one.matched(models, WAYS[way])) for way in shown),
            ]
        )
    return table(["pair 0-1", "parents", "none", *(_label(way, one) for way in shown)], body)


def rungs(*names: str) -> list[str]:
    """The ladder."""
    every = [(one, one.models((0, 1))[0]) for one in map(Measured.of, names)]
    columns = ("accuracy", "barrier", "distance_canonical")
    heads = [f"{TITLES[name]}: {word}" for name in names for word in ("accuracy, %", "barrier", "distance")]
    body = [["none", *(cell for one, models in every for cell in _cells(one.get(models, way="none"), columns))]]
    for name, way in ladder.RUNGS.items():
        body.append([name, *(cell for one, models in every for cell in _cells(one.matched(models, way), columns))])
    return table(["pair 0-1, matched by", *heads], body)


def three_into_one(name: str) -> list[str]:
    """Three models into one."""
    one = Measured.of(name)
    (models,) = one.models(three.MODELS)
    own = {"none": one.get(models, way="none")}
    own |= {way: one.matched(models, options, three.STEPS) for way, options in three.WAYS.items()}
    raw = own["none"][0]["excess"]
    body = [[*row, "", ""] for row in _parents(one, models, ("loss", "accuracy"))]
    for way, rows in own.items():
        removed = "" if way == "none" else f"{mean(100 * (1 - row['excess'] / raw) for row in rows):.0f}"
        body.append(
            [f"average, {way}", *_cells(rows, ("loss", "accuracy")), spread([row["excess"] for row in rows]), removed]
        )
    return table([f"{TITLES[name]}, models 0, 1 and 2", "loss", "accuracy, %", "above the parents", "removed, %"], body)


def equal(name: str) -> list[str]:
    """Matching and training for as many passes over rows."""
    one, columns = Measured.of(name), ("accuracy", "loss")
    models = one.models((0, 1))[0]
    body = [*_parents(one, models, columns), ["raw average", *_cells(one.get(models, way="none"), columns)]]
    for way, options in equal_cost.MATCHED.items():  # of one seed, as what is trained
        body.append([f"matched by {way}", *_cells(one.matched(models, options, equal_cost.STEPS)[:1], columns)])
    for start, target in product(equal_cost.STARTS, (equal_cost.ANSWERS, equal_cost.LABELS)):
        rows = one.get(models, way="train", start=start, target=target, steps=equal_cost.STEPS)
        body.append([f"{start}, trained, {target}", *_cells(rows, columns)])
    return table([f"{TITLES[name]}, pair 0-1", "accuracy, %", "loss"], body)


def carried(*names: str) -> list[str]:
    """What another base can use of a fine-tune; the share is of what a fine-tune of that base itself gains."""
    heads, body = [""], dict[str, list[str]]()
    for name in names:
        own: dict[str, list[Row]] = {}
        for row in _rows(f"transport-measured-{name}"):
            if not row["of"]["dev"]:
                own.setdefault(row["of"].get("model") or f"carried, {row['of']['way']}", []).append(row)
        for what, found in own.items():
            ends = zip(found, own[transport.NEW], own[transport.OWN], strict=True)
            shares = [100 * transport.share(*one) for one in ends]
            cells = [
                spread([row["new"] for row in found]),
                spread(shares, "{:.0f}"),
                spread([row["old"] for row in found]),
            ]
            body.setdefault(what, [what]).extend(cells)
        heads += [f"{TITLES[name]}: {word}" for word in ("loss", "share, %", "on Shakespeare")]
    return table(heads, body.values())


TABLES: Mapping[str, Callable[..., list[str]]] = {
    "ways": ways,
    "pairs": pairs,
    "small": small,
    "ladder": rungs,
    "three": three_into_one,
    "equal-cost": equal,
    "transport": carried,
}


def _rows(file: str) -> list[Row]:
    return json.loads((MEASURED / f"{file}.json").read_text("utf-8"))


def _parents(one: Measured, models: Models, columns: Sequence[str]) -> list[list[str]]:
    """The rows of the parents, and of the mean of their probabilities."""
    (own,) = one.get(models, way="parents")
    each = [[cell for parent in own["each"] for cell in _cells([parent], [column])] for column in columns]
    return [
        ["parents", *(", ".join(cells) for cells in each)],
        ["probability ensemble", *_cells([own["ensemble"]], columns)],
    ]


def _mean_loss(one: Measured, models: Models) -> float:
    return mean(parent["loss"] for parent in one.get(models, way="parents")[0]["each"])


def _label(way: str, one: Measured) -> str:
    """A way, with the steps of learning."""
    steps = options_of(WAYS[way], one.steps).get("steps")
    return way if steps is None else f"{way}, {steps:,} steps"


def _cells(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """Mean and standard deviation over seeds; of the share that is removed the mean alone."""
    cells = []
    for column in columns:
        values = [row[column] * (100 if column in ("accuracy", "removed") else 1) for row in rows]
        if column == "removed" and values:
            values = [mean(values)]
        cells.append(spread(values, FORMS[column]))
    return cells


def make(what: str) -> str:
    """The table of a block."""
    name, *families = what.split()
    return "\n".join(TABLES[name](*families)).rstrip("\n") + "\n"


def main() -> None:
    """Fill the pages."""
    for page in PAGES:
        page.write_text(pages.filled(page.read_text("utf-8"), make), "utf-8")


if __name__ == "__main__":
    main()
