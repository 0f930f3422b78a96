"""Models whose vocabularies differ, matched by the tokens that all have; each keeps its own."""

import pytest
import torch
from transformers import AutoTokenizer

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.typed import Typed
from cobasin.finding.applying import transform
from cobasin.finding.match import match, match_all
from cobasin.symmetry.element import Element
from cobasin.verification import verify
from command_line import edit_tensors, near, refused, run, stock, tensors_of
from permuted_copies import permuted
from tiny_models import model
from vocabularies import LETTERS, embedding, folder, write_tokenizer

ROTATED = [*LETTERS[:3], *LETTERS[10:], *LETTERS[3:10]]


@pytest.fixture
def plain(tmp_path):
    return folder(tmp_path / "plain", 0, LETTERS)


def in_words(path, source, tokens, added=(), seed=None):
    """A copy with its tokens in this order, further ones with random rows behind; moved where there is a seed."""
    own = Typed.of(load(source)) if seed is None else permuted(Typed.of(load(source)), seed)
    near(stock(source), vocab_size=len(tokens) + len(added)).save_pretrained(path)
    order = [LETTERS.index(token) for token in tokens]

    def write(tensors):
        for name, tensor in tensors.items():
            found = own.checkpoint[name]
            whole = torch.cat([found[order], tensor[len(tokens) :]]) if len(found) == len(LETTERS) else found
            tensors[name] = whole.contiguous()

    edit_tensors(path, write)
    write_tokenizer(path, tokens, added)
    return path


def of_case(path, case):
    near(model(case, 0, torch.float32), vocab_size=len(LETTERS)).save_pretrained(path)
    return path


def vocabulary(path):
    return AutoTokenizer.from_pretrained(path).get_vocab()


def test_a_copy_with_another_vocabulary_is_found_and_keeps_its_own(tmp_path, plain):
    anchor = in_words(tmp_path / "anchor", plain, LETTERS, ("<a>",))
    source, out = in_words(tmp_path / "source", plain, ROTATED, ("<x>", "<y>"), seed=0), tmp_path / "out"
    report = run("match", source, anchor, "--out", out, "--json").json
    assert report["distance_after"] < 1e-5 * report["distance_before"]
    note = f"the vocabularies differ: compared are the 26 common tokens, and not 2 of {source}, 1 of {anchor}"
    assert note in report["notes"]
    assert verify(source, out).same
    assert vocabulary(out) == vocabulary(source)
    for token in ("a", "s", "</s>"):
        assert torch.allclose(embedding(out, token), embedding(anchor, token), atol=1e-5)
        assert not torch.allclose(embedding(source, token), embedding(anchor, token), atol=1e-2)
    again = transform(Element.load(out), source)
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors_of(out).items())
    # the control: where the tokenizer says that rows are of other tokens, the copy is not found
    write_tokenizer(source, LETTERS, ("<x>", "<y>"))
    assert match_all([source, anchor], anchor=1).elements[0].report["distance_after"] > 1


def test_several_models_are_brought_to_the_one_nearest_to_all(tmp_path, plain):
    models = [
        in_words(tmp_path / "a", plain, ROTATED, ("<x>",), seed=1),
        in_words(tmp_path / "b", plain, LETTERS, seed=2),
        in_words(tmp_path / "c", plain, LETTERS[:-1], ("<z>",), seed=3),
    ]
    found = match_all(models)
    assert [model.spec.sizes["vocab"] for model in found.typed] == [27, 26, 26]
    for own, element in zip(models, found.elements, strict=True):
        if element is not None:
            assert element.report["distance_after"] < 1e-5 * element.report["distance_before"]
            assert verify(own, transform(element, own)).same


@pytest.mark.parametrize(("case", "symmetry"), [("gpt2/GPT2LMHeadModel", "full"), ("opt-350m/OPTForCausalLM", "gl")])
def test_what_a_gauge_has_of_tokens(tmp_path, case, symmetry):
    """A mean of every row, where norms do not see it; the balanced basis of a narrow embedding."""
    plain = of_case(tmp_path / "plain", case)
    anchor = in_words(tmp_path / "anchor", plain, LETTERS, ("<a>",))
    source = in_words(tmp_path / "source", plain, ROTATED, ("<x>", "<y>"), seed=0)
    match(source, anchor, symmetry).save(tmp_path / "element")
    moved = transform(Element.load(tmp_path / "element"), source)
    assert verify(source, moved).same
    order = [ROTATED.index(token) for token in LETTERS]
    for name, tensor in tensors_of(anchor).items():
        found = moved[name][order] if len(tensor) == 27 else moved[name]
        assert torch.allclose(found, tensor[: len(found)], atol=1e-4), name


def test_what_only_one_file_has_is_copied(tmp_path):
    plain = of_case(tmp_path / "plain", "bert/BertModel")
    anchor = in_words(tmp_path / "anchor", plain, LETTERS, ("<a>",))
    source, out = in_words(tmp_path / "source", plain, ROTATED, ("<x>", "<y>"), seed=0), tmp_path / "out"
    edit_tensors(anchor, lambda tensors: [tensors.pop(f"pooler.dense.{name}") for name in ("weight", "bias")])
    report = run("match", source, anchor, "--out", out, "--json").json
    assert report["distance_after"] < 1e-5 * report["distance_before"]
    assert f"{source}: pooler.dense.bias, pooler.dense.weight neither compared nor merged: not in all" in str(report)
    assert torch.equal(tensors_of(out)["pooler.dense.weight"], tensors_of(source)["pooler.dense.weight"])


def test_models_of_two_classes_are_refused_as_that(tmp_path, plain):
    other = of_case(tmp_path / "other", "roberta/RobertaForMaskedLM")  # of which padding could not be elsewhere
    write_tokenizer(other, LETTERS[::-1])
    line = refused(tmp_path, "match", plain, other, "--out", tmp_path / "out")
    assert line.endswith(": only models of one architecture match")


def test_a_number_that_a_function_depends_on(tmp_path):
    """RoBERTa counts positions from its padding token's id, which is another where tokens before it are left out."""
    plain = of_case(tmp_path / "plain", "roberta/RobertaForMaskedLM")
    source, anchor = (in_words(tmp_path / name, plain, LETTERS) for name in ("source", "anchor"))
    write_tokenizer(source, ["<x>", *LETTERS[1:]])
    line = refused(tmp_path, "match", source, anchor, "--out", tmp_path / "out")
    assert f"{source}: pad_token_id is " in line
    assert line.endswith("in the vocabulary that models are brought to here, that token has another place, or none")


def test_what_takes_one_vocabulary(tmp_path, plain):
    other = in_words(tmp_path / "other", plain, ROTATED, seed=0)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a b c"}\n')
    for method in ("activations", "learned"):
        line = refused(tmp_path, "match", other, plain, "--method", method, "--out", tmp_path / "out")
        assert line.endswith("; a match by weights takes the tokens that both have. Each needs its tokenizer")
    line = refused(tmp_path, "path", other, plain, "--data", rows, "--out", tmp_path / "out")
    assert "the vocabularies differ" in line
