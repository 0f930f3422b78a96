"""Vocabularies that differ, as far as the files of tokenizers tell."""

import json
import shutil

import pytest

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.pairs import check_pair
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError


def compared(folder, name, *texts):
    """The refusal of two copies of a model with one file of a vocabulary each; None where they match."""
    return compared_files(folder, *({name: text} for text in texts))


def compared_files(folder, *files):
    """The refusal of two copies of a model with these files, given as text by name; None where they match."""
    ends = []
    for i, texts in enumerate(files):
        end = folder.with_name(f"end-{i}")
        shutil.copytree(folder, end)
        for name, text in texts.items():
            (end / name).write_bytes(text.encode())
        ends.append(Typed.of(load(end)))
    try:
        check_pair(*ends)
    except InputError as refused:
        return str(refused)


def tokenizer(vocab, *added):
    return json.dumps({"model": {"vocab": vocab}, "added_tokens": added})


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("vocab.json", '{"a": 0, "b": 1}', '{\r\n  "b": 1,\n  "a": 0\n}'),
        ("vocab.json", '{"eng": {"a": 0}, "deu": {"b": 0}}', '{"deu": {"b": 0}, "eng": {"a": 0}}'),
        ("vocab.txt", "a\nb\n", "a\r\nb"),
        ("merges.txt", "#version: 0.2\na b\n", "#version: 0.2 - trained by somebody\r\na b\r\n"),
        ("merges.txt", "#version: 0.2\na b\n", "a b\n"),
        ("tokenizer.model", "a\n", "a\n"),
        ("tokenizer.json", tokenizer({"a": 0}, {"id": 1, "content": "b"}), tokenizer({"b": 1, "a": 0})),
        (
            "tokenizer.json",
            tokenizer({"a": 0}, {"id": 1, "content": "b", "special": True}),
            tokenizer({"a": 0}, {"id": 1, "content": "b", "special": False, "lstrip": True}),
        ),
        ("tokenizer.json", tokenizer([["a", 0.0], ["b", -1.0]]), tokenizer([["a", 0.0], ["b", -2.0]])),
    ],
)
def test_one_vocabulary_written_in_two_ways(folder, name, one, other):
    assert compared(folder, name, one, other) is None


@pytest.mark.parametrize(
    ("name", "one", "other", "token"),
    [
        ("vocab.json", '{"a": 0, "b": 1}', '{"a": 1, "b": 0}', "0: 'a' and 'b'"),
        ("vocab.txt", "a\nb\n", "a\nb\nc\n", "2: none and 'c'"),
        ("tokenizer.json", tokenizer([["a", 0.0], ["b", 0.0]]), tokenizer([["b", 0.0], ["a", 0.0]]), "0: 'a' and 'b'"),
        ("tokenizer.json", tokenizer({"a": 0}, {"id": 1, "content": "b"}), tokenizer({"a": 0}), "1: 'b' and none"),
        ("vocab.json", '{"eng": {"a": 0}}', '{"eng": {"b": 0}}', None),
        ("merges.txt", "#version: 0.2\na b\n", "#version: 0.2\nb a\n", None),
        ("tokenizer.model", "a\n", "a\r\n", None),
    ],
)
def test_two_vocabularies(folder, name, one, other, token):
    refusal = compared(folder, name, one, other)
    assert f"the vocabularies differ ({folder.with_name('end-0') / name} and " in refusal
    said = f": the same id is another token or none, such as {token}. A merge brings models to"
    assert said in refusal if token else "the same id" not in refusal
    assert "\n" not in refusal


@pytest.mark.parametrize(
    ("name", "text"),
    [("vocab.json", "a b"), ("vocab.json", "[]"), ("tokenizer.json", "[]"), ("tokenizer.json", "[" * 100_000)],
    ids=["no JSON", "a list", "no model", "too deep"],
)
def test_what_is_no_vocabulary(folder, name, text):
    assert f"{folder.with_name('end-0') / name}: not a tokenizer file" in compared(folder, name, text, text)


PIECES, WORDS = ("tokenizer.model", "a\n"), ("vocab.json", '{"a": 0, "b": 1}')
ADDED, CONFIG = "added_tokens.json", "tokenizer_config.json"


def decoder(**added):
    return json.dumps({"added_tokens_decoder": {place[1:]: {"content": token} for place, token in added.items()}})


@pytest.mark.parametrize("vocabulary", [PIECES, WORDS], ids=["pieces", "words"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({ADDED: '{"[PAD]": 2}'}, {ADDED: '{"<|im_end|>": 2}'}),
        ({ADDED: '{"[PAD]": 2}'}, {CONFIG: decoder(_2="<|im_end|>")}),
        ({CONFIG: decoder(_2="[PAD]")}, {CONFIG: decoder(_2="<|im_end|>", _3="[PAD]")}),
    ],
)
def test_other_tokens_that_were_added(folder, vocabulary, one, other):
    refusal = compared_files(folder, dict([vocabulary]) | one, dict([vocabulary]) | other)
    first, second = (folder.with_name(f"end-{i}") / name for i, files in enumerate((one, other)) for name in files)
    assert f"the vocabularies differ ({first} and {second})" in refusal
    assert "such as 2: '[PAD]' and '<|im_end|>'" in refusal


@pytest.mark.parametrize("vocabulary", [PIECES, WORDS], ids=["pieces", "words"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({ADDED: '{"[PAD]": 2}'}, {CONFIG: decoder(_0="a", _2="[PAD]")}),
        ({ADDED: '{"[PAD]": 2}'}, {}),  # tokenizers add some by themselves
        ({ADDED: '{"[PAD]": 2}'}, {CONFIG: "{}"}),
    ],
)
def test_the_same_tokens_that_were_added(folder, vocabulary, one, other):
    assert compared_files(folder, dict([vocabulary]) | one, dict([vocabulary]) | other) is None


def test_a_whole_tokenizer_is_told_by_its_own_file(folder):
    whole = {"tokenizer.json": tokenizer({"a": 0}, {"id": 1, "content": "b"})}
    assert compared_files(folder, whole | {ADDED: '{"x": 1}'}, whole | {ADDED: '{"y": 1}'}) is None
    shutil.rmtree(folder.with_name("end-0"))
    shutil.rmtree(folder.with_name("end-1"))
    refusal = compared_files(folder, whole, {ADDED: '{"c": 1}'} | dict([PIECES]))
    assert "such as 1: 'b' and 'c'" in refusal
