"""Loss and metric of every task, against transformers and against counting by hand."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers as T
from sklearn.metrics import f1_score

from cobasin.checkpoints.checkpoint import load
from cobasin.data import Batch, batches
from cobasin.errors import InputError
from cobasin.evaluation.tasks import Score, evaluate

NAN = float("nan")
TINY = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 20,
    "vocab_size": 40,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}


class Given:
    """A model whose outputs are its inputs."""

    device, dtype, training = torch.device("cpu"), torch.float32, False

    def __init__(self, *labels):
        self.config = T.BertConfig(id2label=dict(enumerate(labels)), num_labels=len(labels))

    def __call__(self, logits):
        return SimpleNamespace(logits=logits)


def given(*pairs):
    """Batches of logits and labels."""
    return [Batch({"logits": torch.tensor(logits)}, torch.tensor(labels)) for logits, labels in pairs]


def bert(cls, **options):
    torch.manual_seed(0)
    return cls(T.BertConfig(**{**TINY, **options})).eval()


def rows(count, label):
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(3, 9, (count,), generator=generator).tolist()
    return [
        {"input_ids": torch.randint(1, 40, (length,), generator=generator).tolist(), **label(i, length)}
        for i, length in enumerate(lengths)
    ]


def test_classification_counts_every_row_alike():
    model = bert(T.BertForSequenceClassification, num_labels=3)
    data = rows(5, lambda i, _: {"label": i % 3})
    # batches of 3 and 2: a mean of their means would be another number
    split = evaluate(model, batches(load(model), data, samples=None, batch_size=3, seed=0), "classification")
    (whole,) = batches(load(model), data, samples=None, batch_size=5, seed=0)
    with torch.no_grad():
        output = model(**whole.inputs, labels=whole.labels)
    assert split.loss == pytest.approx(output.loss.item(), rel=1e-6)
    assert split.metric == (output.logits.argmax(1) == whole.labels).double().mean().item()
    assert split.metric_name == "accuracy"


def test_multilabel_leaves_out_what_is_not_annotated():
    logits = [[2.0, -1.0, 3.0], [1.0, 1.0, 3.0], [-1.0, -2.0, 3.0]]
    labels = [[1.0, 1.0, NAN], [0.0, 1.0, NAN], [1.0, 0.0, NAN]]
    found = evaluate(Given("a", "b", "c"), given((logits[:2], labels[:2]), (logits[2:], labels[2:])), "multilabel")
    # a: one hit of two predicted and two true; b: one hit of one predicted and two true; c: not annotated
    assert found.metric == pytest.approx((2 * 1 / 4 + 2 * 1 / 3) / 2)
    truth = [(2, 1), (-1, 1), (1, 0), (1, 1), (-1, 1), (-2, 0)]
    losses = [np.log1p(np.exp(-logit if label else logit)) for logit, label in truth]
    assert found.loss == pytest.approx(np.mean(losses))
    assert found.metric_name == "macro F1"


def test_multilabel_with_at_least_one_label():
    """The second row's most probable label is not annotated; the third row has one above 1/2, the fourth one at it."""
    logits = [[-1.0, -2.0, -3.0], [-3.0, -2.0, -1.0], [1.0, -1.0, -2.0], [-1.0, 0.0, 1.0]]
    labels = [[1.0, 0.0, NAN], [0.0, 1.0, NAN], [0.0, 1.0, NAN], [0.0, 1.0, NAN]]
    data = given((logits[:2], labels[:2]), (logits[2:], labels[2:]))
    found = evaluate(Given("a", "b", "c"), data, "multilabel", "macro F1, at least one label")
    # a: one hit of two predicted and one true; b: two hits of two predicted and three true
    assert found.metric == pytest.approx((2 * 1 / 3 + 2 * 2 / 5) / 2)
    assert found.metric_name == "macro F1, at least one label"
    assert evaluate(Given("a", "b", "c"), data, "multilabel").metric == 0.0


def test_macro_f1_is_that_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(30, 4, generator=generator)
    labels = (torch.rand(30, 4, generator=generator) < 0.4).float()
    labels[:, 2] = 0  # never true, but predicted
    logits[:, 3], labels[:, 3] = -1, 0  # neither
    found = evaluate(Given(*"abcd"), [Batch({"logits": logits}, labels)], "multilabel").metric
    expected = f1_score(labels.numpy(), (logits > 0).numpy(), average="macro", zero_division=0.0)
    assert found == pytest.approx(expected)
    assert found != pytest.approx(f1_score(labels.numpy(), (logits > 0).numpy(), average="micro"))


def test_other_metrics_of_classes():
    """Three of class 0, of which two are found; two of class 1, of which one is found; class 2 is predicted once."""
    logits = torch.eye(3)[[0, 0, 2, 1, 0]].tolist()
    data = given((logits[:3], [0, 0, 0]), (logits[3:], [1, 1]))
    found = evaluate(Given(*"abc"), data, "classification", "macro F1")
    assert found == Score(found.loss, pytest.approx((2 * 2 / 6 + 2 * 1 / 3 + 0) / 3), "macro F1")
    assert evaluate(Given(*"abc"), data, "classification", "accuracy").metric == pytest.approx(3 / 5)
    two = given((torch.eye(2)[[0, 0, 1, 1]].tolist(), [0, 1, 1, 1]))
    found = evaluate(Given(*"ab"), two, "image", "Matthews correlation")
    # true positives 2, true negatives 1, false negatives 1
    assert found.metric == pytest.approx(2 * 1 / np.sqrt(2 * 3 * 1 * 2))
    constant = given(([[1.0, 0.0], [1.0, 0.0]], [0, 1]))
    assert evaluate(Given(*"ab"), constant, "classification", "Matthews correlation").metric == 0.0


def test_regression():
    predicted, labels = [0.0, 1.0, 4.0, 2.0], [1.0, 0.0, 3.0, 3.5]
    data = given(([[x] for x in predicted[:3]], labels[:3]), ([[predicted[3]]], labels[3:]))
    found = evaluate(Given("score"), data, "regression")
    assert found.loss == pytest.approx(np.mean((np.array(predicted) - labels) ** 2))
    assert found.metric == pytest.approx(np.corrcoef(predicted, labels)[0, 1])
    assert found.metric_name == "Pearson r"
    model = bert(T.BertForSequenceClassification, num_labels=1)
    real = batches(load(model), rows(4, lambda i, _: {"label": float(i)}), samples=None, batch_size=4, seed=0)
    (batch,) = real
    with torch.no_grad():
        loss = model(**batch.inputs, labels=batch.labels).loss.item()
    assert evaluate(model, real, "regression").loss == pytest.approx(loss)


@pytest.mark.parametrize("labels", [[0.1, 0.1, 0.1], [1.0, 2.0, 3.0]])
def test_pearson_without_spread(labels):
    predicted = [[0.3]] * 3 if labels[0] != labels[1] else [[0.3], [0.2], [0.1]]
    assert evaluate(Given("score"), given((predicted, labels)), "regression").metric == 0.0


def test_spans_are_not_tokens():
    names = ("O", "B-PER", "I-PER", "B-LOC")
    eye = torch.eye(4).tolist()

    def tagged(*tags):
        return [eye[names.index(tag)] for tag in tags]

    predicted = [tagged("B-PER", "I-PER", "O", "B-LOC", "O"), tagged("B-PER", "O", "O", "O", "O")]
    # the last two tokens of the second row are padding, the second token is the rest of a word
    truth = [[1, 2, 2, 3, 0], [1, -100, 0, -100, -100]]
    found = evaluate(Given(*names), given((predicted[:1], truth[:1]), (predicted[1:], truth[1:])), "tokens")
    # LOC and the second PER are found; the first PER ends too early: 2 of 3 predicted, 2 of 3 true
    assert found == Score(found.loss, pytest.approx(2 / 3), "span F1")
    per_token = np.log(np.exp(1) + 3) - np.array([1, 1, 0, 1, 1, 1, 1])
    assert found.loss == pytest.approx(per_token.mean(), rel=1e-6)
    nothing = evaluate(Given(*names), given(([tagged("O", "O")], [[0, 0]])), "tokens")
    assert nothing.metric == 0.0


def test_language_models_do_not_count_padding():
    torch.manual_seed(0)
    config = T.GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=32, vocab_size=40, bos_token_id=0, eos_token_id=0)
    model = T.GPT2LMHeadModel(config).eval()
    data = rows(5, lambda *_: {})
    split = evaluate(model, batches(load(model), data, samples=None, batch_size=2, seed=0), "causal_lm")
    loss, hits, count = 0.0, 0, 0
    with torch.no_grad():
        for row in data:  # one by one, without any padding
            ids = torch.tensor([row["input_ids"]])
            output = model(input_ids=ids, labels=ids)
            loss += output.loss.item() * (ids.shape[1] - 1)
            hits += int((output.logits[:, :-1].argmax(-1) == ids[:, 1:]).sum())
            count += ids.shape[1] - 1
    assert split.loss == pytest.approx(loss / count, rel=1e-6)
    assert split.metric == hits / count
    assert split.metric_name == "token accuracy"


@pytest.mark.parametrize(
    ("cls", "options", "task", "own"),
    [
        (T.BertLMHeadModel, {"is_decoder": True}, "masked_lm", "causal_lm"),
        (T.BertForSequenceClassification, {"num_labels": 1}, "multilabel", "regression"),
    ],
)
def test_a_task_is_that_of_the_model(cls, options, task, own):
    """Another one may have a loss and a metric that mean nothing, such as that of the token which was just read."""
    model = bert(cls, **options)
    data = batches(load(model), rows(4, lambda *_: {"label": 1.0}), samples=None, batch_size=2, seed=0)
    assert evaluate(model, data, own).loss > 0
    assert f"has the task '{own}', as task_of says" in refusal(model, data, task)


def test_a_masked_model_counts_what_it_has_to_guess():
    logits = [[[3.0, 0.0], [0.0, 1.0], [9.0, 0.0]]]
    found = evaluate(Given("a", "b"), given((logits, [[0, 0, -100]])), "masked_lm")
    assert found.metric == 0.5
    assert found.loss == pytest.approx((np.log1p(np.exp(-3)) + np.log1p(np.exp(1))) / 2)


def test_images_in_bfloat16():
    torch.manual_seed(0)
    small = {key: TINY[key] for key in ("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size")}
    model = T.ViTForImageClassification(T.ViTConfig(**small, image_size=8, patch_size=4, num_labels=3)).eval()
    data = [Batch({"pixel_values": torch.randn(4, 3, 8, 8)}, torch.tensor([0, 1, 2, 0]))]
    exact = evaluate(model, data, "image")
    assert exact.metric_name == "accuracy"
    assert evaluate(model.bfloat16(), data, "image").loss == pytest.approx(exact.loss, abs=0.05)


def refusal(*arguments):
    with pytest.raises(InputError) as caught:
        evaluate(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_refusals(monkeypatch):
    data = given(([[1.0, 0.0]], [0]))
    assert "no loss is known of this bert; name a model with a head for classification" in refusal(
        Given("a", "b"), data, "features"
    )
    unlabelled = [Batch(data[0].inputs, None)]
    assert "the rows have no labels" in refusal(Given("a", "b"), unlabelled, "classification")
    nothing = given(([[1.0, 0.0]], [-100]))
    assert "no label that counts" in refusal(Given("a", "b"), nothing, "classification")
    assert "no label that counts" in refusal(Given("a", "b"), [], "classification")
    training = bert(T.BertForSequenceClassification)
    training.bert.encoder.train()
    assert "the model, or a part of it, is in training mode" in refusal(training, data, "classification")
    assert "label 'LABEL_1' is not in IOB2" in refusal(Given("O", "LABEL_1"), data, "tokens")
    assert "no Pearson r of classification; expected accuracy or macro F1 or Matthews correlation" in refusal(
        Given("a", "b"), data, "classification", "Pearson r"
    )
    assert "no macro F1 of regression; expected Pearson r" in refusal(Given("a"), data, "regression", "macro F1")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "sklearn", None)
        assert "needs scikit-learn" in refusal(Given("a", "b"), data, "classification", "macro F1")
    monkeypatch.setitem(sys.modules, "seqeval.metrics", None)
    assert "pip install 'cobasin[evaluation]'" in refusal(Given("O", "B-X"), data, "tokens")
