"""Pictures of loss paths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cobasin.evaluation.path import LossPath

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg

# Okabe and Ito's palette, told apart under every common colour blindness.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def plot_paths(paths: Mapping[str, LossPath], out: Path, title: str, metric_name: str) -> None:
    """Draw loss and metric along the line, a labelled curve for each path; the suffix of `out` is the format.

    Raises:
        ValueError: matplotlib does not know the format.
    """
    # A figure with a canvas of its own: pyplot would keep global state and may ask for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=14)
    panels = figure.subplots(1, 2)
    for axes, quantity, heading in zip(panels, ("loss", "metric"), ("loss", metric_name), strict=True):
        for i, path in enumerate(paths.values()):
            axes.plot(
                path.alphas,
                getattr(path, quantity),
                color=_colour(i),
                linewidth=2.2,
                marker="o",
                markersize=3.5,
            )
        axes.set_title(heading, fontsize=13, loc="left")
        axes.set_xlabel("share of the second model", fontsize=12)
        axes.tick_params(labelsize=11)
        axes.margins(y=0.12)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    # Labels are placed between the curves, so the layout has to be settled first.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in panels:
        _label_curves(canvas, axes, list(paths))
    figure.savefig(out, dpi=150)


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _label_curves(canvas: FigureCanvasAgg, axes: Axes, labels: list[str]) -> None:
    """Write each label beside its curve, where it hides no curve and no label and is far from others."""
    curves = [_dense(axes.transData.transform(line.get_xydata())) for line in axes.lines]
    frame = axes.get_window_extent().get_points()
    taken: list[np.ndarray] = []
    for i, label in enumerate(labels):
        text = axes.text(0, 0, label, color=_colour(i), fontsize=12, fontweight="bold", ha="center", va="center")
        extent = text.get_window_extent(canvas.get_renderer())
        half = np.array([extent.width, extent.height]) / 2
        others = np.concatenate([curve for j, curve in enumerate(curves) if j != i] or [np.empty((0, 2))])

        def cost(centre: np.ndarray, half: np.ndarray = half, others: np.ndarray = others) -> float:
            low, high = centre - half - 2, centre + half + 2
            hidden = sum(((curve > low) & (curve < high)).all(1).sum() for curve in curves)
            covered = sum((low < box[1]).all() and (high > box[0]).all() for box in taken)
            outside = (low < frame[0]).any() or (high > frame[1]).any()
            # Distances beyond a few letters make no label clearer.
            gap = np.clip(np.abs(others - centre) - half, 0, None)
            clear = np.hypot(*gap.T).min(initial=60.0)
            return 10 * hidden + 1000 * (covered + outside) - clear

        around = np.array([(0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1)]) * (half + 7)
        # The ends are where the curves meet.
        inner = curves[i][len(curves[i]) // 8 : -len(curves[i]) // 8]
        centre = min((point + step for point in inner[::5] for step in around), key=cost)
        x, y = axes.transData.inverted().transform(centre)
        text.set_position((float(x), float(y)))
        taken.append(np.stack([centre - half, centre + half]))


def _dense(points: np.ndarray) -> np.ndarray:
    """Two hundred points along a polygon [n, 2], evenly spaced along the horizontal axis."""
    x = np.linspace(points[0, 0], points[-1, 0], 200)
    return np.stack([x, np.interp(x, points[:, 0], points[:, 1])], 1)
