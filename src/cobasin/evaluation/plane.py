"""The loss on the plane through three models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.errors import InputError, shown, whole
from cobasin.evaluation.blend import Blend
from cobasin.evaluation.path import Evaluate, finite, scored

MARGIN = 0.2  # how far the grid goes beyond the models, as a share of the largest extent
GRID, SMALLEST_GRID, LARGEST_GRID = 15, 3, 999  # points a side
_FLAT = 1e-5  # relative height of a triangle that is none: matching moves tensors in float32, which leaves up to 3e-6
_ROUNDING = 0.5  # of the spacing of the files' numbers: what rounding makes of a third model between two others


@dataclass(frozen=True)
class LossPlane:
    """Loss and metric on a grid over the plane through three models.

    Attributes:
        x, y: the grid, in units of Euclidean distance between weights: x from the first model towards the second,
            y at right angles to that towards the third.
        loss, metric: by row (y), then column (x).
        corners: where the three models are, (x, y).
        ends: their loss and metric; the grid need not meet them.
    """

    x: list[float]
    y: list[float]
    loss: list[list[float]]
    metric: list[list[float]]
    corners: list[tuple[float, float]]
    ends: list[tuple[float, float]]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; None for what is not finite."""
        tables = {"loss": self.loss, "metric": self.metric}
        rows = {name: [[finite(value) for value in row] for row in table] for name, table in tables.items()}
        models = [
            {"x": x, "y": y, "loss": finite(loss), "metric": finite(metric)}
            for (x, y), (loss, metric) in zip(self.corners, self.ends, strict=True)
        ]
        return {"x": self.x, "y": self.y, **rows, "models": models}


def loss_plane(
    models: Sequence[Any],
    evaluate: Evaluate,
    grid: int = GRID,
    device: torch.device | str = "cpu",
) -> LossPlane:
    """Evaluate models on the plane through three.

    The plane has an orthonormal basis: u along b - a, v along what is left of c - a (Garipov et al., "Loss
    Surfaces, Mode Connectivity, and Fast Ensembling of DNNs", 2018; Izmailov et al., "Averaging Weights Leads to
    Wider Optima and Better Generalization", 2018).

    Args:
        models: three, anything `cobasin.load` takes.
        evaluate: as in `loss_path`.
        grid: points a side.
        device: as in `loss_path`.

    Raises:
        InputError: fewer than three points a side; not three models; the models lie on one line; as `loss_path`.
    """
    check_grid(grid)
    if not isinstance(models, Sequence) or len(models) != 3:
        raise InputError(f"a plane goes through three models, got {shown(models)}")
    opened = [load(model) for model in models]
    blend = Blend(opened, device)
    along, across = [-1.0, 1.0, 0.0], [-1.0, 0.0, 1.0]
    base = math.sqrt(blend.inner(along, along))
    share = blend.inner(along, across) / base**2 if base else 0.0  # of b - a in c - a
    upright = [c - share * b for b, c in zip(along, across, strict=True)]
    height = math.sqrt(blend.inner(upright, upright))
    size = math.sqrt(blend.inner([1.0, 0.0, 0.0], [1.0, 0.0, 0.0]))
    rounding = _ROUNDING * max(model.rounding for model in opened) * size
    if height <= max(_FLAT * base, rounding) or not base:
        labels = ", ".join(model.label for model in opened)
        raise InputError(f"{labels}: lie on one line in weights, so there is no plane through them")
    corners = [(0.0, 0.0), (base, 0.0), (share * base, height)]
    xs, ys = _square(corners, grid)

    def at(x: float, y: float) -> tuple[float, float]:
        third = y / height
        second = x / base - share * third
        return scored(evaluate, blend.at([1 - second - third, second, third]))

    ends = [at(*corner) for corner in corners]
    results = [[at(x, y) for x in xs] for y in ys]
    loss, metric = ([[point[i] for point in row] for row in results] for i in (0, 1))
    return LossPlane(xs, ys, loss, metric, corners, ends)


def check_grid(grid: int) -> None:
    """Raise InputError for a grid of too few points, or of more than could be evaluated."""
    if not whole(grid) or not SMALLEST_GRID <= grid <= LARGEST_GRID:
        raise InputError(
            f"{shown(grid)} points a side of the plane: expected a whole number from {SMALLEST_GRID} to {LARGEST_GRID}"
        )


def _square(corners: Sequence[tuple[float, float]], count: int) -> tuple[list[float], list[float]]:
    """The grid: a square with all corners well inside."""
    ends = [(min(values), max(values)) for values in zip(*corners, strict=True)]
    half = (0.5 + MARGIN) * max(high - low for low, high in ends)
    middles = [(low + high) / 2 for low, high in ends]
    xs, ys = (torch.linspace(m - half, m + half, count, dtype=torch.float64).tolist() for m in middles)
    return xs, ys
