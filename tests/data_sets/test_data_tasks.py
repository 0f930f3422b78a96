"""What a model is trained for is told from its class and config; labels by name."""

from __future__ import annotations

import math

import numpy as np
import pytest
from data_models import bert, named, refusal, vit
from pydantic import ValidationError

import tiny_models
from cobasin.data import DataConfig, task_of
from cobasin.data.rows import Numeral
from cobasin.data.tasks import Labels, score

EMOTIONS = named("joy", "anger", "fear")


@pytest.mark.parametrize(
    ("case", "task"),
    [
        ("gpt2/GPT2LMHeadModel", "causal_lm"),
        ("mistral/MistralForCausalLM", "causal_lm"),
        ("mistral/MistralForSequenceClassification", "classification"),
        ("bert/BertForMaskedLM", "masked_lm"),
        ("flaubert/FlaubertWithLMHeadModel", "masked_lm"),
        ("bert/BertForTokenClassification", "tokens"),
        ("bert/BertModel", "features"),
        ("t5/T5ForConditionalGeneration", "seq2seq_lm"),
        ("marian/MarianMTModel", "seq2seq_lm"),
        ("t5gemma2/T5Gemma2ForConditionalGeneration", "seq2seq_lm"),
        ("gemma3-pictures/Gemma3ForConditionalGeneration", "causal_lm"),
        ("bert-generation/BertGenerationDecoder", "causal_lm"),
        ("t5/T5ForSequenceClassification", "classification"),
        ("t5/T5EncoderModel", "features"),
        ("deit/DeiTForImageClassificationWithTeacher", "image"),
        ("vit/ViTModel", "features"),
    ],
)
def test_by_class(case, task):
    assert task_of(tiny_models.checkpoint(case)) == task


def test_an_xlm_that_looks_back_only_is_causal():
    made = tiny_models.checkpoint("xlm/XLMWithLMHeadModel")
    made.config.causal = True
    assert task_of(made) == "causal_lm"


def test_by_problem():
    head = "ForSequenceClassification"
    assert task_of(bert(head, num_labels=1)) == "regression"
    assert task_of(bert(head, num_labels=1, problem_type="regression")) == "regression"
    assert task_of(bert(head, num_labels=2, problem_type="single_label_classification")) == "classification"
    assert task_of(bert(head, problem_type="multi_label_classification")) == "multilabel"
    assert task_of(vit(problem_type="multi_label_classification")) == "multilabel"
    assert "regression of 2 numbers" in refusal(task_of, bert(head, problem_type="regression"))
    assert "a BertForMultipleChoice, which chooses among several" in refusal(task_of, bert("ForMultipleChoice"))
    assert "XLNetLMHeadModel, which sees" in refusal(task_of, tiny_models.checkpoint("xlnet/XLNetLMHeadModel"))


def test_a_label_by_name_index_or_new_name():
    labels = Labels.of(bert(**EMOTIONS), {"rage": "anger", 7: "fear", "happy": 0, "worse": "angst"})
    given = {"joy": 0, "2": 2, 1: 1, np.uint8(2): 2, np.str_("fear"): 2, "rage": 1, 7: 2, "7": 2, "happy": 0}
    assert {value: labels.index(value, "x") for value in given} == given
    assert "(columns: {label: null})" in refusal(labels.index, "love", "x")
    assert "(columns: {tags: null})" in refusal(Labels.of(bert(**EMOTIONS), {}, role="tags").index, "love", "x")
    for bad in ("Joy", "3", 3, -1, 0.0, None, "", "1.0", ["joy"], "9" * 5000, np.array([0, 1, 0])):
        line = refusal(labels.index, bad, "here")
        assert "here: label" in line
        assert "renamed" not in line
    assert "label 'worse', renamed 'angst', is none of the model's (joy, anger, fear)" in refusal(
        labels.index, "worse", "x"
    )


def test_a_name_of_the_model_comes_before_an_index():
    assert Labels.of(bert(**named("1", "0")), {}).index("0", "x") == 1


@pytest.mark.parametrize("value", [0, 1, "0"])
def test_a_number_that_may_be_a_name_or_an_index_is_refused(value):
    model = bert(**named("1", "2"))
    assert "called by other numbers than their indices" in refusal(Labels.of(model, {}).index, value, "x")
    assert Labels.of(model, {0: 0, 1: "1", "0": 0}).index(value, "x") == 0
    assert [Labels.of(bert(**named("0", "1")), {}).index(one, "x") for one in (0, "1")] == [0, 1]


@pytest.mark.parametrize("index", [0, 2, -1, "x"])
def test_a_name_of_which_a_config_says_two_things_is_refused(index):
    model = bert(**named("bad", "good"))
    model.config.label2id = {"bad": 0, "good": index}
    labels = Labels.of(model, {})
    line = refusal(labels.index, "good", "here")
    assert f"here: label good has the index {index!r} in label2id of the model's config" in line
    assert "contradicts id2label, a list of 2" in line
    assert labels.index("bad", "x") == labels.index(0, "x") == 0


def test_names_as_configs_have_them():
    model = bert(**named("bad", "good"))
    model.config.label2id = {"worse": 0, "better": "1", "old": 7}  # of what the model was made from
    labels = Labels.of(model, {})
    assert [labels.index(name, "x") for name in ("bad", "good", "worse", "better")] == [0, 1, 0, 1]
    assert "label old has the index 7" in refusal(labels.index, "old", "x")
    model.config.id2label, model.config.label2id = {0: "same", 1: "same"}, {"same": 1}
    assert Labels.of(model, {}).index("same", "x") == 1


@pytest.mark.parametrize(("true", "false"), [(True, False), (np.True_, np.False_)])
def test_a_boolean_is_called_by_its_name_or_else_an_index(true, false):
    def indices(renamed, **options):
        labels = Labels.of(bert(**options), renamed)
        return [labels.index(value, "x") for value in (true, false)]

    assert indices({}) == indices({}, **named("no", "yes")) == [1, 0]
    assert indices({"true": 0, "false": 1}) == indices({"True": 0, "False": 1}) == indices({1: 0, 0: 1}) == [0, 1]
    assert indices({}, **named("True", "False")) == indices({}, **named("true", "false")) == [0, 1]
    assert indices({"true": "true", "false": "True"}, **named("True", "true")) == [1, 0]


@pytest.mark.parametrize(
    "options",
    [
        {"labels": {True: 0, False: 1}},
        {"labels": {"positive": True}},
        {"annotated": ["joy", False]},
        {"columns": {"text": True}},
        {"where": {True: 1}},
    ],
)
def test_a_name_that_yaml_reads_as_a_boolean_is_refused(options):
    with pytest.raises(ValidationError, match="write the word in quotes, like 'true'"):
        DataConfig(path="x", **options)


def test_data_that_annotates_no_label_is_refused():
    with pytest.raises(ValidationError, match="annotated"):
        DataConfig(path="x", annotated=[])


def test_tags_are_renamed_with_their_prefix():
    labels = Labels.of(bert(**named("O", "B-PER", "I-PER")), {"person": "PER", "O": "O"})
    assert [labels.index(tag, "x") for tag in ("O", "B-person", "I-person", "B-PER")] == [0, 1, 2, 1]
    assert "label 'E-person', renamed 'E-PER'," in refusal(labels.index, "E-person", "x")


def test_what_is_renamed_as_it_stands_is_no_tag():
    labels = Labels.of(bert(**named("O", "B-PER", "tee")), {"shirt": "top", "T-shirt": "tee", "PER": 1, "B-PER": "O"})
    assert [labels.index(name, "x") for name in ("T-shirt", "B-PER", "PER")] == [2, 0, 1]
    assert "label 'X-shirt' is none" in refusal(labels.index, "X-shirt", "x")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("I-PER I-PER O I-LOC B-LOC", "B-PER I-PER O B-LOC B-LOC"),
        ("I-ORG I-GPE I-LOC O", "B-ORG B-LOC B-LOC O"),  # entities of their own, though of one type in the end
        ("B-PER I-PER O B-LOC I-LOC B-LOC", "B-PER I-PER O B-LOC I-LOC B-LOC"),
        ("S-PER B-LOC I-LOC E-LOC O U-LOC", "B-PER B-LOC I-LOC I-LOC O B-LOC"),
        ("-100 I-PER -100 I-PER", "-100 B-PER -100 I-PER"),
    ],
)
def test_tags_in_iob1_are_brought_to_iob2(given, expected):
    names = ["O", *(f"{letter}-{kind}" for kind in ("PER", "LOC", "ORG") for letter in "BI")]
    renamed = {"GPE": "LOC", "S-PER": "B-PER", "E-LOC": "I-LOC", "U-LOC": "B-LOC"}
    labels = Labels.of(bert(**named(*names)), renamed)
    tags = [int(tag) if tag == "-100" else tag for tag in given.split()]
    assert labels.of_tags(tags, "x") == [int(tag) if tag == "-100" else names.index(tag) for tag in expected.split()]


@pytest.mark.parametrize("more", [(), ("B-LOC",)])
def test_tags_for_a_model_of_iob1_stay_as_they_are(more):
    """Of CoNLL-2003 it never saw ``B-PER``, as no two persons follow each other there."""
    labels = Labels.of(bert(**named("O", "I-PER", "I-LOC", *more)), {})
    assert labels.of_tags(["O", "I-PER", "I-PER", "I-LOC"], "x") == [0, 1, 1, 2]


def test_a_name_of_a_class_that_is_a_number_is_no_index():
    """As of yelp_polarity, whose class 1 is the first."""
    model = bert(**named("bad", "good"))
    line = refusal(Labels.of(model, {}).index, Numeral("1"), "here")
    assert line == (
        "here: class '1' of the data set is a number, but not its place among the classes, and none of the model's "
        "labels; say under 'labels' which label of the model every class is (labels: {'1': NAME OR INDEX, ...})"
    )
    for renamed in ({"1": 0, "2": 1}, {"1": "bad", "2": "good"}, {1: 0, 2: 1}):
        labels = Labels.of(model, renamed)
        assert [labels.index(Numeral(name), "x") for name in "12"] == [0, 1]
    assert Labels.of(bert(**named("1", "2")), {}).index(Numeral("2"), "x") == 1


def test_indicators():
    labels = Labels.of(bert(**EMOTIONS), {"rage": "anger", "hate": "anger"})

    def vector(value, annotated=None):
        return ["nan" if math.isnan(one) else one for one in labels.indicators(value, "x", annotated)]

    assert vector(["joy", "fear"]) == vector([0, 2]) == vector([1.0, 0.0, 1.0]) == [1, 0, 1]
    assert vector(np.array([True, False, True])) == vector(np.array([2, 0])) == [1, 0, 1]
    assert vector([]) == [0, 0, 0]
    assert vector("fear") == vector(2) == [0, 0, 1]
    assert vector(["rage", "hate"]) == [0, 1, 0]
    assert vector([1.0, math.nan, 0.0]) == [1, "nan", 0]
    assert vector(["joy"], {0, 2}) == [1, "nan", 0]
    for bad in (
        None,
        1.0,
        {"joy": "?"},
        {"love": 1},
        [1.0, 0.0],
        [0.5, 0.0, 1.0],
        [1, 1, 0],
        ["joy", "joy"],
        [3],
        ["love"],
    ):
        refusal(labels.indicators, bad, "x", None)
    assert refusal(labels.indicators, ["anger"], "x", {0, 2}) == "x: has label anger, which is not under 'annotated'"


def test_numbers_that_may_be_indices_or_a_vector_are_refused():
    labels = Labels.of(bert(**named("joy", "anger")), {})
    assert "indices, or a vector?" in refusal(labels.indicators, [0, 1], "x", None)
    assert "indices, or a vector?" in refusal(labels.indicators, np.array([1, 0]), "x", None)
    assert "indices, or a vector?" in refusal(labels.indicators, (0, 1), "x", None)
    one = Labels.of(bert(**named("fear")), {})
    assert "indices, or a vector?" in refusal(one.indicators, [0], "x", None)
    assert one.indicators([0.0], "x", None) == [0.0]
    assert labels.indicators([0.0, 1.0], "x", None) == labels.indicators([1], "x", None) == [0, 1]
    assert labels.indicators(["anger", "joy"], "x", None) == [1, 1]


def test_indicators_of_scores():
    labels = Labels.of(bert(**EMOTIONS), {"rage": "anger", "hate": "anger"}, 0.1)

    def vector(value, annotated=None):
        return ["nan" if math.isnan(one) else one for one in labels.indicators(value, "x", annotated)]

    assert vector({"joy": 1, "anger": 0, "fear": None}) == [1, 0, "nan"]
    assert vector({"joy": 0.1, "fear": 0.2, "love": None}) == [0, "nan", 1]
    assert vector({"rage": 1, "hate": 0}) == vector({"hate": 0, "rage": 1}) == ["nan", 1, "nan"]
    assert vector({"joy": 1, "anger": 0}, {0}) == [1, "nan", "nan"]
    assert refusal(labels.indicators, {"joy": "?"}, "x", None) == "x, joy: label '?' is not a finite number"


def test_scores():
    assert [score(value, "x") for value in (3, "2.5", np.float32(0.5))] == [3.0, 2.5, 0.5]
    for bad in (None, True, "high", math.inf, "nan", [1.0], 10**400):
        assert "is not a finite number" in refusal(score, bad, "x")
    assert refusal(score, -1e300, "x") == "x: label -1e+300 is beyond float32, in which models compute"
