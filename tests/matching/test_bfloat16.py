"""Models in bfloat16 files are matched as if they were in float32."""

import pytest
import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.typed import Typed
from cobasin.execution.jobs import bfloat16_products
from cobasin.finding.match import match
from cobasin.matching.choice import Choice
from cobasin.matching.state import Match
from cobasin.matching.weights import _from_bfloat16
from cobasin.symmetry.form import form_of
from tiny_models import model

LLAMA = "llama-gqa/LlamaForCausalLM"
CASES = [LLAMA, "bert/BertForMaskedLM", "gemma/GemmaForCausalLM", "mixtral/MixtralForCausalLM"]


def pair(case):
    return [model(case, seed, torch.bfloat16) for seed in (1, 0)]


@pytest.mark.parametrize("symmetry", ["ffn", "ffn,attention", "full"])
@pytest.mark.parametrize("case", CASES)
def test_the_same_is_found(case, symmetry, monkeypatch):
    monkeypatch.setattr("cobasin.matching.weights.MAX_ROUNDS", 3)
    narrow = match(*pair(case), symmetry=symmetry)
    whole = match(*(one.float() for one in pair(case)), symmetry=symmetry)
    for key in ("distance_before", "distance_after"):
        assert narrow.report[key] == pytest.approx(whole.report[key], rel=1e-6)
    assert narrow.report["objective"] == pytest.approx(whole.report["objective"], rel=1e-6)
    for key, value in whole.values.items():
        for part, tensor in value.items():
            torch.testing.assert_close(narrow.values[key][part], tensor, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("symmetry", "expected"), [("ffn,attention", {"ffn"}), ("full", set())])
def test_what_is_multiplied_as_it_is_in_the_files(symmetry, expected):
    ends, choice = [Typed.of(load(one)) for one in pair(LLAMA)], Choice.parse(symmetry)
    form = form_of(ends[0].spec, parts=choice.parts, folded=choice.folded and bool(ends[0].spec.norms))
    narrow = Match.of(form, choice, *ends)
    found = {key[0] for key in narrow.groups if _from_bfloat16(narrow, [key])}
    assert found == expected
    wide = Match.of(form, choice, *(Typed.of(load(one.float())) for one in pair(LLAMA)))
    assert not any(_from_bfloat16(wide, [key]) for key in wide.groups)


def test_the_precision_of_products_comes_back():
    def within():
        with bfloat16_products():
            raise KeyError(torch.get_float32_matmul_precision())

    before = torch.get_float32_matmul_precision()
    with pytest.raises(KeyError, match="medium"):
        within()
    assert torch.get_float32_matmul_precision() == before


def test_a_precision_set_by_the_newer_interface_of_torch_stays():
    """It cannot be read by the older one, which raises."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with pytest.raises(RuntimeError, match="mix of the legacy and new"):
            torch.get_float32_matmul_precision()
        with bfloat16_products():
            pass
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")
