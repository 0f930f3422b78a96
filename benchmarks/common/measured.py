"""What was measured of a family, read again for tables: in a terminal and in the docs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from common.showing import spread

Row = Mapping[str, Any]
Models = Mapping[str, str]
FORMS = {
    "loss": "{:.3f}",
    "accuracy": "{:.2f}",
    "excess": "{:.3f}",
    "barrier": "{:.3f}",
    "removed": "{:.0f}",
    "distance_canonical": "{:.2f}",
    "cost": "{:.1f}",
}
SHARES = ("accuracy", "removed")  # shown in per cent
MEANS = ("removed", "cost")  # their spread says nothing that those of others do not


@dataclass(frozen=True)
class Measured:
    """Rows of a `common.results.Results` file of a family.

    Attributes:
        title: of the family.
        steps: of learning, where nothing else is asked for.
        rows: of one kind of data (test or dev), and of one number of rows of training data.
    """

    title: str
    steps: int
    rows: Sequence[Row]

    def models(self, seeds: Sequence[int | str]) -> list[Models]:
        """The models of these seeds by their fingerprints; more than one, where a seed was trained more than once."""
        own = [row["of"]["models"] for row in self.rows]
        return list({json.dumps(one): one for one in own if list(one) == [str(seed) for seed in seeds]}.values())

    def get(self, models: Models, **what: Any) -> list[Row]:
        """The rows of something that was done with these models, one a seed; with the share of the barrier removed."""
        found = [row for row in self.rows if row["of"]["models"] == models]
        raw = next((row.get("barrier") for row in found if row["of"]["way"] == "none"), 0.0)
        found = [row for row in found if all(row["of"].get(key) == value for key, value in what.items())]
        removed = [1 - row["barrier"] / raw if raw and "barrier" in row else 0.0 for row in found]
        return [{**row, "removed": share} for row, share in zip(found, removed, strict=True)]

    def matched(self, models: Models, way: Mapping[str, Any], steps: int | None = None) -> list[Row]:
        """The rows of a way to match."""
        return self.get(models, way="match", options=options_of(way, steps or self.steps))

    def parents(self, models: Models, columns: Sequence[str]) -> list[list[str]]:
        """The lines of the parents, and of the mean of their probabilities."""
        (own,) = self.get(models, way="parents")
        each = [[cell for parent in own["each"] for cell in cells([parent], [column])] for column in columns]
        return [
            ["parents", *(", ".join(found) for found in each)],
            ["probability ensemble", *cells([own["ensemble"]], columns)],
        ]

    def mean_loss(self, models: Models) -> float:
        """Of the parents."""
        return mean(parent["loss"] for parent in self.get(models, way="parents")[0]["each"])

    def label(self, name: str, way: Mapping[str, Any]) -> str:
        """The name of a way, with the steps of learning."""
        steps = options_of(way, self.steps).get("steps")
        return name if steps is None else f"{name}, {steps:,} steps"


def options_of(way: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """A way, as `match_all` takes it; of what is learned, ``times`` as many steps, where it says so."""
    options = dict(way)
    if way.get("method") == "learned":
        options["steps"] = min(steps, way.get("steps", steps)) * options.pop("times", 1)
    return options


def cells(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """Mean and standard deviation over seeds, of some figures the mean alone; of no rows nothing."""
    found = []
    for column in columns:
        if column == "function":
            found.append(_function(rows))
            continue
        values = [row[column] * (100 if column in SHARES else 1) for row in rows if column in row]
        found.append(spread([mean(values)] if values and column in MEANS else values, FORMS[column]))
    return found


def _function(rows: Sequence[Row]) -> str:
    """The largest change of the logits, and whether all functions are kept, and all files load."""
    if not rows:
        return ""
    kept = all(row["function_kept"] and row["loads"] for row in rows)
    return f"{max(row['function'] for row in rows):.0e}{'' if kept else ' CHANGED'}"
