"""The log-likelihood of one example under a model, for every task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from cobasin.data.tasks import IGNORED
from cobasin.execution.devices import home

_PER_TOKEN = ("tokens", "causal_lm", "masked_lm", "seq2seq_lm")


def log_likelihood(
    task: str,
    logits: Tensor,
    labels: Tensor | None,
    inputs: Mapping[str, Tensor],
    generator: torch.Generator | None,
) -> Tensor:
    """The log-likelihood of one example, as far as its squared gradient goes.

    With a generator, the labels are drawn from the model: one for every token that counts, whose label is not
    -100, or for every label of an example that is not NaN; the labels of the data only say which of them count. A
    Gaussian of unit variance needs no draw: the expectation over it is the squared gradient of the output itself.

    Args:
        task: as `cobasin.data.task_of` says.
        logits: [1, ...], the model's output.
        labels: [1, ...] as in `cobasin.data.Batch`; -100 and NaN are no labels.
        inputs: of the model, one row; their mask says which tokens count where there are no labels.
        generator: on the CPU; None to use the labels of the data.
    """
    if task in _PER_TOKEN:
        if labels is None:
            mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
            labels = torch.where(mask.bool(), 0, IGNORED)
        if task == "causal_lm":
            logits, labels = logits[:, :-1], labels[:, 1:]
        counts = labels != IGNORED
        logits, labels = logits[counts], labels[counts]
    elif task in ("regression", "multilabel"):
        logits = logits.flatten()
        labels = torch.zeros_like(logits) if labels is None else labels.flatten()
        known = ~labels.isnan()
        if task == "regression":
            return logits[known].sum() if generator is not None else -0.5 * (logits - labels)[known].square().sum()
        if generator is not None:
            labels = (_uniform(logits.shape, generator) < logits.detach().cpu().sigmoid()).to(logits)
        return -binary_cross_entropy_with_logits(logits[known], labels[known].to(logits), reduction="sum")
    elif labels is not None:
        labels = labels.flatten()
    if generator is not None:
        labels = _categorical(logits.detach(), generator)
    assert labels is not None
    return -cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED)


def loss_of(task: str, logits: Tensor, labels: Tensor, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The loss of a batch, summed over its labels, and which of these count (neither -100 nor NaN).

    Args:
        task, logits, labels, inputs: as in `log_likelihood`, of any number of rows; labels of a causal model are
            counted from the second token on, which is the first that is predicted.
    """
    halves = 2 if task == "regression" else 1  # of a squared error the likelihood has one
    return -halves * log_likelihood(task, logits, labels, inputs, None), counted(task, labels)


def counted(task: str, labels: Tensor) -> Tensor:
    """Which labels count in `loss_of`."""
    labels = labels[:, 1:] if task == "causal_lm" else labels
    return ~labels.isnan() if labels.is_floating_point() else labels != IGNORED


def _categorical(logits: Tensor, generator: torch.Generator) -> Tensor:
    """One class for each row of ``logits`` [k, classes], from its distribution: the same on every device."""
    reached = logits.to(home(logits.device), torch.float64).softmax(-1).cumsum(-1)
    drawn = _uniform((len(logits), 1), generator).to(reached.device) * reached[:, -1:]
    found = torch.searchsorted(reached, drawn, right=True).squeeze(-1)
    return found.clamp(max=logits.shape[-1] - 1).to(logits.device)


def _uniform(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64)
