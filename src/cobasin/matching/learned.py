"""Learning an element without labels: the interpolated model shall answer as its parents do.

The continuous parts of an element (stream, bases of heads, rotary angles) move inside their groups: an orthogonal
matrix Q becomes ``Q · cayley(S - Sᵀ)``, with S projected on the complement of **1** where the ones vector is fixed, so
that every step is exactly in the group. Orders and scales stay. The loss is that of the interpolated model with the
mean of the parents' answers as its labels, at a random point of the line; the inputs need no labels and may be made up
(`cobasin.data.synthetic`). Theus et al., *Generalized Linear Mode Connectivity for Transformers* (NeurIPS 2025), learn
the stream so, with labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import binary_cross_entropy_with_logits

from cobasin.symmetry.action import Values, act
from cobasin.symmetry.form import Form
from cobasin.symmetry.groups import Orthogonal, Value
from cobasin.symmetry.spec import Key
from cobasin.symmetry.state import State

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Inputs = Mapping[str, Tensor]

RATE = 6e-3
WARM_UP = 10  # steps
BETWEEN = (0.3, 0.7)  # shares of the source that are trained on
HELD_OUT = 8  # one batch of so many
MOST_HELD_OUT = 8  # batches
LOOK = 10  # steps between looks at what is held out
PATIENCE = 5  # looks without a gain


@dataclass(frozen=True)
class Line:
    """The straight line between two models, on which an element moves the source.

    Attributes:
        form: the form that the element acts in.
        pair: source and anchor by spec name, in canonical form.
        models: both in memory and in canonical form.
        names: of the anchor's parameters, by spec name.
        task: ``multilabel``, ``regression``, or anything whose answers are probabilities.
        counted: what counts of a model's logits on some inputs, ``[tokens, labels]``.
    """

    form: Form
    pair: tuple[State, State]
    models: Sequence[PreTrainedModel]
    names: Mapping[str, str]
    task: str
    counted: Callable[[Inputs, Tensor], Tensor]

    def loss(self, values: Values, inputs: Inputs, share: float) -> Tensor:
        """Mean loss of the model with this share of the source, where the parents' mean answers are right."""
        source, anchor = self.pair
        state = {
            parameter: torch.lerp(anchor[name], act(self.form.spec, values, self.form.group, name, source[name]), share)
            for name, parameter in self.names.items()
        }
        logits = self.counted(inputs, functional_call(self.models[1], state, (), dict(inputs)).logits)
        with torch.no_grad():
            outputs = torch.stack([self.counted(inputs, model(**inputs).logits) for model in self.models])
        if self.task == "regression":
            return (logits - outputs.mean(0)).square().mean()
        if self.task == "multilabel":
            return binary_cross_entropy_with_logits(logits, outputs.sigmoid().mean(0))
        return -(outputs.softmax(-1).mean(0) * logits.log_softmax(-1)).sum(-1).mean()


@dataclass(frozen=True)
class Learned:
    """An element, and what its midpoint's loss on the held-out inputs was at the start and at every look after it."""

    values: Values
    losses: list[float]


def movable(values: Values) -> list[Key]:
    """The keys whose elements have a continuous part that learning moves."""
    return [key for key, value in values.items() if _part(value) is not None]


def learn(
    line: Line,
    starts: Sequence[Values],
    inputs: Sequence[Inputs],
    steps: int,
    seed: int = 0,
    report: Callable[[int, Values], None] | None = None,
) -> Learned:
    """An element that brings the line down, from the best of some starts.

    An eighth of the batches is held out. The result is what did best on them at the midpoint, which may be a start;
    learning ends early once they gain no more.

    Args:
        line: the line.
        starts: elements; the same keys are movable in all of them, at least one.
        inputs: batches, two or more.
        steps: at most.
        seed: of the order of batches and the points of the line.
        report: called at every look with the number of the step and the element.
    """
    generator = torch.Generator().manual_seed(seed)
    held = min(MOST_HELD_OUT, max(1, len(inputs) // HELD_OUT))
    seen = inputs[held:]
    start, loss = min(((start, _held_out(line, start, inputs[:held])) for start in starts), key=lambda pair: pair[1])
    best, losses = start, [loss]
    moves = {
        key: torch.zeros_like(start[key][_part(start[key]) or ""], dtype=torch.float32, requires_grad=True)
        for key in movable(start)
    }
    optimizer = torch.optim.Adam(list(moves.values()), lr=RATE, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: min(1, (t + 1) / WARM_UP) * (1 + math.cos(math.pi * t / steps)) / 2
    )
    order: list[int] = []
    for step in range(1, steps + 1):
        order = order or torch.randperm(len(seen), generator=generator).tolist()
        share = BETWEEN[0] + (BETWEEN[1] - BETWEEN[0]) * float(torch.rand((), generator=generator))
        optimizer.zero_grad()
        line.loss(_moved(line.form, start, moves), seen[order.pop()], share).backward()
        optimizer.step()
        schedule.step()
        if step % LOOK and step < steps:
            continue
        values = _moved(line.form, start, {key: move.detach().double() for key, move in moves.items()})
        losses.append(_held_out(line, values, inputs[:held]))
        if losses[-1] < loss:
            best, loss = values, losses[-1]
        if report:
            report(step, values)
        if min(losses[-PATIENCE:]) > loss:
            break
    return Learned(best, losses)


@torch.no_grad()
def _held_out(line: Line, values: Values, inputs: Sequence[Inputs]) -> float:
    return sum(float(line.loss(values, batch, 0.5)) for batch in inputs) / len(inputs)


def _part(value: Value) -> str | None:
    """The part of an element that moves, None where nothing does."""
    return next((part for part in ("matrix", "angle") if part in value), None)


def _moved(form: Form, values: Values, moves: Mapping[Key, Tensor]) -> Values:
    """The element with every part in ``moves`` moved inside its group, in the dtype of the move."""
    result = dict(values)
    for key, move in moves.items():
        value, group = values[key], form.group(key)
        if "angle" in value:
            result[key] = value | {"angle": value["angle"].to(move.dtype) + move}
            continue
        turn = move - move.mT
        if isinstance(group, Orthogonal) and group.fix_ones:  # centred on both sides
            turn = turn - turn.mean(-1, keepdim=True)
            turn = turn - turn.mean(-2, keepdim=True)
        one = torch.eye(turn.shape[-1], dtype=turn.dtype)
        cayley = torch.linalg.solve(one + turn / 2, one - turn / 2)
        result[key] = value | {"matrix": value["matrix"].to(move.dtype) @ cayley}
    return result
