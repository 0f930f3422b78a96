"""Texts of RoCBert, which reads how characters look and sound."""

import json
from functools import partial

import pytest
from data_models import refusal

from cobasin.data import batches
from cobasin.data.synthetic import check_synthetic
from cobasin.data.tokens import tokenizer_digest
from tiny_models import checkpoint

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "你", "好", "很")
FILES = {"word_shape.json": 1, "word_pronunciation.json": 2}  # with how much is added to the ids
TEXTS = [{"text": "你好很", "label": 0}, {"text": "好", "label": 1}]
read = partial(batches, samples=None, batch_size=2, seed=0)


@pytest.fixture
def roc_bert(tmp_path):
    """RoCBert with a head, beside its tokenizer."""
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    for name, more in FILES.items():
        (tmp_path / name).write_text(json.dumps({word: i + more for i, word in enumerate(WORDS)}), encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "roc_bert"}))

    def of(head):
        made = checkpoint(f"roc-bert/RoCBert{head}")
        made.folder = tmp_path
        return made

    return of


def test_looks_and_sounds_are_those_of_the_tokenizer(roc_bert):
    (batch,) = read(roc_bert("ForSequenceClassification"), TEXTS)
    inputs = {name: ids.tolist() for name, ids in batch.inputs.items()}
    assert inputs["input_ids"] == [[2, 5, 6, 7, 3], [2, 6, 3, 0, 0]]
    for name, more in (("shape", 1), ("pronunciation", 2)):
        long, short = inputs[f"input_{name}_ids"]
        assert (long[1:4], short[1], short[3:]) == ([5 + more, 6 + more, 7 + more], 6 + more, [0, 0])


@pytest.mark.parametrize(
    ("head", "rows"),
    [("ForSequenceClassification", [{"input_ids": [5, 6], "label": 0}]), ("ForMaskedLM", [{"text": "你好"}])],
)
def test_what_does_not_say_them_is_refused(roc_bert, head, rows):
    assert "reads how characters look and sound" in refusal(read, roc_bert(head), rows)


def test_they_are_not_made_up(roc_bert):
    assert "no inputs can be made up" in refusal(check_synthetic, roc_bert("ForSequenceClassification"))


@pytest.mark.parametrize("name", FILES)
def test_their_tables_are_files_of_the_tokenizer(roc_bert, name):
    folder = roc_bert("Model").folder
    before = tokenizer_digest(folder)
    (folder / name).write_text("{}")
    assert tokenizer_digest(folder) != before
