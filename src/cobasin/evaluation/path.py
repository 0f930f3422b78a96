"""Loss along the straight line between two models, and the barrier on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cobasin.checkpoint import Checkpoint
from cobasin.errors import InputError
from cobasin.evaluation.running import build, cast_floats

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
        return float(np.max(loss - ((1 - alphas) * loss[0] + alphas * loss[-1])))

    @property
    def midpoint(self) -> tuple[float, float]:
        """Loss and metric of the plain average."""
        middle = len(self.alphas) // 2
        return self.loss[middle], self.metric[middle]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        loss, metric = self.midpoint
        return {
            "alphas": self.alphas,
            "loss": self.loss,
            "metric": self.metric,
            "barrier": self.barrier,
            "midpoint": {"loss": loss, "metric": metric},
        }


def loss_path(
    a: Checkpoint,
    b: Checkpoint,
    evaluate: Callable[[PreTrainedModel], tuple[float, float]],
    points: int = 25,
) -> LossPath:
    """Evaluate the models (1 - alpha) a + alpha b at evenly spaced alphas, ends and midpoint among them.

    `evaluate` takes a float32 model in evaluation mode, of `a`'s class and config, and returns loss and
    metric. Tensors are interpolated in float32; integer tensors stay those of `a`.  See Frankle et al.,
    "Linear Mode Connectivity and the Lottery Ticket Hypothesis" (2020), for the barrier.

    Raises:
        InputError: `points` is even or below three, or the checkpoints differ in names or shapes.
    """
    if points < 3 or points % 2 == 0:
        raise InputError(f"{points} points on the path: expected an odd number from 3, so that the midpoint is one")
    if lonely := sorted(set(a) ^ set(b)):
        owner = a if lonely[0] in a else b
        raise InputError(f"only {owner.label} has {lonely[0]}: no straight line between {a.label} and {b.label}")
    for name in a:
        left, right = list(a.headers[name].shape), list(b.headers[name].shape)
        if left != right:
            raise InputError(f"{name} has shape {left} in {a.label} and {right} in {b.label}: no line between them")

    alphas = [i / (points - 1) for i in range(points)]
    results = [evaluate(_between(a, b, alpha)) for alpha in alphas]
    return LossPath(alphas, [float(loss) for loss, _ in results], [float(metric) for _, metric in results])


def _between(a: Checkpoint, b: Checkpoint, alpha: float) -> PreTrainedModel:
    state = {}
    for name in a:
        state[name] = cast_floats(a[name], torch.float32)
        if state[name].is_floating_point():
            state[name].lerp_(b[name].to(torch.float32), alpha)
    return build(a, state, torch.float32)
