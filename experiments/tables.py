"""Measured results as Markdown, and into the page docs/paper.md: python experiments/tables.py.

The page has a block for every item, between ``<!-- measured: ITEM -->`` and ``<!-- end -->``: the tables of
``docs/measured/ITEM.json``, as ``experiments/run.py`` writes it; and one for the `summary` of all.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy.stats import t

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from common import pages  # noqa: E402
from common.pages import table as _table  # noqa: E402

STEPS = 3
CHANCE = 0.05  # of a difference that is called sure
DOCS = ROOT / "docs"
ONE_START = "one start"  # of fine-tunes that matching finds as they are
Rows = Sequence[Mapping[str, Any]]


def markdown(found: Mapping[str, Any]) -> str:
    """The tables of an item, and how they were measured."""
    rows, measure = found["rows"], found["settings"].get("measure", "scores")
    tables = {"scores": scores, "paths": paths, "distances": distances, "seconds": seconds}[measure]
    lines = [f"**{found['title']}**", ""]
    for setting in _values(rows, "models"):
        lines += [f"*{setting}*", "", *tables(_where(rows, models=setting))]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    seeds = ", ".join(map(str, found["settings"]["seeds"]))
    seeds += "".join(f"; {most:,} {split} rows at most" for split, most in found["settings"].get("rows", {}).items())
    small = "A reduced run (`--small`), which says nothing of what it measures. " if found["small"] else ""
    item = shlex.quote(found.get("file") or found["item"])
    command = f"python experiments/run.py {item}{' --small' if found['small'] else ''}"
    for option in ("model", "setting"):
        if found.get(option):
            command += f' --{option} "{found[option]}"'
    lines.append(
        f"{small}`{command}`; seeds {seeds}; {found['device']}, {found['minutes']:g} minutes of measuring; {versions}; "
        f"{found['date']}."
    )
    return "\n".join(lines) + "\n"


def scores(rows: Rows) -> list[str]:
    """A table of the metric and one of the loss, for each number of models and, of several metrics, for each test."""
    lines = []
    for size in sorted({len(row["group"]) for row in rows}):
        of_size = [row for row in rows if len(row["group"]) == size and row.get("split") != "dev"]
        apart = len({row["metric_name"] for row in of_size}) > 1
        for test in _values(of_size, "test") if apart else [None]:
            part = [row for row in of_size if test in (None, row["test"])]
            what = f"{part[0]['metric_name']}, %" + (f", {test}" if test else "") + f"; {size} models at once"
            lines += _scores(part, what, lambda row: 100 * row["metric"], "{:.2f}", max)
            lines += _scores(part, "loss" + (f", {test}" if test else ""), lambda row: row["loss"], "{:.3f}", min)
    return lines


def _scores(
    rows: Rows, what: str, value: Callable[[Mapping[str, Any]], float], form: str, better: Callable[..., Any]
) -> list[str]:
    swept = {row["matching"] for row in rows if "matching" in row and varied(rows, row["matching"])}
    merged = [row for row in rows if "matching" in row and row["matching"] not in swept]
    matchings = _values(merged, "matching")
    body = []
    parents = _where(rows, way="parents")
    best = _best(parents, value, better)  # of those of one merge, where all are tested on the same data
    alone = {"parents": parents, "best parent": best if len(best) < len(parents) else []}
    for way, own in (alone | {"ensemble": _where(rows, way="ensemble")}).items():
        if own:
            body.append([way, _spread(own, value, form), *[""] * (len(matchings) - 1)])
    methods = {method: _where(merged, way=method) for method in _values(merged, "way")}
    for method, own in methods.items():
        cells = [_where(own, matching=matching) for matching in matchings]
        body.append([method, *(_spread(cell, value, form) + _layers(cell) for cell in cells)])
    alike = {frozenset((row["matching"], _merge(row)) for row in own) for own in methods.values()}
    if len(methods) > 1 and len(alike) == 1:  # else the means would be of other merges
        methods["mean"] = merged
        body.append(["mean", *(_spread(_where(merged, matching=matching), value, form) for matching in matchings)])
    lines = _table([what, *matchings], body)
    if len(matchings) > 1:
        # few are steps of one way, from none to full; many stand side by side
        pairs = [*pairwise(matchings)] if len(matchings) <= STEPS else [(matchings[0], one) for one in matchings[1:]]
        gains = [
            [method, *(_gain(own, before, after, value, form) for before, after in pairs)]
            for method, own in methods.items()
        ]
        lines += _table(["difference", *(f"{after} - {before}" for before, after in pairs)], gains)
    for method in _values([row for row in rows if row.get("matching") in swept], "way"):
        own = [row for row in rows if row["way"] == method and row.get("matching") in swept]
        names = _values(own, "matching")
        depth = max(_depth(row["layers"]) for row in own)
        body = [[str(count), *(_at(own, name, count, value, form) for name in names)] for count in range(depth + 1)]
        lines += _table([f"{method}: layer k; the first, or last, k + 1", *names], body)
    return lines


def summary(measured: Path) -> str:
    """What full adds to the paper's symmetry, wherever models have starts of their own, and how often that is sure."""
    found = []
    for file in sorted(measured.glob("*.json")):
        item = json.loads(file.read_text("utf-8"))
        both = [row for row in item["rows"] if row.get("matching") in ("paper", "full") and "way" in row]
        own = [row for row in both if row["models"] != ONE_START and row.get("split") != "dev"]
        for models, size, metric, way in dict.fromkeys(
            (row["models"], len(row["group"]), row["metric_name"], row["way"]) for row in own
        ):
            rows = [row for row in _where(own, models=models, metric_name=metric, way=way) if len(row["group"]) == size]
            if {row["matching"] for row in rows} != {"paper", "full"}:
                continue
            points = _gains(rows, "paper", "full", lambda row: 100 * row["metric"])
            loss = _gains(rows, "paper", "full", lambda row: row["loss"])
            # what is measured again, by more threads or fewer, is the same but for rounding
            merges = {(way, merge, round(gain, 4), round(loss[merge], 4)) for merge, gain in points.items()}
            what = f"{models}, {size} at once" if size > 2 else models
            found.append((merges, [item["item"], what, metric, way], [*points.values()], [*loss.values()]))
    body, sure = [], dict.fromkeys(("ahead", "ahead in loss", "behind", "behind in loss"), 0)
    for place, (merges, names, points, loss) in enumerate(found):
        later = [others for others, *_ in found[place + 1 :]]
        if merges in later or any(merges < others for others, *_ in found):
            continue  # part of another row: some items repeat merges of a larger one, or all of them
        for kind, better in (("", points), (" in loss", [-x for x in loss])):
            sure[f"ahead{kind}"] += mean(better) > _bound(better)
            sure[f"behind{kind}"] += -mean(better) > _bound(better)
        body.append([*names, str(len(points)), _shown(points, "{:.2f}"), _shown(loss, "{:.3f}")])
    lines = _table(["", "models", "metric", "method", "merges", "full - paper, points", "in loss"], body)
    counts = ", ".join(f"{count} {kind}" for kind, count in sure.items())
    lines.append(f"Of {len(body)} rows by more than what chance gives once in {1 / CHANCE:.0f}: {counts}.")
    return "\n".join(lines) + "\n"


def paths(rows: Rows) -> list[str]:
    """The barrier, and what is in the middle; means over all lines."""
    body = []
    for matching in _values(rows, "matching"):
        own = _where(rows, matching=matching)
        barrier = _spread(own, lambda row: row["barrier"], "{:.3f}")
        loss = _spread(own, lambda row: row["midpoint"]["loss"], "{:.3f}")
        body.append([matching, barrier, loss, _spread(own, lambda row: 100 * row["midpoint"]["metric"], "{:.2f}")])
    return _table(["matching", "barrier", "loss in the middle", "metric in the middle, %"], body)


def distances(rows: Rows) -> list[str]:
    """Distances, and whether the moved model is still itself."""
    body = []
    for matching in _values(rows, "matching"):
        own = _where(rows, matching=matching)
        verdicts = {True: "yes", False: "no", None: "cannot be told"}
        body.append(
            [
                matching,
                _spread(own, lambda row: row["distance_files"], "{:.3f}"),
                _spread(own, lambda row: row["distance_canonical"], "{:.3f}"),
                ", ".join(dict.fromkeys(verdicts[row["kept"]] for row in own)),
                f"{max(_number(row['change']) for row in own):.0e}",
                _spread(own, lambda row: 100 * row["metric"], "{:.2f}"),
            ]
        )
    columns = ["", "distance of the files", "in canonical form", "same function", "change of logits", "metric, %"]
    return _table(columns, body)


def seconds(rows: Rows) -> list[str]:
    """Means over groups and seeds."""
    body = [
        [step, way, _spread(_where(rows, step=step, way=way), lambda row: row["seconds"], "{:.2f}")]
        for step in _values(rows, "step")
        for way in _values(_where(rows, step=step), "way")
    ]
    return _table(["step", "", "seconds"], body)


def varied(rows: Rows, matching: str) -> bool:
    """Whether one merge was tested with several layers matched; where a layer was chosen, it is tested once."""
    own = [row for row in rows if row.get("matching") == matching]
    first = [row for row in own if (_merge(row), row["way"]) == (_merge(own[0]), own[0]["way"])]
    return len({row.get("layers") for row in first}) > 1


def by_seed(rows: Rows, value: Callable[[Mapping[str, Any]], float]) -> list[float]:
    """Of every seed the mean over groups and tests."""
    return [mean(_number(value(row)) for row in _where(rows, seed=seed)) for seed in _values(rows, "seed")]


def _spread(rows: Rows, value: Callable[[Mapping[str, Any]], float], form: str) -> str:
    """Mean and standard deviation over seeds."""
    values = by_seed(rows, value)
    if not values:
        return ""
    return form.format(mean(values)) + (f" ± {form.format(stdev(values))}" if len(values) > 1 else "")


def _gain(rows: Rows, before: str, after: str, value: Callable[[Mapping[str, Any]], float], form: str) -> str:
    """The mean difference of the same merge, its standard error, and how often it is above zero."""
    gains = [*_gains(rows, before, after, value).values()]
    return f"{_shown(gains, form)} ({sum(gain > 0 for gain in gains)} of {len(gains)} up)" if gains else ""


def _gains(
    rows: Rows, before: str, after: str, value: Callable[[Mapping[str, Any]], float]
) -> dict[tuple[Any, ...], float]:
    """The difference between two matchings of every merge, in the mean over its tests."""
    start, end = (_merges(_where(rows, matching=name), value) for name in (before, after))
    return {merge: end[merge] - start[merge] for merge in start if merge in end}


def _merges(rows: Rows, value: Callable[[Mapping[str, Any]], float]) -> dict[tuple[Any, ...], float]:
    """Of every merge the mean over its tests, which are not independent."""
    tests: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        tests.setdefault(_merge(row), []).append(value(row))
    return {merge: mean(values) for merge, values in tests.items()}


def _shown(gains: Sequence[float], form: str) -> str:
    error = f" ± {form.format(_error(gains))}" if len(gains) > 1 else ""
    return form.replace(":", ":+").format(mean(gains)) + error


def _bound(gains: Sequence[float]) -> float:
    """What a mean differs from zero by chance, as if merges were independent: of Student's t, two-sided."""
    return float(t.ppf(1 - CHANCE / 2, len(gains) - 1)) * _error(gains) if len(gains) > 1 else math.inf


def _error(gains: Sequence[float]) -> float:
    """The standard error of a mean, as if merges were independent."""
    return stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.inf


def _best(
    rows: Rows, value: Callable[[Mapping[str, Any]], float], better: Callable[..., Any]
) -> list[Mapping[str, Any]]:
    """Of the rows of one merge on one test the best."""
    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        alike.setdefault((_merge(row), row["test"]), []).append(row)
    return [better(own, key=value) for own in alike.values()]


def _merge(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row["group"]), row["seed"]


def _layers(rows: Rows) -> str:
    """Which layers were chosen."""
    found = _values(rows, "layers")
    return f" (layer {', '.join(found)})" if found else ""


def _at(rows: Rows, matching: str, count: int, value: Callable[[Mapping[str, Any]], float], form: str) -> str:
    own = [row for row in rows if row["matching"] == matching and _depth(row["layers"]) == count]
    return _spread(own, value, form)


def _depth(layers: str) -> int:
    """A single layer's number; of a range one less than its length."""
    first, _, last = layers.partition("-")
    return int(last) - int(first) if last else int(first)


def _where(rows: Rows, **wanted: Any) -> list[Mapping[str, Any]]:
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def _values(rows: Rows, key: str) -> list[Any]:
    """The different ones, in the order in which they come."""
    return list(dict.fromkeys(row[key] for row in rows if key in row))


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def filled(page: str, measured: Path) -> str:
    """A page with the tables of all items that were measured."""

    def tables(item: str) -> str:
        if item == "summary":
            return summary(measured)
        file = measured / f"{item}.json"
        missing = f"Not measured yet: `python experiments/run.py {item}`.\n"
        return markdown(json.loads(file.read_text("utf-8"))) if file.exists() else missing

    return pages.filled(page, tables)


def main() -> None:
    """Fill the page."""
    page = DOCS / "paper.md"
    page.write_text(filled(page.read_text("utf-8"), DOCS / "measured"), "utf-8")


if __name__ == "__main__":
    main()
