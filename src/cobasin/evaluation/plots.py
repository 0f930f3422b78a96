"""Pictures of loss paths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cobasin.evaluation.path import LossPath

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, told apart under every common colour blindness.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def plot_paths(paths: Mapping[str, LossPath], out: Path, title: str, metric_name: str) -> None:
    """Draw loss and metric along the line, a labelled curve for each path; the suffix of `out` is the format.

    Raises:
        ValueError: matplotlib does not know the format.
    """
    # A figure of its own canvas: pyplot would keep global state, and open a window system.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=14)
    for axes, quantity in zip(figure.subplots(1, 2), ("loss", "metric"), strict=True):
        _panel(axes, {label: np.array(getattr(path, quantity)) for label, path in paths.items()}, paths)
        axes.set_title("loss" if quantity == "loss" else metric_name, fontsize=13, loc="left")
    figure.savefig(out, dpi=150)


def _panel(axes: Axes, curves: Mapping[str, np.ndarray], paths: Mapping[str, LossPath]) -> None:
    low, high = min(map(np.min, curves.values())), max(map(np.max, curves.values()))
    height = (high - low) or 1.0
    axes.set_ylim(low - 0.08 * height, high + 0.12 * height)
    for (label, values), colour in zip(curves.items(), _cycle(len(curves)), strict=True):
        alphas = np.array(paths[label].alphas)
        axes.plot(alphas, values, color=colour, linewidth=2.2, marker="o", markersize=3.5)
        others = [
            np.interp(alphas, paths[key].alphas, other) for key, other in curves.items() if key != label
        ]
        x, y, above = _free_spot(alphas, values, others)
        axes.annotate(
            label,
            (x, y),
            xytext=(0, 7 if above else -7),
            textcoords="offset points",
            ha="center",
            va="bottom" if above else "top",
            color=colour,
            fontsize=12,
            fontweight="bold",
        )
    axes.set_xlabel("share of the second model", fontsize=12)
    axes.tick_params(labelsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _free_spot(alphas: np.ndarray, values: np.ndarray, others: list[np.ndarray]) -> tuple[float, float, bool]:
    """Where a curve lies farthest from the others, off the ends, and whether there is more room above."""
    inner = np.flatnonzero((alphas >= 0.2) & (alphas <= 0.8))
    if not others:
        middle = inner[len(inner) // 2]
        return alphas[middle], values[middle], True
    gaps = np.stack(others)[:, inner] - values[inner]
    best = np.abs(gaps).min(axis=0).argmax()
    above, below = gaps[:, best][gaps[:, best] >= 0], -gaps[:, best][gaps[:, best] < 0]
    room_above = above.min() if above.size else np.inf
    room_below = below.min() if below.size else np.inf
    return alphas[inner[best]], values[inner[best]], bool(room_above >= room_below)


def _cycle(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]
