"""Measured results as Markdown, and with their pictures into the page docs/paper.md: python experiments/tables.py.

The page has a block for every item, between ``<!-- measured: ITEM -->`` and ``<!-- end -->``: the tables of
``docs/measured/ITEM.json``, as ``experiments/run.py`` writes it; and one for the `summary` of all.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from common import pages  # noqa: E402
from common.pages import table as _table  # noqa: E402
from means import (  # noqa: E402
    CHANCE,
    Rows,
    Value,
    best_of,
    bound,
    by_seed,
    depth_of,
    different,
    gained,
    merge_of,
    number,
    standard_error,
    varied,
    where,
)
from pictures import draw  # noqa: E402

STEPS = 3
DOCS = ROOT / "docs"
ONE_START = "one start"  # of fine-tunes that matching finds as they are


def markdown(found: Mapping[str, Any]) -> str:
    """The tables of an item, and how they were measured."""
    rows, measure = found["rows"], found["settings"].get("measure", "scores")
    tables = {"scores": scores, "paths": paths, "distances": distances, "seconds": seconds}[measure]
    lines = [f"**{found['title']}**", ""]
    for setting in different(rows, "models"):
        lines += [f"*{setting}*", "", *tables(where(rows, models=setting))]
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
        for test in different(of_size, "test") if apart else [None]:
            part = [row for row in of_size if test in (None, row["test"])]
            what = f"{part[0]['metric_name']}, %" + (f", {test}" if test else "") + f"; {size} models at once"
            lines += _scores(part, what, lambda row: 100 * row["metric"], "{:.2f}", max)
            lines += _scores(part, "loss" + (f", {test}" if test else ""), lambda row: row["loss"], "{:.3f}", min)
    return lines


def _scores(rows: Rows, what: str, value: Value, form: str, better: Callable[..., Any]) -> list[str]:
    swept = {matching for matching in different(rows, "matching") if varied(rows, matching)}
    merged = [row for row in rows if "matching" in row and row["matching"] not in swept]
    matchings = different(merged, "matching")
    body = []
    parents = where(rows, way="parents")
    best = best_of(parents, value, better)  # of those of one merge, where all are tested on the same data
    alone = {"parents": parents, "best parent": best if len(best) < len(parents) else []}
    for way, own in (alone | {"ensemble": where(rows, way="ensemble")}).items():
        if own:
            body.append([way, _spread(own, value, form), *[""] * (len(matchings) - 1)])
    methods = {method: where(merged, way=method) for method in different(merged, "way")}
    for method, own in methods.items():
        cells = [where(own, matching=matching) for matching in matchings]
        body.append([method, *(_spread(cell, value, form) + _layers(cell) for cell in cells)])
    alike = {frozenset((row["matching"], merge_of(row)) for row in own) for own in methods.values()}
    if len(methods) > 1 and len(alike) == 1:  # else the means would be of other merges
        methods["mean"] = merged
        body.append(["mean", *(_spread(where(merged, matching=matching), value, form) for matching in matchings)])
    lines = _table([what, *matchings], body)
    if len(matchings) > 1:
        # few are steps of one way, from none to full; many stand side by side
        pairs = [*pairwise(matchings)] if len(matchings) <= STEPS else [(matchings[0], one) for one in matchings[1:]]
        gains = [
            [method, *(_gain(own, before, after, value, form) for before, after in pairs)]
            for method, own in methods.items()
        ]
        lines += _table(["difference", *(f"{after} - {before}" for before, after in pairs)], gains)
    for method in different([row for row in rows if row.get("matching") in swept], "way"):
        own = [row for row in rows if row["way"] == method and row.get("matching") in swept]
        names = different(own, "matching")
        depth = max(depth_of(row["layers"]) for row in own)
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
            rows = [row for row in where(own, models=models, metric_name=metric, way=way) if len(row["group"]) == size]
            if {row["matching"] for row in rows} != {"paper", "full"}:
                continue
            points = gained(rows, "paper", "full", lambda row: 100 * row["metric"])
            loss = gained(rows, "paper", "full", lambda row: row["loss"])
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
            sure[f"ahead{kind}"] += mean(better) > bound(better)
            sure[f"behind{kind}"] += -mean(better) > bound(better)
        body.append([*names, str(len(points)), _shown(points, "{:.2f}"), _shown(loss, "{:.3f}")])
    lines = _table(["", "models", "metric", "method", "merges", "full - paper, points", "in loss"], body)
    counts = ", ".join(f"{count} {kind}" for kind, count in sure.items())
    lines.append(f"Of {len(body)} rows by more than what chance gives once in {1 / CHANCE:.0f}: {counts}.")
    return "\n".join(lines) + "\n"


def paths(rows: Rows) -> list[str]:
    """The barrier, and what is in the middle; means over all lines."""
    body = []
    for matching in different(rows, "matching"):
        own = where(rows, matching=matching)
        barrier = _spread(own, lambda row: row["barrier"], "{:.3f}")
        loss = _spread(own, lambda row: row["midpoint"]["loss"], "{:.3f}")
        body.append([matching, barrier, loss, _spread(own, lambda row: 100 * row["midpoint"]["metric"], "{:.2f}")])
    return _table(["matching", "barrier", "loss in the middle", "metric in the middle, %"], body)


def distances(rows: Rows) -> list[str]:
    """Distances, and whether the moved model is still itself."""
    body = []
    for matching in different(rows, "matching"):
        own = where(rows, matching=matching)
        verdicts = {True: "yes", False: "no", None: "cannot be told"}
        body.append(
            [
                matching,
                _spread(own, lambda row: row["distance_files"], "{:.3f}"),
                _spread(own, lambda row: row["distance_canonical"], "{:.3f}"),
                ", ".join(dict.fromkeys(verdicts[row["kept"]] for row in own)),
                f"{max(number(row['change']) for row in own):.0e}",
                _spread(own, lambda row: 100 * row["metric"], "{:.2f}"),
            ]
        )
    columns = ["", "distance of the files", "in canonical form", "same function", "change of logits", "metric, %"]
    return _table(columns, body)


def seconds(rows: Rows) -> list[str]:
    """Means over groups and seeds."""
    body = [
        [step, way, _spread(where(rows, step=step, way=way), lambda row: row["seconds"], "{:.2f}")]
        for step in different(rows, "step")
        for way in different(where(rows, step=step), "way")
    ]
    return _table(["step", "", "seconds"], body)


def _spread(rows: Rows, value: Value, form: str) -> str:
    """Mean and standard deviation over seeds."""
    values = by_seed(rows, value)
    if not values:
        return ""
    return form.format(mean(values)) + (f" ± {form.format(stdev(values))}" if len(values) > 1 else "")


def _gain(rows: Rows, before: str, after: str, value: Value, form: str) -> str:
    """The mean difference of the same merge, its standard error, and how often it is above zero."""
    gains = [*gained(rows, before, after, value).values()]
    return f"{_shown(gains, form)} ({sum(gain > 0 for gain in gains)} of {len(gains)} up)" if gains else ""


def _shown(gains: Sequence[float], form: str) -> str:
    error = f" ± {form.format(standard_error(gains))}" if len(gains) > 1 else ""
    return form.replace(":", ":+").format(mean(gains)) + error


def _layers(rows: Rows) -> str:
    """Which layers were chosen."""
    found = different(rows, "layers")
    return f" (layer {', '.join(found)})" if found else ""


def _at(rows: Rows, matching: str, count: int, value: Value, form: str) -> str:
    own = [row for row in rows if row["matching"] == matching and depth_of(row["layers"]) == count]
    return _spread(own, value, form)


def filled(page: str, measured: Path) -> str:
    """A page with the tables of all items that were measured."""

    def tables(item: str) -> str:
        if item == "summary":
            return summary(measured)
        file = measured / f"{item}.json"
        missing = f"Not measured yet: `python experiments/run.py {item}`.\n"
        return markdown(json.loads(file.read_text("utf-8"))) if file.exists() else missing

    return pages.filled(page, tables)


def _draw(page: str, measured: Path) -> None:
    """The pictures that the page shows."""
    shown = set(re.findall(r"images/paper/([\w-]+\.png)", page))
    with TemporaryDirectory() as folder:
        for file in measured.glob("*.json"):
            for picture in draw(json.loads(file.read_text("utf-8")), Path(folder)):
                if picture.name in shown:
                    shutil.copy(picture, DOCS / "images" / "paper")


def main() -> None:
    """Fill the page."""
    page, measured = DOCS / "paper.md", DOCS / "measured"
    page.write_text(filled(page.read_text("utf-8"), measured), "utf-8")
    _draw(page.read_text("utf-8"), measured)


if __name__ == "__main__":
    main()
