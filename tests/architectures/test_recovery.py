"""A scrambled copy is brought back to the original, on every declared architecture."""

import pytest
import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.execution import jobs
from cobasin.execution.jobs import torch_threads
from cobasin.finding import match as api
from cobasin.symmetry.canonical import gauge_of
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from sampling import one_in
from tiny_models import ONE_A_DECLARATION, ONE_A_FAMILY, checkpoint, model

# every declaration, and of its variants, such as those with biases or a tied head, every twelfth
PLANTED = [*ONE_A_DECLARATION, *[case for case in ONE_A_FAMILY if case not in ONE_A_DECLARATION][::12]]


def scramble(typed: Typed, seed: int):
    """A copy moved by a random element of the full group: folded where that does not untie the head."""
    return typed.derived(Element.sample(form_of(typed.spec, folded=not typed.spec.unties), seed).apply(typed))


@pytest.mark.parametrize("case", one_in(15, PLANTED))
def test_planted_element_is_recovered(case):
    original = checkpoint(case)
    scrambled = scramble(Typed.of(original), 5)
    report = api.match(scrambled, original).report
    assert report["distance_before"] > 1
    assert report["distance_after"] < 1e-6 * report["distance_before"]


@pytest.mark.parametrize(
    ("case", "zero"),
    [
        ("llama-gqa/LlamaForCausalLM", "model.layers.0.self_attn.o_proj.weight"),
        ("gpt2/GPT2LMHeadModel", "transformer.h.0.attn.c_proj.weight"),
        ("opt/OPTForCausalLM", "model.decoder.layers.0.fc2.weight"),
    ],
)
def test_a_branch_that_is_still_zero_hides_nothing(case, zero):
    """Where training begins with projections of zeros, the scales between them and their neighbours are found."""
    filled = model(case)
    with torch.no_grad():
        filled.get_parameter(zero).zero_()
    original = load(filled)
    report = api.match(scramble(Typed.of(original), 5), original).report
    assert report["distance_after"] < 1e-6 * report["distance_before"]


@pytest.mark.parametrize("case", one_in(6, ONE_A_DECLARATION[::6]))
def test_invertible_maps_are_recovered(case):
    """In architectures of all kinds: the bases of another model's heads, which no isometry reaches."""
    original = checkpoint(case)
    typed, other = Typed.of(original), Typed.of(checkpoint(case, 1))
    if not typed.spec.invertible:
        pytest.skip("no map but isometries acts on any space")
    form = form_of(typed.spec, balanced=True)
    scrambled = typed.derived(Element(form, {}, target=gauge_of(form, other)).apply(typed))
    report = api.match(scrambled, original, symmetry="gl").report
    assert report["distance_after"] < 1e-6 * report["distance_before"]
    assert api.match(scrambled, original).report["distance_after"] > 0.01 * report["distance_before"]


@pytest.mark.parametrize("case", one_in(2, ONE_A_DECLARATION[::30]))
def test_layers_side_by_side_are_recovered_as_one_after_the_other(case, monkeypatch):
    original = checkpoint(case)
    scrambled = scramble(Typed.of(original), 5)
    alone, threads = api.match(scrambled, original).report, set()
    monkeypatch.setattr(jobs, "SMALL", 0)
    with torch_threads(4):
        report = api.match(scrambled, original, progress=lambda *_: threads.add(torch.get_num_threads())).report
    assert threads == {4}
    assert report["objective"] == pytest.approx(alone["objective"], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    "case", ["bert/BertForMaskedLM", "llama-gqa/LlamaForCausalLM", "vit/ViTForImageClassification"]
)
def test_paper_symmetry_does_not_recover(case):
    original = checkpoint(case)
    report = api.match(scramble(Typed.of(original), 5), original, symmetry="paper").report
    assert report["distance_after"] > 0.1 * report["distance_before"]


@pytest.mark.parametrize(("symmetry", "layers"), [("scale", None), ("residual", "0")])
def test_a_symmetry_that_frees_nothing_is_refused(symmetry, layers):
    pair = checkpoint("vit/ViTForImageClassification", 1), checkpoint("vit/ViTForImageClassification", 2)
    with pytest.raises(InputError, match="leaves nothing free"):
        api.match(*pair, symmetry, layers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recovered_to_the_rounding_of_the_dtype(dtype):
    original = checkpoint("llama-gqa/LlamaForCausalLM", dtype=dtype)
    report = api.match(scramble(Typed.of(original), 5), original).report
    assert report["distance_after"] < 10 * torch.finfo(dtype).eps * report["distance_before"]
