"""What rows of results amount to: means over seeds, differences between matchings, and how sure these are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from scipy.stats import t

CHANCE = 0.05  # of a difference that is called sure
Row = Mapping[str, Any]
Rows = Sequence[Row]
Value = Callable[[Row], float]
"""Takes a figure out of a row."""


def where(rows: Rows, **wanted: Any) -> list[Row]:
    """Those that have these values."""
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def different(rows: Rows, key: str) -> list[Any]:
    """The different values of a key, in the order in which they come."""
    return list(dict.fromkeys(row[key] for row in rows if key in row))


def by_seed(rows: Rows, value: Value) -> list[float]:
    """Of every seed the mean over groups and tests."""
    return [mean(number(value(row)) for row in where(rows, seed=seed)) for seed in different(rows, "seed")]


def best_of(rows: Rows, value: Value, better: Callable[..., Any]) -> list[Row]:
    """Of the rows of one merge on one test the best."""
    alike: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        alike.setdefault((merge_of(row), row["test"]), []).append(row)
    return [better(own, key=value) for own in alike.values()]


def gained(rows: Rows, before: str, after: str, value: Value) -> dict[tuple[Any, ...], float]:
    """The difference between two matchings of every merge, in the mean over its tests."""
    start, end = (_merges(where(rows, matching=name), value) for name in (before, after))
    return {merge: end[merge] - start[merge] for merge in start if merge in end}


def _merges(rows: Rows, value: Value) -> dict[tuple[Any, ...], float]:
    """Of every merge the mean over its tests, which are not independent."""
    tests: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        tests.setdefault(merge_of(row), []).append(value(row))
    return {merge: mean(values) for merge, values in tests.items()}


def merge_of(row: Row) -> tuple[Any, ...]:
    """What is merged, whatever it is matched by and tested on."""
    return tuple(row["group"]), row["seed"]


def standard_error(gains: Sequence[float]) -> float:
    """The standard error of a mean, as if merges were independent."""
    return stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.inf


def bound(gains: Sequence[float]) -> float:
    """What a mean differs from zero by chance, as if merges were independent: of Student's t, two-sided."""
    return float(t.ppf(1 - CHANCE / 2, len(gains) - 1)) * standard_error(gains) if len(gains) > 1 else math.inf


def varied(rows: Rows, matching: str) -> bool:
    """Whether one merge was tested with several layers matched; where a layer was chosen, it is tested once."""
    own = where(rows, matching=matching)
    first = [row for row in own if (merge_of(row), row["way"]) == (merge_of(own[0]), own[0]["way"])]
    return len({row.get("layers") for row in first}) > 1


def depth_of(layers: str) -> int:
    """A single layer's number; of a range one less than its length."""
    first, _, last = layers.partition("-")
    return int(last) - int(first) if last else int(first)


def number(value: float | None) -> float:
    """A figure of a file, where null is none that is finite."""
    return math.nan if value is None else value
