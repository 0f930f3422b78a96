"""Loss along the straight line between two models, and the barrier on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.errors import InputError, shown, whole
from cobasin.evaluation.blend import Blend

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MOST_POINTS = 9999

Evaluate = Callable[["PreTrainedModel"], tuple[float, float]]
"""Measures loss and metric of a model."""


@dataclass(frozen=True)
class LossPath:
    """Loss and metric at `alphas`, the share of the second model: 0 is the first alone, 1 the second."""

    alphas: list[float]
    loss: list[float]
    metric: list[float]

    @property
    def barrier(self) -> float:
        """The most by which the loss lies above the line between the losses of the ends; zero or more."""
        alphas, loss = np.array(self.alphas), np.array(self.loss)
        with np.errstate(invalid="ignore"):  # infinite losses have no barrier between them
            return float(np.max(loss - ((1 - alphas) * loss[0] + alphas * loss[-1])))

    @property
    def midpoint(self) -> tuple[float, float]:
        """Loss and metric of the plain average."""
        middle = len(self.alphas) // 2
        return self.loss[middle], self.metric[middle]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; None for what is not finite."""
        loss, metric = self.midpoint
        return {
            "alphas": self.alphas,
            "loss": [finite(value) for value in self.loss],
            "metric": [finite(value) for value in self.metric],
            "barrier": finite(self.barrier),
            "midpoint": {"loss": finite(loss), "metric": finite(metric)},
        }


def loss_path(
    a: Any,
    b: Any,
    evaluate: Evaluate,
    points: int = 25,
    device: torch.device | str = "cpu",
) -> LossPath:
    """Evaluate the models (1 - alpha) a + alpha b at evenly spaced alphas, ends and midpoint among them.

    See Frankle et al., "Linear Mode Connectivity and the Lottery Ticket Hypothesis" (2020), for the barrier.

    Args:
        a, b: anything `cobasin.load` takes.
        evaluate: takes a float32 model on ``device`` in evaluation mode, of `a`'s class and config, and returns
            loss and metric. The model is changed for the next point.
        points: how many.
        device: where the models are; ``auto`` leaves it to accelerate.

    Raises:
        InputError: `points` is even or below three; there is no such device; the checkpoints differ in names, shapes,
            settings or labels.
    """
    check_points(points)
    blend = Blend([load(a), load(b)], device)
    alphas = [i / (points - 1) for i in range(points)]
    results = [scored(evaluate, blend.at([1 - alpha, alpha])) for alpha in alphas]
    return LossPath(alphas, [loss for loss, _ in results], [metric for _, metric in results])


def scored(evaluate: Evaluate, model: PreTrainedModel) -> tuple[float, float]:
    """Loss and metric of a model.

    Raises:
        InputError: `evaluate` is no function, or returns anything else.
    """
    if not callable(evaluate):
        raise InputError(f"evaluate {shown(evaluate)}: expected a function that returns loss and metric of a model")
    given = evaluate(model)
    try:
        loss, metric = given
        return float(loss), float(metric)
    except (TypeError, ValueError):
        raise InputError(f"evaluate returned {shown(given)}; expected two numbers, loss and metric") from None


def check_points(points: int) -> None:
    """Raise InputError unless the midpoint is one of so many points, and they come to an end."""
    if not whole(points) or not 3 <= points <= MOST_POINTS or points % 2 == 0:
        raise InputError(
            f"{shown(points)} points on the path: expected an odd number from 3 to {MOST_POINTS}, so that the midpoint "
            "is one"
        )


def finite(value: float) -> float | None:
    """A number for JSON, which knows no NaN and no infinity."""
    return value if math.isfinite(value) else None
