"""Learning elements by the loss of the models between the models.

Any number of models A_i with elements g_i: what is trained is the mixture ``Σ w_i act(g_i, A_i)`` with random weights
about the middle, whose loss is that of its answers, against the mean answer of the A_i (no labels are needed, and
inputs may be made up) or against labels. Theus et al., *Generalized Linear Mode Connectivity for Transformers*
(NeurIPS 2025), learn two models so, with labels. The elements move inside their groups (`cobasin.matching.moves`), so
every A_i computes what it did at every step; orders of streams lie between the orders at first, but for held-out data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from cobasin.data import Batch
from cobasin.learning.answers import Memory, against_labels, against_mean, answers, mean_answer, mean_loss
from cobasin.learning.descent import LOOK, Data, Descent, descend
from cobasin.learning.in_memory import InMemory
from cobasin.matching.moves import Moves
from cobasin.progress import Looks, silent
from cobasin.symmetry.action import Values, act
from cobasin.symmetry.canonical import stored
from cobasin.symmetry.form import Form
from cobasin.symmetry.groups import Group, Value
from cobasin.symmetry.keys import Key
from cobasin.symmetry.state import State

Loss = Literal["parents", "labels"]

RATE = 1e-2
LOOKS = 40  # at the held-out data in a long run; in a short one every `LOOK` steps
PATIENCE = 10  # looks without a gain; the loss falls most while the rate does, so that is long
SPREAD = 0.2  # how far weights are from equal: of two models they are 0.4 to 0.6


@dataclass(frozen=True)
class Mixture:
    """Models in canonical form that are mixed, and run.

    Attributes:
        forms: of each.
        groups: of each the groups in which its keys move.
        states: of each its tensors by spec name, float32 and on the device.
        run: runs a model of theirs, on the device.
        task: as `cobasin.data.task_of` says.
        labels: whether the loss is against labels; against the models' own mean answer otherwise.
        taught: the mean answers that were computed before.
    """

    forms: Sequence[Form]
    groups: Sequence[Mapping[Key, Group]]
    states: Sequence[State]
    run: InMemory
    task: str
    labels: bool
    taught: Memory = field(default_factory=Memory)

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return next(iter(self.states[0].values())).device

    def moved(self, values: Sequence[Values], name: str) -> list[Tensor]:
        """A tensor of every model, moved by its element; what is folded is the same in all models, and stays."""
        own = [state[name] for state in self.states]
        if name in self.forms[0].norm_parameters or name in self.forms[0].scale_parameters:
            return own
        return [
            act(form.spec, value, form.group, name, tensor)
            for form, value, tensor in zip(self.forms, values, own, strict=True)
        ]

    def parameters(self, values: Sequence[Values], weights: Sequence[float]) -> dict[str, Tensor]:
        """Those of the mixture in memory, differentiable in the elements.

        Args:
            values: the element of every model.
            weights: of every model, one in all.
        """
        values = [_on(value, self.device) for value in values]
        mixed = {}
        for name in self.run.names:
            first, *others = self.moved(values, name)
            mixed[name] = first * weights[0]
            for weight, tensor in zip(weights[1:], others, strict=True):
                mixed[name] = mixed[name].add(tensor, alpha=weight)
        return self.run.parameters(stored(self.forms[0], mixed))

    def loss(self, parameters: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """The mean loss of a model on a batch."""
        there = batch.to(self.device, torch.float32)
        output = self.run(parameters, there.inputs)
        if self.labels:
            return against_labels(self.task, output.logits, there)
        mean = self.taught.get(batch, lambda: self._mean_answer(there.inputs))
        return against_mean(self.task, answers(self.task, output, there.inputs), mean)

    @torch.no_grad()
    def _mean_answer(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """What the models answer on average."""
        models = (stored(form, state) for form, state in zip(self.forms, self.states, strict=True))
        outputs = (self.run(self.run.parameters(model), inputs) for model in models)
        return mean_answer(self.task, [answers(self.task, output, inputs) for output in outputs])

    @torch.no_grad()
    def middle_loss(self, values: Sequence[Values], batches: Sequence[Batch]) -> float:
        """The loss of the mean of all models, its mean over the batches; of labels over all of them.

        Raises:
            InputError: no label counts.
        """
        parameters = self.parameters(values, [1 / len(values)] * len(values))
        return mean_loss(self.task, batches, self.labels, lambda batch: self.loss(parameters, batch))


@dataclass(frozen=True)
class Learned:
    """What was learned.

    Attributes:
        values: the element of every model, in float64.
        descent: how it went; its losses are of the mean of all models.
    """

    values: list[Values]
    descent: Descent


def learn(
    mixture: Mixture,
    starts: Sequence[Sequence[Values]],
    turns: Sequence[bool | None],
    held: Sequence[Batch],
    seen: Data,
    *,
    steps: int,
    seed: int = 0,
    state: Path | None = None,
    of: Mapping[str, Any] | None = None,
    orders: Callable[[int, Values], Mapping[Key, Value]] | None = None,
    report: Looks = silent,
) -> Learned:
    """Elements that lower the loss between the models, from the best of some starts.

    The result is what did best in the middle on the batches that are held out, which may be a start.

    Args:
        mixture: the models.
        starts: of each, the element of every model.
        turns: of every model whether all of its element moves, or (False) its scales and general maps only; None
            where it stays.
        held, seen: what is held out, and what is learned from (`cobasin.learning.descent.hold_out`); with labels,
            where the loss is against them.
        steps: at most.
        seed: of the order of batches and the weights.
        state, of: see `cobasin.learning.descent.descend`.
        orders: gives what `Moves` takes of a model at an element.
        report: called at every look with the number of the step and the loss on what is held out.

    Raises:
        InputError: as `descend`.
    """
    start = min(starts, key=lambda values: _finite(mixture.middle_loss(values, held)))
    moves = [
        None
        if turning is None
        else Moves(form, groups, values, turning, mixture.device, orders(i, values) if orders and turning else None)
        for i, (form, groups, values, turning) in enumerate(
            zip(mixture.forms, mixture.groups, start, turns, strict=True)
        )
    ]

    def now(value: Callable[[Moves], Values]) -> list[Values]:
        return [values if move is None else value(move) for move, values in zip(moves, start, strict=True)]

    def loss(batch: Batch, generator: torch.Generator, share: float) -> Tensor:
        values = now(lambda move: move.values(share))
        return mixture.loss(mixture.parameters(values, mixture_weights(len(moves), generator)), batch)

    look, soft = max(LOOK, steps // LOOKS), max((move.soft for move in moves if move is not None), default=0.0)
    descent = descend(
        [parameter for move in moves if move is not None for parameter in move.parameters],
        loss,
        lambda: mixture.middle_loss(now(Moves.values), held),
        seen,
        steps=steps,
        rate=RATE,
        seed=seed,
        look=look,
        patience=PATIENCE,
        # of what is soft, an order that gains is often seen in the end only
        least=round(soft * steps) + PATIENCE * look if soft else 0,
        state=state,
        of=of,
        report=report,
    )
    return Learned(now(lambda move: move.exact(move.parameters)), descent)


def mixture_weights(count: int, generator: torch.Generator) -> list[float]:
    """Random weights about the middle, one in all: of two models uniform in 0.4 to 0.6."""
    drawn = -torch.rand(count, generator=generator, dtype=torch.float64).clamp_min(1e-12).log()
    return ((1 - SPREAD) / count + SPREAD * drawn / drawn.sum()).tolist()


def _finite(loss: float) -> float:
    """Infinity in place of what is no number, which every comparison is false of."""
    return loss if math.isfinite(loss) else math.inf


def _on(values: Values, device: torch.device) -> Values:
    """The parts of an element where they are used; in float32, as all that is moved."""
    return {
        key: {part: x.to(device, torch.float32) if x.is_floating_point() else x.to(device) for part, x in value.items()}
        for key, value in values.items()
    }
