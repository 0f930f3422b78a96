"""The residual stream by permutations alone: no norm is folded, and what was permuted is found again."""

import pytest

from cobasin.checkpoints.typed import Typed
from cobasin.finding import match as api
from cobasin.finding.applying import transform
from cobasin.finding.common_form import APART
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from cobasin.symmetry.groups import Permutation
from cobasin.verification import verify
from command_line import run
from sampling import one_in
from tiny_models import ONE_A_DECLARATION, checkpoint, model, tolerance

ORDERS = "ffn,experts,heads,attention,scale,residual-order"
GPT2 = "gpt2/GPT2LMHeadModel"  # tied: folding would untie it


def scrambled(case: str, folded: bool = False):
    typed = Typed.of(checkpoint(case))
    return typed.derived(Element.sample(form_of(typed.spec, folded=folded), 5).apply(typed))


@pytest.mark.parametrize("case", one_in(24, ONE_A_DECLARATION[1::5]))
def test_a_planted_order_is_recovered(case):
    element = api.match(scrambled(case), checkpoint(case), ORDERS)
    assert not element.form.folded
    assert element.report["distance_before"] > 1
    assert element.report["distance_after"] < 1e-6 * element.report["distance_before"]


@pytest.mark.parametrize("case", ["vit/ViTForImageClassification", "llama-gqa/LlamaForCausalLM"])
def test_a_rotation_is_not(case):
    source = scrambled(case, folded=True)
    assert api.match(source, checkpoint(case), "full").report["distance_after"] < 1e-4
    assert api.match(source, checkpoint(case), ORDERS).report["distance_after"] > 1
    # where both are named the stream may turn
    assert api.match(source, checkpoint(case), ORDERS + ",residual").report["distance_after"] < 1e-4


@pytest.mark.parametrize("case", [GPT2, "vit/ViTForImageClassification", "llama-gqa/LlamaForCausalLM"])
def test_the_function_of_an_unrelated_model_is_kept(case):
    source, anchor = checkpoint(case, 1), checkpoint(case)
    element = api.match(source, anchor, "residual-order")
    assert {key[0] for key in element.values} == {"resid"}
    assert isinstance(element.form.group(("resid",)), Permutation)
    assert element.report["notes"] == [APART]
    assert verify(source, transform(element, source), tolerance(case)).same
    assert not verify(source, anchor, tolerance(case)).same
    assert element.report["objective"][-1] < 0.99 * element.report["objective"][0]


def test_a_tied_head_stays_tied(tmp_path):
    for seed in (0, 1):
        model(GPT2, seed).save_pretrained(tmp_path / str(seed))
    for symmetry, tied in (("residual-order", True), ("residual", False)):
        out = tmp_path / symmetry
        assert run("match", tmp_path / "1", tmp_path / "0", "--out", out, "--symmetry", symmetry).code == 0
        assert Typed.of(api.load(out)).checkpoint.config.tie_word_embeddings is tied


@pytest.mark.parametrize("case", ["llama-gqa/LlamaModel", "gemma2/Gemma2Model", "modernbert/ModernBertModel"])
def test_a_model_whose_output_is_the_stream_keeps_its_gains(case):
    """Nothing is gained by folding them where the stream cannot turn."""
    assert Typed.of(checkpoint(case)).spec.norms == ()
    element = api.match(checkpoint(case, seed=1), checkpoint(case))
    source = Typed.of(checkpoint(case, seed=1))
    moved = element.apply(source)
    gains = [name for name in source if name.endswith("norm.weight") and source[name].ndim == 1]
    assert gains
    assert all(moved[name].equal(source[name]) for name in gains)
