"""Readers without a bias carry what they take from a norm's offset: in an anchor whose offset all but sums to zero."""

import pytest
import torch

import cobasin
from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.typed import Typed
from cobasin.finding.kept import Kept
from cobasin.finding.match import match_all
from cobasin.symmetry.canonical import carries
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from cobasin.verification import verify
from command_line import WEIGHTS, run
from tiny_models import model

pytestmark = pytest.mark.usefixtures("few_rounds")

CASE = "gpt2-untied/GPT2LMHeadModel"


def anchor(share=1e-4, dtype=torch.float32):
    """A model whose last offset sums, over the gains, to so much of its size."""
    made = model(CASE, 1)
    norm = made.transformer.ln_f
    with torch.no_grad():
        ratio = torch.randn(len(norm.bias), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        ratio -= ratio.mean()
        ratio += share * ratio.norm() / len(ratio)
        norm.bias.copy_(0.3 * ratio * norm.weight)
    assert not carries(norm.weight, norm.bias)
    assert carries(norm.weight, norm.bias, share / 2)
    return load(made.to(dtype))


def scrambled(checkpoint):
    typed = Typed.of(checkpoint)
    return typed.derived(Element.sample(form_of(typed.spec, folded=True, free_biases=True), 5).apply(typed))


def test_a_copy_is_found_all_the_same():
    one = anchor(dtype=torch.float64)
    other = scrambled(one)
    assert cobasin.compare(one, other).verdict == "same"
    for first, second in ((one, other), (other, one)):
        element = cobasin.match(first, second)
        assert element.form.folded
        assert element.report["distance_after"] < 1e-5 * element.report["distance_before"]
    assert verify(one, cobasin.merge([one, other]).checkpoint).same


def test_a_model_near_the_anchor_is_written_in_its_gauge():
    """What its reader carries is as long as the anchor's own, also where digits are few."""
    one = anchor()
    typed = Typed.of(one)
    noise = {name: 1e-4 * torch.randn(typed[name].shape, generator=torch.Generator().manual_seed(0)) for name in typed}
    other = typed.derived({name: typed[name] + noise[name] for name in typed})
    element = cobasin.match(other, one)
    assert element.form.folded
    assert verify(other, cobasin.transform(element, other)).same


def test_where_it_would_take_digits_the_stream_is_permuted(tmp_path):
    """A model that has nothing to do with the anchor would need readers ten thousand times as large."""
    one, other = anchor(), load(model(CASE, 2).float())
    keep = Kept(tmp_path / "found")
    matched = match_all([one, other], anchor=0, keep=keep)
    (element,) = filter(None, matched.elements)
    assert not element.form.folded
    (note,) = [note for note in element.report["notes"] if "by permutation only" in note]
    assert (
        "ln_f.bias of the anchor sums to next to nothing over its gains, and to carry what lm_head.weight reads" in note
    )
    assert verify(other, cobasin.transform(element, other)).same
    again = match_all([one, other], anchor=0, keep=keep)
    assert [one and one.report["notes"] for one in again.elements] == [None, element.report["notes"]]
    # control: in float64 there are digits enough
    precise = match_all([anchor(dtype=torch.float64), load(model(CASE, 2))], anchor=0)
    assert next(filter(None, precise.elements)).form.folded


def test_a_run_that_permutes_goes_on_and_is_shared(tmp_path):
    """What was found for the other form is not taken for what is looked for now, nor left in the output."""
    for name, one in (("anchor", anchor()), ("other", load(model(CASE, 2).float()))):
        cobasin.save(one, tmp_path / name)
    pair = tmp_path / "other", tmp_path / "anchor"
    done = run("match", *pair, "--out", tmp_path / "whole")
    assert "by permutation only" in done.out
    assert run("match", *pair, "--out", tmp_path / "resumed", "--resume").code == 0
    assert run("match", *pair, "--out", tmp_path / "parts", "--part", "1/1").code == 0
    assert run("match", *pair, "--out", tmp_path / "parts", "--resume").code == 0
    for name in ("resumed", "parts"):
        assert {path.name for path in (tmp_path / name).iterdir()} == {p.name for p in (tmp_path / "whole").iterdir()}
        assert (tmp_path / name / WEIGHTS).read_bytes() == (tmp_path / "whole" / WEIGHTS).read_bytes()
    assert run("verify", pair[0], tmp_path / "parts").code == 0


def test_the_other_model_is_the_reference_where_it_can_be():
    models = [anchor(), load(model(CASE, 2).float()), load(model(CASE, 3).float())]
    matched = match_all(models)
    assert matched.reference != 0
    assert all(element.form.folded for element in matched.elements if element)


def test_nothing_is_written_to_be_compared():
    """So a gain of zero does not stand in the way, either."""
    made = model(CASE, 1)
    with torch.no_grad():
        made.transformer.ln_f.weight[3] = 0.0
    found = cobasin.compare(load(made), scrambled(load(model(CASE, 1))))
    assert found.verdict in ("share a base", "share a basin")
    assert not [note for note in found.notes if "permutation" in note]


def test_only_models_that_are_closer_are_said_to_be():
    """Between a model and itself there is nothing but the rounding of what its reader carries."""
    made = model(CASE, 1, torch.float32)
    with torch.no_grad():
        made.transformer.ln_f.weight.mul_(0.1)  # readers are divided by it
    one, other = load(made), load(model(CASE, 0, torch.float32))
    for source, closer in ((other, True), (one, False)):
        report = cobasin.match(source, one).report
        assert report["distance_after"] > report["distance_before"]
        assert any("although the models are closer" in note for note in report["notes"]) == closer
