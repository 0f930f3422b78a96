"""How well a model does its task: the mean loss, and the task's usual metric."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cobasin.data import Batch
from cobasin.data.tasks import IGNORED, task_of_class
from cobasin.errors import InputError, shown
from cobasin.statistics.likelihood import loss_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

# the metric of every task that has a loss
METRICS = {
    "classification": "accuracy",
    "image": "accuracy",
    "multilabel": "macro F1",
    "regression": "Pearson r",
    "tokens": "span F1",
    "causal_lm": "token accuracy",
    "masked_lm": "token accuracy",
    "seq2seq_lm": "token accuracy",
}
# what a classifier can be measured by besides
CLASS_METRICS = ("macro F1", "Matthews correlation")
AT_LEAST_ONE = "macro F1, at least one label"
OTHER_METRICS = {"classification": CLASS_METRICS, "image": CLASS_METRICS, "multilabel": (AT_LEAST_ONE,)}


@dataclass(frozen=True)
class Score:
    """How well a model does.

    Attributes:
        loss: the mean that Transformers minimises: cross-entropy in nats of an example or a token, of a multi-label
            model of an annotated label; of a regression the squared error.
        metric: from 0 (Pearson r, Matthews correlation: -1) to 1.
        metric_name: what it is.
    """

    loss: float
    metric: float
    metric_name: str


@torch.no_grad()
def evaluate(model: PreTrainedModel, batches: Iterable[Batch], task: str, metric: str | None = None) -> Score:
    """Run a model on a data set, where the model is (`model.to(device)`).

    Padding, labels of -100 and labels of NaN (not annotated) never count.

    - classification, image: accuracy; if asked for, macro F1 or Matthews correlation, by scikit-learn
    - multi-label: macro F1 of what is above probability 1/2, over the labels that are annotated at all; a label that
      neither occurs nor is predicted counts 0, as in scikit-learn; if asked for, with the most probable of a row's
      annotated labels predicted where none of them is above 1/2, which tells models apart that are seldom sure
    - regression: Pearson r, 0 where all predictions or all labels are the same
    - tokens: micro F1 of whole spans (Tjong Kim Sang and De Meulder, 2003), by seqeval, from labels in IOB2
    - language models: how often the most probable token is the right one

    With ``from cobasin.data import DataConfig, batches, task_of`` and ``given = cobasin.load("model")``, a model of
    Transformers is evaluated by ``evaluate(model, rows, task_of(given))`` on the rows
    ``batches(given, DataConfig(path="test.jsonl"), samples=1000, batch_size=16, seed=0)``.

    Args:
        model: in evaluation mode.
        batches: rows with labels, such as `cobasin.data.batches` makes.
        task: as `cobasin.data.task_of` says.
        metric: one of `OTHER_METRICS` of the task in place of its usual one.

    Raises:
        InputError: the model is in training mode, the task is not its own, has no loss or another metric, the rows
            have no labels, or none that counts, or seqeval or scikit-learn is missing.
    """
    if not (callable(model) and hasattr(model, "config")):
        raise InputError(f"{shown(model)}: expected a model of Transformers, as its from_pretrained returns it")
    check_metric(model.config, task, metric)
    name = type(model).__name__
    own = task_of_class(name, model.config, name)
    if own not in ("features", task) and (own, task) != ("image", "classification"):  # features: not told by the name
        raise InputError(f"task {shown(task)}: a {name} with this config has the task {own!r}, as task_of says")
    parts = model.modules() if isinstance(model, torch.nn.Module) else [model]  # several that answer together
    if any(part.training for part in parts):
        raise InputError("the model, or a part of it, is in training mode, with dropout; call its eval() first")
    if not isinstance(batches, Iterable):
        raise InputError(f"batches {shown(batches)}: expected rows, as cobasin.data.batches makes them")
    loss, count = 0.0, 0
    predictions: list[Tensor] = []
    labels: list[Tensor] = []
    for batch in batches:
        if not isinstance(batch, Batch):
            raise InputError(f"a batch is {shown(batch)}; expected one of those that cobasin.data.batches makes")
        batch = batch.to(model.device, model.dtype)
        inputs, expected = batch.inputs, labels_of(batch)
        logits = model(**inputs).logits
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        summed, counts = loss_of(task, logits, expected, inputs)
        loss += float(summed)
        if task == "causal_lm":
            logits, expected = logits[:, :-1], expected[:, 1:]
        predicted = _predicted(task, logits)
        count += int(counts.sum())
        if metric == AT_LEAST_ONE:
            predicted = _with_top(predicted, logits, counts)
        if task != "tokens":  # there, rows have to stay apart
            predicted = predicted.reshape(expected.shape)
            if task not in ("multilabel", "regression"):
                predicted, expected = predicted[counts], expected[counts]
        predictions.append(predicted.cpu())
        labels.append(expected.cpu())
    if not count:
        raise InputError("the rows have no label that counts, so there is no loss")
    name = metric or METRICS[task]
    return Score(loss / count, _metric(model.config, task, name)(predictions, labels), name)


def check_metric(config: PreTrainedConfig, task: str, metric: str | None = None) -> None:
    """Refuse, before a model is run, a task without a loss, or whose metric cannot be computed.

    Raises:
        InputError: as `evaluate`.
    """
    if task not in METRICS:
        raise InputError(
            f"no loss is known of this {config.model_type}; name a model with a head for {', '.join(METRICS)}"
        )
    check_metric_name(task, metric)
    if metric in CLASS_METRICS:
        _sklearn()
    if task == "tokens":
        _seqeval()
        for label in _tags(config):
            if label != "O" and label[:2] not in ("B-", "I-"):
                raise InputError(
                    f"label {label!r} is not in IOB2 (O, B-..., I-...), which span F1 is read from; correct id2label "
                    "in config.json"
                )


def check_metric_name(task: str, metric: str | None) -> None:
    """Raise InputError unless a task, which has a loss, has this metric; None is its usual one."""
    known = METRICS[task], *OTHER_METRICS.get(task, ())
    if metric not in (None, *known):
        raise InputError(f"no {metric} of {task}; expected {' or '.join(known)}")


def labels_of(batch: Batch) -> Tensor:
    """The labels of a batch.

    Raises:
        InputError: it has none.
    """
    if batch.labels is None:
        raise InputError("the rows have no labels, without which there is no loss; say their column under 'columns'")
    return batch.labels


def _predicted(task: str, logits: Tensor) -> Tensor:
    if task == "regression":
        return logits
    return (logits > 0).to(logits) if task == "multilabel" else logits.argmax(-1)


def _with_top(predicted: Tensor, logits: Tensor, counts: Tensor) -> Tensor:
    """With the most probable annotated label of every row, all [rows, labels]."""
    top = logits.masked_fill(~counts, -torch.inf).argmax(-1, keepdim=True)
    marked = predicted.scatter(-1, top, 1)
    return torch.where((predicted * counts).any(-1, keepdim=True), predicted, marked)


def _metric(config: PreTrainedConfig, task: str, name: str) -> Callable[[Sequence[Tensor], Sequence[Tensor]], float]:
    if task == "tokens":
        return lambda predicted, labels: _span_f1(predicted, labels, _tags(config))
    metric = {"multilabel": _macro_f1, "regression": _pearson}.get(task, _accuracy)
    if metric is _accuracy and name in CLASS_METRICS:
        metric = _macro_f1_of_classes if name == "macro F1" else _matthews
    return lambda predicted, labels: metric(torch.cat(list(predicted)), torch.cat(list(labels)))


def _accuracy(predicted: Tensor, labels: Tensor) -> float:
    return float((predicted == labels).double().mean())


def _macro_f1(predicted: Tensor, labels: Tensor) -> float:
    """From 0 and 1 [rows, labels], NaN where not annotated."""
    known = ~labels.isnan()
    hits = (predicted * labels).nan_to_num().sum(0)
    marked = (predicted * known).sum(0) + labels.nan_to_num().sum(0)
    return float((2 * hits / marked.clamp_min(1))[known.any(0)].double().mean())


def _macro_f1_of_classes(predicted: Tensor, labels: Tensor) -> float:
    return float(_sklearn().f1_score(labels.numpy(), predicted.numpy(), average="macro", zero_division=0.0))


def _matthews(predicted: Tensor, labels: Tensor) -> float:
    return float(_sklearn().matthews_corrcoef(labels.numpy(), predicted.numpy()))


def _pearson(predicted: Tensor, labels: Tensor) -> float:
    known = ~labels.isnan()
    both = torch.stack([predicted[known], labels[known]]).double()
    if (both.amin(1) == both.amax(1)).any():
        return 0.0
    return float(both.corrcoef()[0, 1])


def _span_f1(predicted: Sequence[Tensor], labels: Sequence[Tensor], tags: Sequence[str]) -> float:
    rows = [
        (row[counts].tolist(), expected[counts].tolist())
        for batch, wanted in zip(predicted, labels, strict=True)
        for row, expected, counts in zip(batch, wanted, wanted != IGNORED, strict=True)
    ]
    named = [[[tags[index] for index in ids] for ids in side] for side in zip(*rows, strict=True)]
    return float(_seqeval()(named[1], named[0], average="micro", zero_division=0))


def _tags(config: PreTrainedConfig) -> list[str]:
    """The label of every class."""
    return [label for _, label in sorted((config.id2label or {}).items())]


def _seqeval() -> Callable[..., Any]:
    try:
        from seqeval.metrics import f1_score
    except ImportError as error:
        raise InputError("span F1 needs seqeval: pip install 'cobasin[evaluation]'") from error
    return f1_score


def _sklearn() -> Any:
    try:
        from sklearn import metrics
    except ImportError as error:
        raise InputError("this metric needs scikit-learn: pip install 'cobasin[evaluation]'") from error
    return metrics
