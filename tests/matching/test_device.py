"""Matching on a device: elements are kept on the CPU, all else is where the tensors are."""

import pytest
import torch

from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.finding import match as api
from cobasin.matching import weights
from cobasin.matching.choice import Choice
from cobasin.matching.state import CPU, Match
from cobasin.symmetry.form import form_of
from tiny_models import CASES, checkpoint

LLAMA = "llama-gqa/LlamaForCausalLM"


def matches(case, symmetry="full"):
    """The same match of two models of a case, twice."""
    ends, choice = [Typed.of(checkpoint(case, seed)) for seed in (1, 2)], Choice.parse(symmetry)
    form = form_of(ends[0].spec, parts=choice.parts, folded=bool(ends[0].spec.norms) and not ends[0].spec.unties)
    return [Match.of(form, choice, *ends) for _ in range(2)]


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("case", {case.split("/")[0]: case for case in CASES}.values())
def test_nothing_is_made_anywhere_but_where_the_tensors_are(case, in_parts, monkeypatch):
    """What names no device is made on one here that holds no numbers: to compute with it is an error."""
    monkeypatch.setattr(weights, "MAX_ROUNDS", 3)
    if in_parts:
        monkeypatch.setattr(weights, "LARGE", 0)
    here, elsewhere = matches(case)
    weights.ascend(here)
    with torch.device("meta"):
        weights.ascend(elsewhere)
    assert elsewhere.total == here.total
    assert all(x.device == CPU for value in elsewhere.values.values() for x in value.values())


@pytest.mark.parametrize("case", {case.split("/")[0]: case for case in CASES}.values())
def test_elements_act_where_the_tensors_are(case):
    """On a device that holds no numbers, so that the shapes are all that can be compared."""
    here, _ = matches(case)
    there = Match(
        here.form, here.choice, here.source, here.anchor, (), here.values, here.distances, torch.device("meta")
    )
    for key in here.groups:
        grams = [here.gram(key), there.gram(key)]
        ours, theirs = ([*gram.cross.values(), *gram.source.values(), *gram.target.values()] for gram in grams)
        assert [x.shape for x in ours] == [x.shape for x in theirs]
        assert {x.device.type for x in theirs} == {"meta"}


def test_a_device_for_weights():
    pair = checkpoint(LLAMA, 1), checkpoint(LLAMA, 2)
    element, named = api.match(*pair), api.match(*pair, device="cpu")
    assert named.report["objective"] == element.report["objective"]
    with pytest.raises(InputError, match="device 'cuda:99' cannot be used here"):
        api.match(*pair, device="cuda:99")
