"""Gradient descent that stops by itself on held-out data, and goes on where it was interrupted.

Everything that decides the next step is either in the state file (parameters, Adam's moments, the random generator,
what was seen on held-out data) or follows from the number of the step (the rate, the order of batches), so an
interrupted run that goes on ends with the very numbers of one that was not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from cobasin.checkpoints.output import refuse_other
from cobasin.data import Batch, Batches
from cobasin.errors import InputError, one_line
from cobasin.progress import Looks, silent
from cobasin.statistics.rows import generator_of
from cobasin.whole_files import DAMAGED, read_tensors, write_tensors

BETAS = (0.9, 0.98)  # of Adam
WARM_UP = 20  # steps, but no more than a fifth of all
HELD_OUT = 8  # one batch of so many
MOST_HELD_OUT = 8  # batches
LOOK = 10  # every so many steps at what is held out

Data = Batches | Sequence[Batch]


@dataclass(frozen=True)
class Descent:
    """How a descent went.

    Attributes:
        losses: on held-out data: at the start, and at every look after it.
        steps: that were taken, of ``asked``.
        overflowed: whether it ended there because a loss was not finite any more.
    """

    losses: list[float]
    steps: int
    asked: int
    overflowed: bool

    @property
    def end(self) -> str | None:
        """Why it ended early, to follow "learning" or "healing" in a note; None where nothing overflowed."""
        return f"ended after {self.steps} of {self.asked} steps: the loss overflowed" if self.overflowed else None


def hold_out(batches: Data) -> tuple[list[Batch], Data]:
    """The first batches, one in `HELD_OUT` but at most `MOST_HELD_OUT`, and all others, to learn from.

    Args:
        batches: two or more, in an order that says nothing (rows of `cobasin.data.batches` are shuffled).
    """
    count = min(MOST_HELD_OUT, max(1, len(batches) // HELD_OUT))
    first = list(islice(batches, count))
    return first, batches.skip(count) if isinstance(batches, Batches) else batches[count:]


def descend(
    parameters: Sequence[Tensor],
    loss: Callable[[Batch, torch.Generator, float], Tensor],
    held_out: Callable[[], float],
    batches: Data,
    *,
    steps: int,
    rate: float,
    seed: int,
    look: int = LOOK,
    patience: int,
    least: int = 0,
    state: Path | None = None,
    of: Mapping[str, Any] | None = None,
    report: Looks = silent,
) -> Descent:
    """Move parameters down a loss by Adam (Kingma and Ba, ICLR 2015), with warm-up and a cosine to zero.

    It ends after ``steps``, or once ``patience`` looks at the held-out data brought no gain, though not before
    ``least`` steps. The parameters are then those that did best there, which may be those of the start.

    Args:
        parameters: leaves that require gradients, on any device; changed in place.
        loss: of a batch, at a share of the steps; what is random in it is drawn from the generator (on the CPU) alone.
        held_out: the loss of the parameters as they are on data that is not learned from.
        batches: what is learned from, see `hold_out`; gone through again and again, in an order of its own each time.
        steps: at most.
        rate: the highest learning rate.
        seed: of the order of batches and of the generator.
        look: steps between two looks at the held-out data.
        patience: looks.
        least: steps that are taken, gain or none.
        state: a file that keeps all this at every look. What is there is gone on from; the caller removes it, before
            to start anew, and at the end.
        of: what the descent is of, as JSON; a state of anything else is refused.
        report: called at every look with the number of the step and the loss on held-out data.

    Raises:
        InputError: for a loss that is not finite at the start; for a state that is damaged, of something else, or
            cannot be written.
    """
    optimizer = torch.optim.Adam(parameters, lr=rate, betas=BETAS)
    run = _Run(list(parameters), optimizer, torch.Generator().manual_seed(seed), dict(of or {}))
    if state is None or not state.exists():
        with torch.no_grad():
            first = held_out()
        if not math.isfinite(first):
            raise InputError("the loss of the models on this data is not finite: they overflow on it")
        run.look(0, first)
    else:
        run.load(state)
    warm_up = min(WARM_UP, max(1, steps // 5))
    left = _endless(batches, seed, run.step)
    overflowed = False
    while run.step < steps and (run.step < least or run.without_gain < patience):
        step = run.step + 1
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, step / warm_up) * (1 + math.cos(math.pi * run.step / steps)) / 2
        optimizer.zero_grad()
        found = loss(next(left), run.generator, run.step / steps)
        if overflowed := not found.isfinite():  # thrown out of the region where the model computes anything
            break
        found.backward()
        optimizer.step()
        run.step = step
        if step % look and step < steps:
            continue
        with torch.no_grad():
            looked = held_out()
        if overflowed := not math.isfinite(looked):
            break
        run.look(step, looked)
        if state is not None:
            run.save(state)
        report(step, looked)
    with torch.no_grad():
        for parameter, value in zip(parameters, run.best, strict=True):
            parameter.copy_(value)
    return Descent(run.losses, run.step, steps, overflowed)


@dataclass
class _Run:
    """A descent at some step."""

    parameters: list[Tensor]
    optimizer: torch.optim.Adam
    generator: torch.Generator
    of: dict[str, Any]

    def __post_init__(self) -> None:
        self.step, self.losses = 0, list[float]()
        self.best = [parameter.detach().clone() for parameter in self.parameters]

    @property
    def without_gain(self) -> int:
        """Looks since the best one."""
        return len(self.losses) - 1 - self.losses.index(min(self.losses))

    def look(self, step: int, loss: float) -> None:
        """Note the loss on held-out data, and keep the parameters where it is the lowest."""
        self.step = step
        if not self.losses or loss < min(self.losses):
            self.best = [parameter.detach().clone() for parameter in self.parameters]
        self.losses.append(loss)

    def save(self, path: Path) -> None:
        """Write all of it; the file is there whole or as it was before."""
        tensors = {"generator": self.generator.get_state()}
        for i, (parameter, best) in enumerate(zip(self.parameters, self.best, strict=True)):
            tensors |= {f"{i}/now": parameter.detach(), f"{i}/best": best}
            tensors |= {f"{i}/adam/{name}": value for name, value in self.optimizer.state[parameter].items()}
        tensors = {name: tensor.cpu().clone() for name, tensor in tensors.items()}
        metadata = {"of": self.of, "step": self.step, "losses": self.losses}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(path, tensors, {name: json.dumps(value) for name, value in metadata.items()})
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: cannot be written: {one_line(error)}") from error

    def load(self, path: Path) -> None:
        """Go on from what was written.

        Raises:
            InputError: it is damaged, or of something else.
        """
        try:
            said, mapped = read_tensors(path)
            tensors = {name: tensor.clone() for name, tensor in mapped.items()}  # the file is soon another
            metadata = {name: json.loads(value) for name, value in said.items()}
            refuse_other(path, metadata["of"], self.of, "search", f"remove {path} to start anew")
            moments: dict[int, dict[str, Tensor]] = {}
            with torch.no_grad():
                for i, parameter in enumerate(self.parameters):
                    parameter.copy_(tensors[f"{i}/now"])
                    self.best[i] = tensors[f"{i}/best"].to(parameter.device)
                    start = f"{i}/adam/"
                    moments[i] = {n.removeprefix(start): x for n, x in tensors.items() if n.startswith(start)}
            self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
            self.generator.set_state(tensors["generator"])
            self.step, self.losses = metadata["step"], metadata["losses"]
        except DAMAGED as error:
            raise InputError(
                f"{path}: is damaged, or no state of a search ({one_line(error)}); name another file, or remove it to "
                "start anew"
            ) from error


def _endless(batches: Data, seed: int, done: int) -> Iterator[Batch]:
    """The batches again and again, each time in another order; without the first ``done``."""
    epoch, done = divmod(done, len(batches))
    while True:
        generator = generator_of(seed, epoch)
        if isinstance(batches, Batches):
            yield from batches.shuffled(generator).skip(done)
        else:
            yield from (batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()[done:])
        epoch, done = epoch + 1, 0
