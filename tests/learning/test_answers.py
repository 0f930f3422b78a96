"""Losses against the parents' answers and against labels."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy

from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate
from cobasin.data import Batch
from cobasin.errors import InputError
from cobasin.evaluation.tasks import evaluate
from cobasin.learning.answers import (
    Memory,
    against_labels,
    against_mean,
    answers,
    label_count,
    mean_answer,
    mean_loss,
)
from tiny_models import checkpoint

BERT = "bert/BertForSequenceClassification"


def test_the_mean_answer_of_the_parents_has_the_lowest_loss():
    """Of probabilities the logarithm of the mean; of numbers the mean."""
    generator = torch.Generator().manual_seed(0)
    parents = [torch.randn(6, 3, generator=generator) for _ in range(3)]
    best = {
        "image": torch.stack(parents).softmax(-1).mean(0).log(),
        "multilabel": torch.logit(torch.stack(parents).sigmoid().mean(0)),
        "regression": torch.stack(parents).mean(0),
        "features": torch.stack(parents).mean(0),
    }
    for task, found in best.items():
        found = found.clone().requires_grad_()
        mean = mean_answer(task, parents)
        loss = against_mean(task, found, mean)
        (gradient,) = torch.autograd.grad(loss, found)
        assert gradient.abs().max() < 1e-7, task
        assert against_mean(task, found + 0.3 * torch.eye(6, 3), mean) > loss + 1e-4
    mean = torch.stack(parents).mean(0).requires_grad_()
    (gradient,) = torch.autograd.grad(against_mean("image", mean, mean_answer("image", parents)), mean)
    assert gradient.abs().max() > 1e-3  # the mean of the logits is something else


def test_answers_leave_padding_out():
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    inputs = {"input_ids": torch.zeros(2, 3, dtype=torch.int64), "attention_mask": mask}
    logits = torch.arange(12.0).reshape(2, 3, 2)
    found = answers("causal_lm", SimpleNamespace(logits=logits), inputs)
    assert found.equal(logits[mask.bool()])
    one_each = answers("classification", SimpleNamespace(logits=logits[:, 0]), inputs)
    assert one_each.equal(logits[:, 0])


@pytest.mark.parametrize("case", ["bert/BertModel", "bert/BertForQuestionAnswering", "clip/CLIPModel"])
def test_features_are_all_that_a_model_puts_out(case):
    made = checkpoint(case)
    model, inputs = instantiate(made, torch.float32), probe(made.config, made.architecture)
    with torch.no_grad():
        output = model(**inputs)
    found = answers("features", output, inputs)
    if case.endswith("BertModel"):
        assert len(found) == 24 * int(inputs["attention_mask"].sum()) + 24 * 2
        assert found[:24].equal(output.last_hidden_state[0, 0])
    elif case.endswith("CLIPModel"):
        assert found.equal(output.logits_per_image.flatten())
    else:
        counted = inputs["attention_mask"].bool()
        assert not counted.all()
        assert found.equal(torch.cat([output.start_logits[counted], output.end_logits[counted]]))


@pytest.mark.parametrize(
    ("case", "labels"),
    [
        (BERT, torch.tensor([1, 0])),
        (BERT, torch.tensor([1, -100])),
        ("bert/BertForTokenClassification", torch.tensor([[0, 1, -100, 1], [1, -100, -100, 0]])),
        ("gpt2/GPT2LMHeadModel", torch.tensor([[5, 6, 7, 8], [9, 10, -100, -100]])),
        ("bert/BertForMaskedLM", torch.tensor([[5, -100, -100, 8], [-100, 10, -100, -100]])),
    ],
)
def test_the_loss_of_labels_is_that_of_evaluate(case, labels):
    made = checkpoint(case)
    task = {"Tok": "tokens", "GPT": "causal_lm", "Mas": "masked_lm"}.get(
        made.architecture.removeprefix("BertFor")[:3], "classification"
    )
    made.config.id2label = {0: "O", 1: "B-x"}
    model = instantiate(made, torch.float32)
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    batch = Batch({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, labels)
    with torch.no_grad():
        found = against_labels(task, model(**batch.inputs).logits, batch)
    assert float(found) == pytest.approx(evaluate(model, [batch], task).loss, rel=1e-6)


def test_labels_that_are_missing_do_not_count():
    logits, nan = torch.tensor([[1.0, -2.0], [0.5, 3.0]]), torch.nan
    half = against_labels("multilabel", logits, Batch({}, torch.tensor([[1.0, nan], [nan, 0.0]])))
    expected = -(torch.tensor(1.0).sigmoid().log() + torch.tensor(-3.0).sigmoid().log()) / 2
    assert float(half) == pytest.approx(float(expected), rel=1e-6)
    numbers = against_labels("regression", logits[:, :1], Batch({}, torch.tensor([3.0, nan])))
    assert float(numbers) == pytest.approx(4.0)
    none = against_labels("image", logits.requires_grad_(), Batch({}, torch.tensor([-100, -100])))
    assert none.item() == 0
    (gradient,) = torch.autograd.grad(none, logits)
    assert not gradient.any()
    logits = logits.detach()
    one = against_labels("image", logits, Batch({}, torch.tensor([-100, 1])))
    assert float(one) == pytest.approx(float(cross_entropy(logits[1:], torch.tensor([1]))))
    with pytest.raises(InputError, match="no labels"):
        against_labels("image", logits, Batch({}, None))


def test_a_mean_over_labels_counts_every_label_once():
    logits, labels = torch.randn(4, 2), torch.tensor([1, -100, 0, 0])
    pieces = [(slice(0, 1), 1), (slice(1, 2), 0), (slice(2, 4), 2)]
    parts = [Batch({"x": logits[rows]}, labels[rows]) for rows, _ in pieces]

    def loss(batch):
        return against_labels("image", batch.inputs["x"], batch)

    assert [label_count("image", part) for part in parts] == [count for _, count in pieces]
    assert mean_loss("image", parts, True, loss) == pytest.approx(float(cross_entropy(logits, labels)), rel=1e-6)
    with pytest.raises(InputError, match="held out have no label that counts: give more rows with labels"):
        mean_loss("image", parts[1:2], True, loss)


def test_what_was_computed_before_is_remembered_up_to_a_size():
    calls, memory = [], Memory(most=20)

    def compute(value):
        calls.append(value)
        return torch.full((2,), float(value))  # 8 bytes

    def batch(value):
        return Batch({"x": torch.tensor([1.0, value])}, None)

    for value in (1, 2, 3, 1, 2, 3):
        assert memory.get(batch(value), lambda value=value: compute(value)).tolist() == [value, value]
    assert calls == [1, 2, 3, 3]
    other = Batch({"y": torch.tensor([1.0, 1])}, None)
    assert memory.get(other, lambda: compute(4)).tolist() == [4, 4]
