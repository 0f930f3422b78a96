"""Sampling, order, digests; and every way in which a row does not fit the model."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from data_models import bert, jsonl, named, refusal, vit

import tiny_models
from cobasin.data import DataConfig, batches, rows_of

ROWS = [{"text": f"row {number}", "label": number % 2} for number in range(10)]
ALL = {"samples": None, "batch_size": 4, "seed": 0}


def ids(made):
    return [row for batch in made for row in batch.inputs["input_ids"].tolist()]


def test_all_rows_in_order_again_and_again():
    made = batches(bert(), ROWS, **ALL)
    assert (made.rows, len(made), len(list(made))) == (10, 3, 3)
    assert ids(made) == ids(made)
    assert [label for batch in made for label in batch.labels.tolist()] == [0, 1] * 5


def test_samples_are_shuffled_by_the_seed():
    one, again, other = (batches(bert(), ROWS, **{**ALL, "samples": 6, "seed": seed}) for seed in (1, 1, 2))
    assert (one.rows, len(one)) == (6, 2)
    assert ids(one) == ids(again) != ids(other)
    assert len(set(map(tuple, ids(one)))) == 6
    assert batches(bert(), ROWS, **{**ALL, "samples": 100}).rows == 10


def test_a_data_set_in_memory_has_classes_by_their_names(tmp_path):
    """As where it is saved, whatever it gives its rows as; a transform could say anything."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"input_ids": datasets.List(datasets.Value("int64")), "label": datasets.ClassLabel(names=["joy", "anger"])}
    )
    given = datasets.Dataset.from_dict({"input_ids": [[5, 6]] * 2, "label": [0, 1]}, features)
    given.save_to_disk(tmp_path / "saved")
    model = bert(folder=tmp_path, **named("anger", "joy"))
    for data in (given, given.with_format("numpy"), tmp_path / "saved"):
        assert next(iter(batches(model, data, **ALL))).labels.tolist() == [1, 0]
    assert "has a transform" in refusal(batches, model, given.with_transform(lambda rows: rows), **ALL)


def test_skip_goes_on_where_it_stopped():
    made = batches(bert(), ROWS, **{**ALL, "samples": 10})
    rest = made.skip(1)
    assert len(rest) == 2
    assert ids(rest) == ids(made)[4:]
    assert ids(rest.skip(1)) == ids(made)[8:]
    assert (len(made.skip(9)), ids(made.skip(9))) == (0, [])
    assert (rest.rows, rest.digest) == (made.rows, made.digest)


def test_shuffled_are_the_batches_that_are_left():
    made = batches(bert(), ROWS, **{**ALL, "batch_size": 2})
    rest = made.skip(1)
    one, again, other = ([ids([batch]) for batch in rest.shuffled(seeded(seed))] for seed in (0, 0, 1))
    whole = [ids([batch]) for batch in rest]
    assert one == again
    assert one not in (other, whole)
    assert sorted(one) == sorted(other) == sorted(whole)
    assert [ids([batch]) for batch in rest.shuffled(seeded(0)).skip(1)] == one[1:]
    assert len(rest.shuffled(seeded(0))) == len(rest) == len(made) - 1


def test_by_length_the_longest_rows_come_first_each_with_its_label():
    rows = [{"text": "row " * count, "label": count // 3 % 2} for count in (3, 9, 1, 7, 5)]
    made = batches(bert(), rows, **{**ALL, "batch_size": 2})
    ordered = made.by_length()
    words = [length for batch in ordered for length in batch.inputs["attention_mask"].sum(1).tolist()]
    assert words == sorted(words, reverse=True)
    assert [label for batch in ordered for label in batch.labels.tolist()] == [1, 0, 1, 1, 0]
    padding = [sum(int((batch.inputs["attention_mask"] == 0).sum()) for batch in each) for each in (ordered, made)]
    assert padding[0] < padding[1]
    assert (ordered.rows, ordered.digest) == (made.rows, made.digest)
    rest = made.skip(1).by_length()
    assert [label for batch in rest for label in batch.labels.tolist()] == [0, 1, 0]


def test_what_is_masked_does_not_depend_on_by_length():
    rows = [{"text": "row " * count} for count in (3, 9, 1, 7, 5)]
    made = batches(bert("ForMaskedLM"), rows, **{**ALL, "batch_size": 2})
    assert ids(made.by_length()) == ids(made)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_a_language_model_samples_blocks_of_few_documents(tmp_path):
    (tmp_path / "a.txt").write_text(" ".join(f"word{number}" for number in range(99)))
    model = bert("LMHeadModel", is_decoder=True)
    data = DataConfig(path=str(tmp_path / "a.txt"), block=10)
    whole = {tuple(row) for row in ids(batches(model, data, **ALL))}
    made = batches(model, data, **{**ALL, "samples": 5})
    assert made.rows == len(ids(made)) == 5
    assert {tuple(row) for row in ids(made)} < whole
    documents = [{"text": text} for text in ("one two", " ", "three four", "five six")]
    few = batches(model, documents, **{**ALL, "samples": 2})
    assert few.rows == 2
    assert {tuple(row) for row in ids(few)} < {tuple(row) for row in ids(batches(model, documents, **ALL))}


def digest(model=None, rows=ROWS, **options):
    return batches(model or bert(), rows, **{**ALL, **options}).digest


def test_equal_data_has_one_digest(tmp_path):
    text = jsonl(tmp_path / "a.jsonl", *ROWS)
    renamed = jsonl(tmp_path / "b.jsonl", *({"id": 7, "sentence": row["text"], "label": row["label"]} for row in ROWS))
    assert digest() == digest(bert(max_position_embeddings=64)) == digest(rows=DataConfig(path=text))
    assert digest() == digest(rows=DataConfig(path=renamed, columns={"text": "sentence"}))
    assert digest(bert(**named("no", "yes")), [{"text": "x", "label": "yes"}]) == digest(
        rows=[{"text": "x", "label": 1}]
    )


def test_other_inputs_have_other_digests(tmp_path):
    text = jsonl(tmp_path / "a.jsonl", *ROWS)
    pairs = [{"text": "a", "text_b": "b"}, {"text": "ab", "text_b": ""}, {"text": "a"}, {"text": "b"}]
    found = [
        digest(),
        digest(rows=[*ROWS[:9], {**ROWS[9], "text": "row 9."}]),
        digest(rows=[*ROWS[:9], {**ROWS[9], "label": 0}]),
        digest(rows=[{"text": row["text"]} for row in ROWS]),
        digest(rows=ROWS[:9]),
        digest(rows=ROWS[::-1]),
        digest(batch_size=5),
        digest(seed=1),
        digest(samples=10),
        digest(samples=9),
        digest(bert("Model")),
        digest(bert(max_position_embeddings=32)),
        digest(bert(pad_token_id=1)),
        digest(rows=DataConfig(path=text, max_length=8)),
        *(digest(rows=[row]) for row in pairs),
        digest(rows=[{"input_ids": [5, 6]}]),
        digest(rows=[{"input_ids": [56]}]),
        digest(rows=[{"tokens": ["a", "b"]}]),
        digest(rows=[{"tokens": ["ab"]}]),
    ]
    assert len(set(found)) == len(found)


def test_the_tokenizer_counts(tmp_path):
    source = bert().folder
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    copied = digest(bert(folder=tmp_path))
    content = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(content.replace('"lowercase":true', '"lowercase":false'), encoding="utf-8")
    assert digest(bert(folder=tmp_path)) != copied


@pytest.mark.parametrize(
    ("model", "row", "role"),
    [
        (bert("ForTokenClassification"), {"tokens": ["a"], "tags": ["X"]}, "tags"),
        (bert(problem_type="multi_label_classification"), {"text": "a", "labels": ["X"]}, "labels"),
        (bert(), {"text": "a", "label": "X"}, "label"),
    ],
)
def test_labels_that_are_not_needed_are_left_out_by_their_role(model, row, role):
    assert f"leave them out (columns: {{{role}: null}})" in refusal(batches, model, [row], **ALL)


def test_labels_that_are_numbers_with_a_point(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", {"text": "a", "label": 1.0}, {"text": "b", "label": 0.0})
    for labels in ({0.0: 0, 1.0: 1}, {"0.0": 0, "1.0": 1}):
        assert next(iter(batches(bert(), {"path": path, "labels": labels}, **ALL))).labels.tolist() == [1, 0]


def test_images_count_and_how_they_are_normalised(tmp_path):
    images = np.zeros((2, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "a.npz", image=images)
    images[1, 0, 0, 0] = 1
    np.savez(tmp_path / "b.npz", image=images)
    found = {
        digest(vit(), DataConfig(path=str(tmp_path / name), **options))
        for name in ("a.npz", "b.npz")
        for options in ({"mean": [0], "std": [1]}, {"mean": [0.5], "std": [1]}, {"mean": [0], "std": [1], "crop": 8})
    }
    assert len(found) == 6
    assert digest(vit(), DataConfig(path=str(tmp_path / "a.npz"), mean=[0.0], std=[1.0])) in found


def test_another_process_finds_the_same_digest_and_imports_little(tmp_path):
    data = DataConfig(path=jsonl(tmp_path / "a.jsonl", *ROWS))
    code = f"""
import sys
from cobasin.data import DataConfig, rows_of
print(rows_of(DataConfig(path={data.path!r})).digest, {{'transformers', 'datasets', 'PIL'}} & set(sys.modules))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == [rows_of(data).digest, "set()"]


TAGGER = {"head": "ForTokenClassification", **named("O", "B-PER")}
GOOD = {"text": "fine", "label": 0}
TAGGED = {"tokens": ["a"], "tags": ["O"]}


@pytest.mark.parametrize(
    ("options", "good", "bad", "message"),
    [
        ({}, GOOD, {"label": 0}, "no column 'text' (there are: label); say which one it is under 'columns'"),
        ({}, GOOD, {"text": "x"}, "no column 'label' (there are: text)"),
        ({}, GOOD, {"text": 3, "label": 0}, "text is 3; expected a string"),
        ({}, {**GOOD, "text_b": "x"}, {**GOOD, "text_b": None}, "text_b is None; expected a string"),
        ({}, GOOD, {"text": "x", "label": 2}, "label 2 is none of the model's (LABEL_0, LABEL_1) and no index below 2"),
        ({}, GOOD, {"text": "x", "label": None}, "label None is none of"),
        ({}, GOOD, ["x"], "expected a mapping"),
        ({"num_labels": 1}, GOOD, {"text": "x", "label": "high"}, "label 'high' is not a finite number"),
        ({}, {"input_ids": [1]}, {"input_ids": [30522]}, "token id 30522 is outside the vocabulary of 30522"),
        ({}, {"input_ids": [1]}, {"input_ids": [-1]}, "token id -1 is outside"),
        ({}, {"input_ids": [1]}, {"input_ids": []}, "input_ids is []; expected a list of token ids"),
        ({}, {"input_ids": [1]}, {"input_ids": [1.5]}, "expected a list of token ids"),
        ({}, {"input_ids": [1]}, {"input_ids": "1 2"}, "expected a list of token ids"),
        ({}, {"input_ids": [1]}, {"input_ids": [[1], [2, 3]]}, "expected a list of token ids"),
        ({}, {"input_ids": [1]}, {"input_ids": [1] * 65}, "has 65 tokens in input_ids; expected at most 64"),
        ({}, {"input_ids": [1]}, {"input_ids": [1, 2], "attention_mask": [1]}, "expected 2 of 0 and 1"),
        ({}, {"input_ids": [1]}, {"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}, "with the ones together"),
        ({}, {"input_ids": [1]}, {"input_ids": [1], "attention_mask": [0]}, "with the ones together"),
        ({}, {"input_ids": [1]}, {"input_ids": [1, 2], "attention_mask": [1, "x"]}, "expected 2 of 0 and 1"),
        ({}, {"input_ids": [1]}, {"input_ids": [1, 2], "attention_mask": [-1e4, 2]}, "expected 2 of 0 and 1"),
        (TAGGER, TAGGED, {"tokens": ["a", "b"], "tags": ["O"]}, "has 2 tokens and 1 tags; expected a tag a token"),
        (TAGGER, TAGGED, {"tokens": ["a"], "tags": "O"}, "has 1 tokens and tags 'O'"),
        (TAGGER, TAGGED, {"tokens": ["a"], "tags": ["B-LOC"]}, "label 'B-LOC' is none of the model's (O, B-PER)"),
        (TAGGER, TAGGED, {"tokens": "a b", "tags": ["O"]}, "tokens are 'a b'; expected a list of strings"),
        (TAGGER, TAGGED, {"tokens": [], "tags": []}, "tokens are []; expected a list of strings"),
        (TAGGER, TAGGED, {"tokens": ["a", None], "tags": ["O", "O"]}, "expected a list of strings"),
        ({"head": "LMHeadModel"}, {"text": "x y"}, {"text": None}, "text is None; expected a string"),
        ({"head": "LMHeadModel"}, {"input_ids": [1, 2]}, {"input_ids": None}, "expected a list of token ids"),
    ],
)
def test_the_first_bad_row_is_named(options, good, bad, message):
    found = refusal(batches, bert(**options), [good, good, bad], **ALL)
    assert found.startswith("rows[2]: ")
    assert message in found


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"label": 0}, "no column 'image'"),
        ({"image": np.zeros((8, 8, 4))}, "image has shape [8, 8, 4]; the model reads [height, width, 3]"),
        ({"image": np.zeros((8, 8), np.uint8)}, "image has shape [8, 8, 1]"),
        (
            {"image": np.zeros((1, 8, 8, 3))},
            "image is float64 of shape [1, 8, 8, 3]; expected [height, width, channels]",
        ),
        ({"image": np.zeros((8, 8, 3), np.int64)}, "image is int64"),
        ({"image": 5}, "image is 5; expected"),
        ({"image": np.zeros((0, 8, 3))}, "image is float64 of shape [0, 8, 3]; expected"),
        ({"image": np.full((8, 8, 3), np.nan)}, "image has NaN or infinite pixels"),
        ({"image": np.full((8, 8, 3), -np.inf)}, "image has NaN or infinite pixels"),
    ],
)
def test_the_first_bad_image_is_named(bad, message):
    found = refusal(batches, vit(), [{"image": np.zeros((8, 8, 3))}, bad], **ALL)
    assert found.startswith("rows[1]: ")
    assert message in found


def test_what_is_wrong_with_an_array_is_said_in_one_line(tmp_path):
    np.savez(tmp_path / "a.npz", text=["a", "b"], label=np.zeros((2, 2, 2)))
    message = refusal(batches, bert(), DataConfig(path=str(tmp_path / "a.npz")), **ALL)
    assert "[0]: label array([[0., 0.], [0., 0.]]) is none of the model's" in message
    for labels, said in (([7, 7], "7"), (["bad", "bad"], "'bad'")):
        np.savez(tmp_path / "b.npz", text=["a", "b"], label=labels)
        message = refusal(batches, bert(), DataConfig(path=str(tmp_path / "b.npz")), **ALL)
        assert f"[0]: label {said} is none of the model's" in message


@pytest.mark.parametrize(
    ("arrays", "wanted"),
    [
        ({"tokens": ["ab", "cd"]}, r"tokens are .*'ab'.*expected a list of strings"),
        ({"tokens": ["ab", "cd"], "tags": ["OO", "OO"]}, r"tokens are .*'ab'.*expected a list of strings"),
        ({"tokens": [["a", "b"]], "tags": ["OO"]}, r"2 tokens and tags .*'OO'.*; expected a tag a token"),
        ({"tokens": [["a", "b"]], "tags": [[[0, 0], [0, 0]]]}, r"2 tokens and tags array.*; expected a tag a token"),
    ],
)
def test_arrays_that_hold_no_list_a_row(tmp_path, arrays, wanted):
    """A text of NumPy's is not taken for the list of its characters."""
    np.savez(tmp_path / "a.npz", **arrays)
    model = bert("ForTokenClassification", **named("O", "B-PER", "I-PER"))
    assert re.search(wanted, refusal(batches, model, DataConfig(path=str(tmp_path / "a.npz")), **ALL))


def test_only_rows_that_are_used_are_checked():
    rows = [{"text": "fine", "label": 0}] * 20 + [{"text": "x", "label": "?"}]
    made = [batches(bert(), rows, samples=1, batch_size=1, seed=seed) for seed in range(3)]
    assert all(one.rows == 1 for one in made)
    refusal(batches, bert(), rows, samples=21, batch_size=1, seed=0)


def test_bad_lines_of_a_file_are_named_by_number(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", GOOD, {"text": "x", "label": "maybe"})
    assert f"{path}: line 2: label 'maybe'" in refusal(batches, bert(), DataConfig(path=path), **ALL)


def test_empty_data():
    for head in ("ForSequenceClassification", "LMHeadModel"):
        assert refusal(batches, bert(head), [], **ALL) == "rows: is empty"
    for row in {"text": "\n"}, {"input_ids": [3]}:
        line = refusal(batches, bert("LMHeadModel"), [row], **ALL)
        assert line == "rows: no text has two tokens, the least that a language model learns from"


def test_numbers_from_one_on():
    for options in ({"samples": 0}, {"batch_size": 0}, {"samples": -1}, {"seed": -1}):
        assert "expected whole numbers from 1 on" in refusal(batches, bert(), ROWS, **{**ALL, **options})


def test_text_needs_a_tokenizer(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')  # of which transformers makes an empty tokenizer
    for folder in (None, tmp_path):
        model = bert()
        model.folder = folder
        assert "has no tokenizer, which text needs" in refusal(batches, model, ROWS, **ALL)
        assert batches(model, [{"input_ids": [1, 2], "label": 0}], **ALL).rows == 1
    masked = tiny_models.checkpoint("bert/BertForMaskedLM")
    assert "has no tokenizer" in refusal(batches, masked, [{"input_ids": [1, 2]}], **ALL)
    (tmp_path / "tokenizer.json").write_text("{")
    model = bert(folder=tmp_path)
    assert "the tokenizer cannot be read" in refusal(batches, model, ROWS, **ALL)


def test_a_tokenizer_of_another_model():
    small = bert(vocab_size=2000)
    assert "they do not belong together" in refusal(list, batches(small, [{"text": "dancing"}], **ALL))
    message = refusal(batches, bert("ForMaskedLM", vocab_size=2000), [{"text": "dancing"}], **ALL)
    assert "the tokenizer has 30522 tokens" in message


def test_what_is_no_text_and_no_image():
    assert "reads input_features" in refusal(
        batches, tiny_models.checkpoint("whisper/WhisperForConditionalGeneration"), ROWS, **ALL
    )


def test_no_batch_is_kept():
    made = batches(bert(), ROWS, **ALL)
    first = next(iter(made))
    first.inputs["input_ids"].zero_()
    assert not torch.equal(next(iter(made)).inputs["input_ids"], first.inputs["input_ids"])
