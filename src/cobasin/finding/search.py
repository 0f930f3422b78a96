"""How elements are found: by weights, with activations, or learned; and what that needs.

Each method starts where the one before it ends. ``activations`` matches what two models compute on the same inputs
together with their weights; ``learned`` goes on with the loss of the models between the models. The inputs are made up
unless data is given. Where the weights alone agree the other two have nothing to add, and a planted element stays
exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.typed import Typed
from cobasin.data import DataSet
from cobasin.data.tokens import has_tokenizer
from cobasin.errors import InputError, shown, whole_number
from cobasin.execution.devices import device_of, home
from cobasin.execution.jobs import CPU
from cobasin.learning.descent import Data
from cobasin.learning.inputs import TEXTS, Inputs
from cobasin.matching.learned import Loss

Method = Literal["weights", "activations", "learned"]
Move = Literal["source", "all"]

STEPS = 1000
COMPARED = 256  # inputs whose activations are compared, where no other number is asked for


@dataclass(frozen=True)
class Search:
    """What is asked for.

    Attributes:
        method: ``weights``, ``activations`` or ``learned``.
        data: the inputs, as `cobasin.data.batches` takes them; made up where None. Text is read by the tokenizer of the
            first model that has one.
        samples: how many inputs; by default to compare activations 256, of texts that are made up 128; to learn from
            all data there is, or 32,768 that are made up, of texts 1,024.
        seed: of the inputs, and of what is random in learning.
        steps: of learning, at most.
        loss: what a model between the models learns: ``parents``, to answer as they do on average, which needs no
            labels; ``labels``, those of the data.
        move: ``source``, all models but the reference move; ``all``, its scales and general maps do, too.
        orders: whether the orders of FFN neurons are learned, too, which gained nothing where it was tried.
        device: where models run, in torch's words; ``auto`` leaves it to accelerate. Weights are matched there, too,
            where it is named, on the CPU otherwise.
        state: a file that keeps how far learning is, for a run that is interrupted; where it is there, learning goes
            on from it. That of another search (other models, data or settings) is refused. Whoever names it removes it.

    Raises:
        InputError: for unknown words, what does not go with the method, numbers out of range.
    """

    method: str = "weights"
    data: DataSet | None = None
    samples: int | None = None
    seed: int = 0
    steps: int = STEPS
    loss: str = "parents"
    move: str = "source"
    device: str = "auto"
    state: Path | None = None
    orders: bool = False

    def __post_init__(self) -> None:
        for name, words in (("method", Method), ("loss", Loss), ("move", Move)):
            given = getattr(self, name)
            if not isinstance(given, str) or given not in get_args(words):  # of an array no comparison says yes or no
                raise InputError(f"{name} {shown(given)} is unknown; expected one of {', '.join(get_args(words))}")
        if not isinstance(self.orders, bool):
            raise InputError(f"orders {shown(self.orders)}: expected True or False")
        # before anything is asked of them: what is no number may not even be comparable
        for name, least in (("samples", 1), ("steps", 1), ("seed", 0)):
            given = getattr(self, name)
            if given is None and name == "samples":
                continue
            object.__setattr__(self, name, whole_number(name, given, least))
        if self.method == "weights" and self.data is not None:
            raise InputError("method weights reads no data; leave it out, or take method activations or learned")
        if self.method == "weights" and (self.samples, self.seed) != (None, 0):
            raise InputError(
                "method weights runs no model, and nothing in it is random; samples and seed go with method "
                "activations or learned"
            )
        learning = (self.steps, self.loss, self.move, self.state, self.orders)
        if self.method != "learned" and learning != (STEPS, "parents", "source", None, False):
            raise InputError(
                f"method {self.method} learns nothing; steps, loss, move, state and orders (--steps, --loss, "
                "--anchor-out, --orders) go with method learned"
            )
        if self.loss == "labels" and self.data is None:
            raise InputError("loss labels: inputs that are made up have no labels; give data that has, or take parents")

    def place(self) -> torch.device:
        """Where weights are matched, in float64 as well, which Apple's GPUs do not have.

        Raises:
            InputError: there is no such device.
        """
        return CPU if isinstance(self.device, str) and self.device == "auto" else home(device_of(self.device))

    def prepared(self, typed: Sequence[Typed]) -> Prepared | None:
        """What running the models needs, None where they are not run; all checks that need no tensor are done.

        Raises:
            InputError: inputs that cannot be made up, data that do not fit, labels that are missing, no such device.
        """
        if self.method == "weights":
            self.place()  # refused now, not once gains were read
            return None
        device = device_of(self.device)
        learns = self.method == "learned"
        if learns and any(model.labels != typed[0].labels for model in typed):
            raise InputError(
                "the task heads have different labels: no common answers to learn; take method activations"
            )
        usual = None if learns else (COMPARED, TEXTS)
        inputs = Inputs.of(_reader(typed), self.data, self.samples, self.seed, usual)
        if learns and inputs.count < 2:
            raise InputError("learning holds some inputs out: 1 is too few; give more, or take method activations")
        if self.loss == "labels" and not inputs.labelled:
            raise InputError(f"loss labels: {inputs.no_labels}; or take loss parents, which needs none")
        return Prepared(self, inputs, device)


@dataclass(frozen=True)
class Prepared:
    """A search whose inputs are known.

    Attributes:
        asked: what is asked for.
        inputs: what models are run on.
        device: where they run.
    """

    asked: Search
    inputs: Inputs
    device: torch.device

    @property
    def report(self) -> dict[str, Any]:
        """What a report says of it."""
        return {"method": self.asked.method, "inputs": self.inputs.report}

    def compared(self, batches: Data) -> Iterator[Mapping[str, Tensor]]:
        """The inputs on which activations are compared: all of these, or as many as learning starts from."""
        count = None if self.asked.method == "activations" else -(-COMPARED // self.inputs.size)
        return (batch.inputs for batch in islice(iter(batches), count))


def _reader(typed: Sequence[Typed]) -> Checkpoint:
    """The model that inputs are read by: the first that has a tokenizer; the first where pictures are read, too."""
    checkpoints = [model.checkpoint for model in typed]
    if hasattr(checkpoints[0].config, "vision_config"):
        return checkpoints[0]
    read = (one for one in checkpoints if has_tokenizer(one))
    return next(read, checkpoints[0])
