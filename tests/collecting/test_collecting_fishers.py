"""Fisher information against the definition: one example at a time, written out."""

import math

import pytest
import torch
import transformers as T
from plain_batches import PlainBatches, batch, text_rows

import tiny_models
from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.running import instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.data import Batch
from cobasin.errors import InputError
from cobasin.statistics.fishers import Fishers
from families import SMALL
from sampling import one_in


def bert(head, **options):
    """A small BERT with a head, generic values and float64 numbers."""
    torch.manual_seed(0)
    model = getattr(T, f"BertFor{head}")(T.BertConfig(**SMALL, **options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.tie_weights()
    return load(model.double().eval())


def fishers(checkpoint, task, batches, sampled, seed=0):
    typed = Typed.of(checkpoint)
    sums = Fishers(instantiate(checkpoint, torch.float64), typed, task, sampled, seed)
    row = 0
    for one in batches:
        sums.add(one.inputs, one.labels, row)
        row += len(next(iter(one.inputs.values())))
    return sums.result(row)


def expected(checkpoint, rows, terms):
    """Mean over rows of ``Σ weight (∇ value)²`` for the terms (weight, value) of a row, by in-memory name."""
    model = instantiate(checkpoint, torch.float64)
    sums = {name: torch.zeros_like(one) for name, one in model.named_parameters()}
    for row in rows:
        for weight, value in terms(model, row):
            model.zero_grad()
            value.backward(retain_graph=True)
            for name, one in model.named_parameters():
                if one.grad is not None:
                    sums[name] += weight * one.grad**2 / len(rows)
    return {name.removeprefix(f"{model.base_model_prefix}."): one.detach() for name, one in sums.items()}


def logits_of(model, row):
    return model(**batch([{k: v for k, v in row.items() if k != "labels"}]).inputs).logits[0]


def same(found, reference, rtol=1e-7):
    assert found.keys() == reference.keys()
    return all(torch.allclose(found[name], reference[name], rtol=rtol, atol=1e-14) for name in found)


def class_term(model, row):
    return [(1, logits_of(model, row).log_softmax(-1)[row["labels"]])]


def score_term(model, row):
    return [(1, -((logits_of(model, row)[0] - row["labels"]) ** 2) / 2)]


def flags_term(model, row):
    logits, flags = logits_of(model, row), row["labels"]
    known = [i for i in range(len(flags)) if not flags[i].isnan()]
    terms = [logits[i].sigmoid().log() if flags[i] == 1 else (-logits[i]).sigmoid().log() for i in known]
    return [(1, sum(terms))] if terms else []


def tokens_term(model, row):
    logs = logits_of(model, row).log_softmax(-1)
    terms = [logs[t, label] for t, label in enumerate(row["labels"].tolist()) if label != -100]
    return [(1, sum(terms))] if terms else []


def text_term(model, row):
    logs = logits_of(model, row).log_softmax(-1)
    ids = row["input_ids"].tolist()
    return [(1, sum(logs[t - 1, ids[t]] for t in range(1, len(ids))))]


EMPIRICAL = {
    "classification": ("SequenceClassification", {"num_labels": 3}, "class", class_term),
    "regression": ("SequenceClassification", {"num_labels": 1}, "number", score_term),
    "multilabel": (
        "SequenceClassification",
        {"num_labels": 3, "problem_type": "multi_label_classification"},
        "flags",
        flags_term,
    ),
    "tokens": ("TokenClassification", {"num_labels": 3}, "tokens", tokens_term),
    "masked_lm": ("MaskedLM", {}, "tokens", tokens_term),
}


@pytest.mark.parametrize("task", EMPIRICAL)
def test_labels_of_the_data(task):
    head, options, labels, terms = EMPIRICAL[task]
    checkpoint, rows = bert(head, **options), text_rows(7, 40, labels=labels)
    found = fishers(checkpoint, task, PlainBatches(rows, 3), sampled=False)
    assert same(found, expected(checkpoint, rows, terms))
    assert not same(found, expected(checkpoint, rows[:-1], terms), rtol=1e-3)


def test_a_batch_is_not_one_example():
    """The square of the gradient of a batch is something else than the sum of squares."""
    checkpoint, rows = bert("SequenceClassification", num_labels=3), text_rows(4, 40, labels="class")
    found = fishers(checkpoint, "classification", PlainBatches(rows, 4), sampled=False)
    of_all = expected(checkpoint, [0], lambda model, _: [(1, sum(class_term(model, row)[0][1] for row in rows))])
    assert not same(found, {name: one / 4 for name, one in of_all.items()}, rtol=1e-2)


def test_the_next_token():
    for case in ("gpt2/GPT2LMHeadModel", "llama-gqa/LlamaForCausalLM"):
        checkpoint, rows = tiny_models.checkpoint(case), text_rows(4, 40, labels="text")
        found = fishers(checkpoint, "causal_lm", PlainBatches(rows, 4), sampled=False)
        assert same(found, expected(checkpoint, rows, text_term), rtol=1e-4)
        assert not same(found, expected(checkpoint, rows, tokens_term), rtol=1e-2)


def draws(checkpoint, task, rows, name, count):
    """The Fisher information of one tensor from the labels of each of many draws: mean, and its standard error."""
    sums = Fishers(instantiate(checkpoint, torch.float64), Typed.of(checkpoint), task, sampled=True)
    one, found = batch(rows), []
    for i in range(count):
        before = sums.state()[name].clone()
        sums.add(one.inputs, one.labels, i * len(rows))
        found.append((sums.state()[name] - before) / len(rows))
    values = torch.stack(found)
    return values.mean(0), values.std(0) / math.sqrt(count)


def every_class(logits):
    """The terms of the expectation over the classes of a row of logits."""
    logs = logits.log_softmax(-1)
    return [(float(one.detach().exp()), one) for one in logs]


def test_own_labels_of_a_classifier():
    """Drawn labels give, in the mean over many draws, the expectation over the classes."""
    checkpoint, rows = bert("SequenceClassification", num_labels=3), text_rows(3, 40, labels="class")
    reference = expected(checkpoint, rows, lambda model, row: every_class(logits_of(model, row)))["classifier.bias"]
    mean, error = draws(checkpoint, "classification", rows, "classifier.bias", 100)
    assert ((mean - reference).abs() < 3 * error).all()
    assert (error < 0.2 * reference).all()
    of_data = fishers(checkpoint, "classification", PlainBatches(rows, 3), sampled=False)["classifier.bias"]
    assert ((of_data - reference).abs() > 3 * error).any()


def test_own_labels_of_every_token():
    """One draw a token: the cross terms of the squared sum vanish in expectation."""
    checkpoint, rows = bert("TokenClassification", num_labels=2), text_rows(2, 40, labels="tokens", classes=2)

    def terms(model, row):
        logits = logits_of(model, row)
        return [
            term for t, label in enumerate(row["labels"].tolist()) if label != -100 for term in every_class(logits[t])
        ]

    reference = expected(checkpoint, rows, terms)["classifier.bias"]
    mean, error = draws(checkpoint, "tokens", rows, "classifier.bias", 100)
    assert ((mean - reference).abs() < 3 * error).all()
    assert (error < 0.2 * reference).all()


def test_own_labels_of_several_labels():
    """Every label that the data annotates is drawn by itself; of the others a model may not have learned anything."""
    options = {"num_labels": 2, "problem_type": "multi_label_classification"}
    checkpoint, rows = bert("SequenceClassification", **options), text_rows(2, 40, labels="flags", classes=3)
    rows = [row | {"labels": row["labels"][:2]} for row in rows]
    assert torch.stack([row["labels"] for row in rows]).isnan().any()

    def terms(model, row, every=False):
        pairs = logits_of(model, row)[:, None] * torch.tensor([1.0, 0.0])  # sigmoid is softmax against 0
        drawn = [pair for pair, label in zip(pairs, row["labels"], strict=True) if every or not label.isnan()]
        return [term for pair in drawn for term in every_class(pair)]

    reference = expected(checkpoint, rows, terms)["classifier.bias"]
    mean, error = draws(checkpoint, "multilabel", rows, "classifier.bias", 100)
    assert ((mean - reference).abs() < 3 * error).all()
    assert (error < 0.2 * reference).all()
    of_all = expected(checkpoint, rows, lambda model, row: terms(model, row, every=True))["classifier.bias"]
    assert ((mean - of_all).abs() > 3 * error).any()


def test_a_number_needs_no_draw():
    """Over a Gaussian of unit variance, the expectation is the squared gradient of the output."""
    checkpoint, rows = bert("SequenceClassification", num_labels=1), text_rows(4, 40, labels="number")
    found = fishers(checkpoint, "regression", PlainBatches(rows, 4), sampled=True)
    assert same(found, expected(checkpoint, rows, lambda model, row: [(1, logits_of(model, row)[0])]))
    assert not same(found, expected(checkpoint, rows, score_term), rtol=1e-2)


def test_draws_belong_to_rows():
    """The same whatever the size of the batches, other for another seed."""
    checkpoint, rows = bert("SequenceClassification", num_labels=3), text_rows(6, 40, labels="class")
    ones, fours = (fishers(checkpoint, "classification", PlainBatches(rows, n), sampled=True) for n in (1, 4))
    assert same(ones, fours)
    other = fishers(checkpoint, "classification", PlainBatches(rows, 1), sampled=True, seed=1)
    assert not same(ones, other, rtol=1e-2)


CASES = [
    ("vit/ViTForImageClassification", "image"),
    ("mixtral/MixtralForCausalLM", "causal_lm"),
    ("mixtral-fused/MixtralForCausalLM", "causal_lm"),
    ("qwen2moe/Qwen2MoeForSequenceClassification", "classification"),
    ("t5/T5ForConditionalGeneration", "seq2seq_lm"),
    ("dinov2-swiglu/Dinov2ForImageClassification", "image"),
    ("gpt2/GPT2LMHeadModel", "causal_lm"),
    ("albert/AlbertForMaskedLM", "masked_lm"),
]


def example(case, task):
    """One row that a case reads, with its label."""
    row = text_rows(1, 40, seed=2, labels="text")[0]
    if task == "image":
        return {"pixel_values": torch.randn(3, 8, 8).double(), "labels": torch.tensor(1)}
    if task == "classification":
        return row | {"labels": torch.tensor(1)}
    if task == "seq2seq_lm":
        return row | {"decoder_input_ids": torch.arange(6, 11), "labels": torch.arange(7, 12)}
    return row


@pytest.mark.parametrize(("case", "task"), one_in(2, CASES))
def test_every_entry_is_that_of_the_file(case, task):
    """Squared central differences of the log-likelihood, in entries of the tensors of the file."""
    torch.manual_seed(0)
    checkpoint = tiny_models.checkpoint(case)
    typed, row = Typed.of(checkpoint), example(case, task)
    found = fishers(checkpoint, task, PlainBatches([row], 1), sampled=False)
    assert found.keys() == typed.keys() - typed.spec.tied.keys()
    terms = {"image": class_term, "classification": class_term, "causal_lm": text_term}.get(task, tokens_term)

    def value(name, place, step):
        state = {one: typed[one].clone() for one in [name]}
        state[name].view(-1)[place] += step
        moved = typed.derived({**typed, **state})
        return float(terms(instantiate(moved, torch.float64), row)[0][1].detach())

    checked = 0
    for name in sorted(found)[:: max(1, len(found) // 12)]:
        assert found[name].shape == typed[name].shape
        place = int(found[name].argmax())
        size = float(found[name].view(-1)[place])
        if size < 1e-4:  # gauge, or experts that are not asked
            continue
        slope = (value(name, place, 1e-3) - value(name, place, -1e-3)) / 2e-3
        assert slope**2 == pytest.approx(size, rel=2e-2), name
        checked += 1
    assert checked > 4


def test_models_without_a_likelihood():
    checkpoint = tiny_models.checkpoint("bert/BertModel")
    with pytest.raises(InputError, match="a BertModel has no head whose likelihood is known"):
        fishers(checkpoint, "features", PlainBatches(text_rows(1, 40), 1), sampled=True)


def test_data_without_labels():
    checkpoint = bert("SequenceClassification", num_labels=3)
    batches = PlainBatches(text_rows(2, 40), 2)
    with pytest.raises(InputError, match="labels of the data: it has none"):
        fishers(checkpoint, "classification", batches, sampled=False)
    assert fishers(checkpoint, "classification", batches, sampled=True)["classifier.bias"].sum() > 0
    unlabelled = fishers(bert("TokenClassification", num_labels=3), "tokens", batches, sampled=True)
    assert unlabelled["classifier.bias"].sum() > 0


def test_a_row_that_overflows():
    model = instantiate(bert("SequenceClassification", num_labels=3), torch.float64)
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = torch.inf
    sums = Fishers(model, Typed.of(load(model)), "classification", sampled=True)
    rows = [{"input_ids": torch.tensor([5, 6]), "attention_mask": torch.tensor([1, 1])} for _ in range(3)]
    rows[2]["input_ids"] = torch.tensor([5, 7])
    with pytest.raises(InputError, match="log-likelihood of row 13 of the data is nan"):
        sums.add(batch(rows).inputs, None, 10)


def test_gradients_may_be_larger_than_any_weight():
    """Of labels that are prices; squared, they are not taken for weights of a training that diverged."""
    checkpoint = bert("SequenceClassification", num_labels=1)
    inputs = {"input_ids": torch.tensor([[5, 6]]), "attention_mask": torch.ones(1, 2, dtype=torch.int64)}
    (found, tiny) = (
        fishers(checkpoint, "regression", [Batch(inputs, torch.tensor([price]))], sampled=False)["classifier.bias"]
        for price in (250_000.0, 2.5)
    )
    assert float(found) > 1e9 > float(tiny)


def test_labels_none_of_which_counts_have_no_fisher_information():
    checkpoint = bert("TokenClassification")
    rows = [{"input_ids": torch.tensor([[3, 4]]), "labels": torch.full((1, 2), -100)}]
    with pytest.raises(InputError, match="the Fisher information is 0 in every parameter: no label of the data counts"):
        fishers(checkpoint, "tokens", [Batch({"input_ids": row["input_ids"]}, row["labels"]) for row in rows], False)
