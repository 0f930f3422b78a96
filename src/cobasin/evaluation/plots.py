"""Pictures of loss paths, planes and comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cobasin.evaluation.path import LossPath

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.patheffects import AbstractPathEffect

    from cobasin.comparing.compare import Comparison
    from cobasin.evaluation.plane import LossPlane

# Okabe and Ito's palette, told apart under every common colour blindness.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
CONTOURS = 17
TICKS = 25  # layers that are named beside their distances
LABELLED = 4  # curves that have their labels beside them; among more there is no room


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
    figure.suptitle(title, fontsize=14, parse_math=False)
    panels = figure.subplots(1, 2)
    for axes, quantity, heading in zip(panels, ("loss", "metric"), ("loss", metric_name), strict=True):
        for i, (label, path) in enumerate(paths.items()):
            axes.plot(
                path.alphas,
                getattr(path, quantity),
                label=label,
                color=_colour(i),
                linewidth=2.2,
                marker="o",
                markersize=3.5,
            )
        axes.set_title(heading, fontsize=13, loc="left")
        axes.set_xlabel("share of the second model", fontsize=12)
        axes.margins(y=0.12)
        _open_frame(axes)
    if len(paths) > LABELLED:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=12)
    # Labels are placed between the curves, so the layout has to be settled first.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in panels if len(paths) <= LABELLED else ():
        _label_curves(canvas, axes, list(paths))
    figure.savefig(out, dpi=150)


def _open_frame(axes: Axes) -> None:
    """A faint grid, and a frame without its top and right."""
    axes.grid(alpha=0.25)
    axes.tick_params(labelsize=11)
    axes.spines[["top", "right"]].set_visible(False)


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _label_curves(canvas: FigureCanvasAgg, axes: Axes, labels: list[str]) -> None:
    """Write each label beside its curve, where it hides no curve and no label and is far from others."""
    lines = [np.array(line.get_xydata()) for line in axes.lines]
    curves = [_dense(axes.transData.transform(points[np.isfinite(points).all(1)])) for points in lines]
    frame = axes.get_window_extent().get_points()
    taken: list[np.ndarray] = []
    for i, label in enumerate(labels):
        if not len(curves[i]):  # no point of it is a number
            continue
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
    """Two hundred points along a polygon [n, 2], evenly spaced along the horizontal axis; none along none."""
    if not len(points):
        return points
    x = np.linspace(points[0, 0], points[-1, 0], 200)
    return np.stack([x, np.interp(x, points[:, 0], points[:, 1])], 1)


def plot_plane(plane: LossPlane, out: Path, labels: Sequence[str], metric_name: str) -> None:
    """Draw loss and metric on the plane through three models, which are marked; the suffix of `out` is the format.

    Contours are at quantiles, so that basins show beside walls of any height.
    """
    from matplotlib.colors import BoundaryNorm
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5.6), layout="constrained")
    named = [f"{letter}: {label}" for letter, label in zip("ABC", labels, strict=True)]
    figure.suptitle("The plane through three models\n" + "     ".join(named), fontsize=12, parse_math=False)
    panels = figure.subplots(1, 2)
    for i, (table, heading) in enumerate(((plane.loss, "loss"), (plane.metric, metric_name))):
        axes, values = panels[i], np.ma.masked_invalid(np.array(table))
        levels = np.unique(np.quantile(values.compressed(), np.linspace(0, 1, CONTOURS))) if values.count() else []
        if len(levels) > 1:
            colours = "viridis_r" if heading == "loss" else "viridis"  # bright is good
            norm = BoundaryNorm(levels, 256)
            filled = axes.contourf(plane.x, plane.y, values, levels=levels, cmap=colours, norm=norm)
            axes.contour(plane.x, plane.y, values, levels=levels, colors="white", linewidths=0.4, alpha=0.6)
            ticks = levels[::2]
            figure.colorbar(filled, ax=axes, format=f"%.{_digits(list(ticks))}g", ticks=ticks)
        digits = _digits([end[i] for end in plane.ends])
        for (x, y), end, letter in zip(plane.corners, plane.ends, "ABC", strict=True):
            axes.plot(x, y, "o", color="black", markersize=8, markeredgecolor="white")
            text = axes.annotate(
                f"{letter} {end[i]:.{digits}g}", (x, y), (7, 7), textcoords="offset points", fontsize=12
            )
            text.set_path_effects([_halo()])
        axes.set_title(heading, fontsize=13, loc="left")
        axes.set_xlabel("distance from A towards B", fontsize=11)
        axes.set_ylabel("distance at right angles, towards C", fontsize=11)
        axes.set_aspect("equal")
    figure.savefig(out, dpi=150)


def _digits(values: Sequence[float]) -> int:
    """How many digits tell these values apart: three or more, unless they are equal or nearly so."""
    distinct = len(set(values))
    return next((digits for digits in range(3, 8) if len({f"{x:.{digits}g}" for x in values}) == distinct), 3)


def _halo() -> AbstractPathEffect:
    """A light outline, which keeps dark text readable on any colour."""
    from matplotlib.patheffects import withStroke

    return withStroke(linewidth=3, foreground="white")


def plot_comparison(comparison: Comparison, out: Path, title: str) -> None:
    """Draw the distance of every layer, and the agreement by layer and in all; the suffix of `out` is the format."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(17, 5.2), layout="constrained")
    figure.suptitle(title, fontsize=14, parse_math=False)
    left, middle, right = figure.subplots(1, 3)
    places = list(comparison.layers)
    stages = {
        "files": (COLOURS[4], "of the files"),
        "before": (COLOURS[0], "in canonical form"),
        "chance": ("#888888", "matched, by chance"),
        "after": (COLOURS[1], "matched"),
    }
    for stage, (colour, label) in stages.items():
        values = [comparison.layers[place][stage] for place in places]
        if None not in values:
            left.plot(values, range(len(places)), "o-", color=colour, linewidth=2, markersize=5, label=label)
    shown = range(0, len(places), -(-len(places) // TICKS))
    for axes in (left, middle):
        axes.set_yticks(shown, [places[i] for i in shown])
        axes.set_ylim(len(places) - 0.5, -0.5)
    left.set_xlim(0, max(1.05, left.get_xlim()[1]))
    left.axvline(1, color="black", linewidth=0.8, linestyle=":")
    left.set_title("distance of the layers", fontsize=13, loc="left")
    left.set_xlabel("relative distance (0: equal, 1: unrelated)", fontsize=12)
    for i, (space, found) in enumerate(comparison.spaces.items()):
        own = [place for place in places if place in found["layers"]]
        if own:
            medians = [float(np.median(found["layers"][place]["agreement"])) for place in own]
            middle.plot(
                medians, [places.index(place) for place in own], "o-", color=_colour(i), linewidth=2, label=space
            )
        share = np.linspace(0, 100, len(found["agreement"]))
        right.plot(share, found["agreement"], color=_colour(i), linewidth=2, label=space)
        if found["chance"] is not None:
            right.plot(share, found["chance"], color=_colour(i), linewidth=1.4, linestyle=":")
    if comparison.shared is not None:
        right.plot([], [], color="black", linewidth=1.4, linestyle=":", label="by chance")
    middle.set_xlim(min(0.0, middle.get_xlim()[0]), 1.03)
    middle.set_title("agreement by layer", fontsize=13, loc="left")
    middle.set_xlabel("median cosine of matched coordinates", fontsize=12)
    right.set_ylim(min(0.0, right.get_ylim()[0]), 1.03)
    right.set_title("agreement of matched coordinates, largest first", fontsize=13, loc="left")
    right.set_xlabel("% of the coordinates of a space", fontsize=12)
    right.set_ylabel("cosine", fontsize=12)
    for axes in (left, middle, right):
        if axes.lines:
            axes.legend(fontsize=11, frameon=False)
        _open_frame(axes)
    figure.savefig(out, dpi=150)
