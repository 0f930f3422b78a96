"""The diagonal of the Fisher information matrix (Matena and Raffel, NeurIPS 2022).

Labels drawn from the model give the Fisher information; those of the data what is called the empirical one, which is
something else (Kunstner et al., NeurIPS 2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.statistics.likelihood import log_likelihood
from cobasin.statistics.modules import by_spec_name
from cobasin.statistics.rows import generator_of, row_count
from cobasin.statistics.slices import Sums, added

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Fishers:
    """Collects the mean over examples of the squared gradient of the log-likelihood, one example at a time.

    The log-likelihood of a sequence is the sum over its tokens. The sum over examples is in the model's dtype.

    Args:
        model: on the device where it runs; its parameters are replaced in the end.
        typed: its type.
        task: as `cobasin.data.task_of` says.
        sampled: whether labels are drawn from the model, or those of the data are used (empirical).
        seed: of the draws.

    Raises:
        InputError: the model has no head whose likelihood could be taken.
    """

    joined = staticmethod(added)

    def __init__(self, model: PreTrainedModel, typed: Typed, task: str, sampled: bool, seed: int = 0):
        check_likelihood(typed, task, sampled)
        self.model, self.typed, self.task, self.sampled, self.seed = model, typed, task, sampled, seed
        self.parameters = dict(model.requires_grad_().named_parameters())
        self.sums: Sums = {}
        self.resume({})

    def add(self, inputs: Mapping[str, Tensor], labels: Tensor | None, row: int) -> None:
        """Add the examples of one batch, whose first row is row number ``row`` of the data.

        Raises:
            InputError: the labels of the data are needed, and there are none; a likelihood is not a number.
        """
        label = self.typed.checkpoint.label
        check_likelihood(self.typed, self.task, self.sampled, "it has none" if labels is None else None)
        for i in range(row_count(inputs)):
            example = {name: value[i : i + 1] for name, value in inputs.items()}
            own = None if labels is None else labels[i : i + 1]
            generator = generator_of(self.seed, row + i) if self.sampled else None
            value = log_likelihood(self.task, self.model(**example).logits, own, example, generator)
            if not value.isfinite():
                raise InputError(f"{label}: the log-likelihood of row {row + i + 1} of the data is {value.item()}")
            gradients = torch.autograd.grad(value, [*self.parameters.values()], allow_unused=True)
            for total, gradient in zip(self.sums.values(), gradients, strict=True):
                if gradient is not None:
                    total.addcmul_(gradient, gradient)

    def look(self, inputs: Mapping[str, Tensor]) -> None:
        """Nothing has to be told from inputs."""

    def state(self) -> dict[str, Tensor]:
        """The sums so far, by the names of the model in memory."""
        return self.sums

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Go on from the sums of `state`; of none, from zeros."""
        self.sums = {
            name: state[name].to(one.device) if state else torch.zeros_like(one, requires_grad=False)
            for name, one in self.parameters.items()
        }

    def result(self, rows: int) -> dict[str, Tensor]:
        """The diagonal Fisher information of every tensor by spec name, of its shape; the mean over ``rows``.

        Transformers takes it from the model's names and layouts to those of the file as it does with the weights:
        what it does to them is to move entries.

        Raises:
            InputError: all of it is zero.
        """
        if not any(total.any() for total in self.sums.values()):
            raise InputError(
                f"{self.typed.checkpoint.label}: the Fisher information is 0 in every parameter: no label of the data "
                "counts (-100 and NaN do not)"
            )
        for name, parameter in self.parameters.items():
            parameter.data = self.sums[name].div_(rows)
        return {name: one.clone() for name, one in by_spec_name(self.model, self.typed).items()}


def check_likelihood(typed: Typed, task: str, sampled: bool, unlabelled: InputError | str | None = None) -> None:
    """Raise InputError for a model without a task head, and, where labels are needed, for why the data has none."""
    label = typed.checkpoint.label
    if task == "features":
        raise InputError(
            f"{label}: a {typed.checkpoint.architecture} has no head whose likelihood is known, to take the Fisher "
            "information of; use a method without it, such as regmean"
        )
    if unlabelled is not None and (not sampled or task == "seq2seq_lm"):
        raise InputError(f"{label}: the Fisher information is taken at the labels of the data: {unlabelled}")
