"""Measured results as pictures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from cobasin.evaluation.path import LossPath
from cobasin.evaluation.plots import COLOURS, plot_paths
from cobasin.evaluation.tasks import METRICS
from experiment import Experiment
from means import Rows, by_seed, different, varied, where

ROW = 0.11  # inches of height that a matching has in a method's row


def draw(found: Mapping[str, Any], out: Path) -> list[Path]:
    """The pictures of an item, one for every setting (of paths, for every first line); none of seconds."""
    rows, experiment = found["rows"], Experiment.model_validate(found["settings"])
    measure = experiment.measure
    made: list[Path] = []
    for setting in different(rows, "models"):
        own = where(rows, models=setting)
        path = out / f"{found['item']}-{re.sub(r'[^a-z0-9]+', '-', setting.lower())}.png"
        if path in made:  # settings that differ in other signs
            path = path.with_stem(f"{path.stem}-{len(made) + 1}")
        title = f"{found['title']}: {setting}"
        if measure == "paths":
            _paths(own, path, title, experiment)
        elif measure == "distances":
            _distances(own, path, title)
        elif measure == "scores":
            _scores(own, path, title)
        if path.exists():
            made.append(path)
    return made


def _paths(rows: Rows, path: Path, title: str, experiment: Experiment) -> None:
    """The lines between the first two models, on the first test."""
    first = rows[0]
    same = where(rows, **{key: first[key] for key in ("group", "seed", "test")})
    lines = {row["matching"]: LossPath(row["alphas"], row["loss"], row["metric"]) for row in same}
    data = experiment.used()[first["test"]]
    assert data.task is not None
    plot_paths(lines, path, f"{title}, {first['test']}", data.metric or METRICS[data.task])


def _distances(rows: Rows, path: Path, title: str) -> None:
    figure, (axes,) = _axes(title, (8, 4.2))
    names = different(rows, "matching")
    for i, name in enumerate(names):
        own = where(rows, matching=name)
        kept = all(row["kept"] for row in own)
        bar = axes.barh(i, mean(row["distance_canonical"] for row in own), color=COLOURS[1 if kept else 0], height=0.6)
        axes.bar_label(bar, ["" if kept else "another function"], padding=4, fontsize=11)
    axes.set_yticks(range(len(names)), names, fontsize=12)
    axes.invert_yaxis()
    axes.set_xlabel("Euclidean distance of the weights, in one canonical form", fontsize=12)
    axes.margins(x=0.2)
    figure.savefig(path, dpi=150)


def _scores(rows: Rows, path: Path, title: str) -> None:
    """Every method with every matching, of most models at once; where layers were varied, the loss by layer instead."""
    most = max(len(row["group"]) for row in rows)
    rows = [row for row in rows if len(row["group"]) == most and row.get("split") != "dev"]
    merged = [row for row in rows if "matching" in row]
    names, ways = (different(merged, key) for key in ("matching", "way"))
    if any(varied(merged, name) for name in names):
        return _layers(merged, path, title)
    figure, (axes,) = _axes(title, (9, 1.6 + ROW * len(ways) * (len(names) + 1)))
    for i, name in enumerate(names):
        points = [where(merged, matching=name, way=way) for way in ways]
        values = [mean(by_seed(own, lambda row: 100 * row["metric"])) for own in points]
        again, colour = divmod(i, len(COLOURS))  # where there are more than colours, in other shapes
        look: dict[str, Any] = {"marker": "oDs^"[again % 4], "color": COLOURS[colour], "markersize": 8}
        lines = np.arange(len(ways)) + (i - (len(names) - 1) / 2) / (len(names) + 1)  # below each other: none is hidden
        axes.plot(values, lines, linestyle="", label=name, **look)
    parents = where(rows, way="parents")
    axes.axvline(mean(by_seed(parents, lambda row: 100 * row["metric"])), color="black", linestyle=":", label="parents")
    axes.set_yticks(range(len(ways)), ways, fontsize=12)
    axes.set_ylim(len(ways) - 0.5, -0.5)
    axes.hlines(np.arange(1, len(ways)) - 0.5, 0, 1, transform=axes.get_yaxis_transform(), color="0.85", linewidth=0.8)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"{', '.join(different(rows, 'metric_name'))}, %", fontsize=12)
    axes.legend(fontsize=11, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=150)
    return None


def _layers(rows: Rows, path: Path, title: str) -> None:
    """A panel for every test."""
    tests = different(rows, "test")
    figure, panels = _axes(title, (1 + 5.5 * len(tests), 4.6), len(tests))
    for axes, test in zip(panels, tests, strict=True):
        for i, name in enumerate(different(rows, "matching")):
            own = where(rows, matching=name, test=test)
            layers = list(dict.fromkeys(row.get("layers") for row in own))
            at = [where(own, layers=place) for place in layers]
            values = [mean(by_seed(part, lambda row: row["loss"])) for part in at]
            colour = COLOURS[i % len(COLOURS)]
            if layers == [None]:
                axes.axhline(values[0], color=colour, linestyle=":", label=name)
            else:
                axes.plot(range(len(layers)), values, "o-", color=colour, label=name)
                axes.set_xticks(range(len(layers)))
        axes.set_title(test, fontsize=12, loc="left")
        axes.set_xlabel("layer, or one less than their number", fontsize=12)
        axes.set_ylabel("evaluation loss", fontsize=12)
        axes.legend(fontsize=11, frameon=False)
    figure.savefig(path, dpi=150)


def _axes(title: str, size: tuple[float, float], count: int = 1) -> tuple[Any, list[Any]]:
    """A figure, and its panels side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, fontsize=13)
    panels = list(figure.subplots(1, count, squeeze=False)[0])
    for axes in panels:
        axes.set_axisbelow(True)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels
