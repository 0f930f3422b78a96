"""The neighbourhood of an element: in the group wherever its parameters are, and differentiable in all of them."""

import dataclasses

import pytest
import torch

from cobasin.checkpoints.typed import Typed
from cobasin.matching.choice import Choice
from cobasin.matching.moves import LARGEST_STRETCH, Moves
from cobasin.matching.state import free_groups, identity
from cobasin.proposal.checking import change, forms, run, sample
from cobasin.symmetry.action import act
from cobasin.symmetry.balance import in_isometries
from cobasin.symmetry.canonical import canonical, frames_as_gauge, frames_of, gauge_of
from cobasin.symmetry.element import Element
from cobasin.symmetry.groups import General
from tiny_models import checkpoint, tolerance

FAMILIES = (
    "vit/ViTForImageClassification",
    "gpt2/GPT2LMHeadModel",
    "llama-gqa/LlamaForCausalLM",
    "t5/T5ForConditionalGeneration",
    "bert/BertForMaskedLM",
    "qwen3/Qwen3ForCausalLM",
)


def neighbourhood(case, size=0.0, turns=True):
    """A model with all folded that can be, a random element of it, and its moves with random parameters."""
    model, form = forms(Typed.of(checkpoint(case)))[-1]
    start = sample(form, 1).values
    moves = Moves(form, {key: form.group(key) for key in start}, start, turns)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in moves.parameters:
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return model, form, start, moves


def written(model, form, values):
    """The model that these values make of a model, in another one's gauge."""
    target = gauge_of(form, forms(Typed.of(checkpoint(model_case(model), 9)))[-1][0])
    values, frames = in_isometries(form, values, frames_of(form, target))
    element = Element(form, values, gauge_of(form, model), target | frames_as_gauge(frames))
    assert max(element.deviation().values()) < 1e-12
    return element


def model_case(model):
    return next(case for case in FAMILIES if case.endswith("/" + model.spec.architecture))


@pytest.mark.parametrize("case", FAMILIES)
@pytest.mark.parametrize("turns", [True, False])
def test_the_function_is_kept_wherever_the_parameters_are(case, turns):
    model, form, start, moves = neighbourhood(case, 1.0, turns)
    values = moves.exact(moves.parameters)
    assert any(not torch.equal(part, start[key][name]) for key in start for name, part in values[key].items())
    element = written(model, form, values)
    moved = element.apply(model)
    assert change(model.derived(moved, torch.float64), run(model.checkpoint)) < tolerance(case)
    back = element.inverse().apply(moved)
    for name in set(model) - set(model.spec.tied):
        torch.testing.assert_close(back[name], model[name], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("case", FAMILIES)
def test_what_leaves_the_group_changes_the_function(case):
    """Control: a step in the plain entries of the same parts."""
    model, form, _, moves = neighbourhood(case, 1.0)
    values = moves.exact(moves.parameters)
    key = next(key for key in reversed(values) if "matrix" in values[key])
    values[key] = {"matrix": values[key]["matrix"] + 0.1}
    moved = Element(form, values).apply(model)
    assert change(model.derived(moved, torch.float64), run(model.checkpoint)) > 1e-4


@pytest.mark.parametrize("case", FAMILIES)
def test_zero_parameters_are_the_start(case):
    *_, start, moves = neighbourhood(case)
    for values, tolerances in ((moves.exact(moves.parameters), (1e-14, 1e-14)), (moves.values(), (1e-6, 1e-6))):
        rtol, atol = tolerances
        assert values.keys() == start.keys()
        for key, value in start.items():
            for part, tensor in value.items():
                found = values[key][part]
                torch.testing.assert_close(found.to(tensor.dtype), tensor, rtol=rtol, atol=atol)
            if "dual" in values[key]:
                torch.testing.assert_close(values[key]["dual"], values[key]["matrix"], rtol=rtol, atol=atol)


@pytest.mark.parametrize("case", FAMILIES)
@pytest.mark.parametrize("turns", [True, False])
def test_every_parameter_has_a_gradient(case, turns):
    model, form, _, moves = neighbourhood(case, 0.1, turns)
    state, values = canonical(form, model), moves.values(0.0)
    folded = {*form.norm_parameters, *form.scale_parameters}
    generator = torch.Generator().manual_seed(0)
    loss = torch.zeros(())
    for name in set(form.spec.entries) - folded:
        moved = act(form.spec, values, form.group, name, state[name].float())
        loss = loss + (moved * torch.randn(moved.shape, generator=generator)).sum()
    loss.backward()
    for parameter in moves.parameters:
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.flatten(parameter.ndim - 2 if parameter.ndim > 1 else 0).any(-1).all()


def test_float32_and_float64_agree():
    *_, moves = neighbourhood("vit/ViTForImageClassification", 0.3)
    exact = moves.exact(moves.parameters)
    for key, value in moves.values().items():
        for part, tensor in value.items():
            torch.testing.assert_close(tensor.double(), exact[key][part].double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["gpt2/GPT2LMHeadModel", "llama-gqa/LlamaForCausalLM"])
def test_a_reference_has_neither_turns_nor_orders(case):
    _, form, start, moves = neighbourhood(case, 1.0, turns=False)
    values = moves.exact(moves.parameters)
    for key, value in start.items():
        if isinstance(form.group(key), General):  # start · P, with P symmetric and positive
            stretch = value["matrix"].mT @ values[key]["matrix"]
            torch.testing.assert_close(stretch, stretch.mT)
            assert (torch.linalg.eigvalsh(stretch) > 0).all()
        else:
            assert all(torch.equal(part, values[key][name]) for name, part in value.items() if name != "scale")


def test_no_condition_without_bound():
    _, form, _, moves = neighbourhood("gpt2/GPT2LMHeadModel", 100.0)
    values = moves.exact(moves.parameters)
    sizes = [torch.linalg.svdvals(values[key]["matrix"]) for key in values if isinstance(form.group(key), General)]
    assert sizes
    largest = max(float((size[..., 0] / size[..., -1]).log().max()) for size in sizes)
    assert LARGEST_STRETCH < largest < 2 * LARGEST_STRETCH  # a step that is too long goes far, and does not fall back


def test_nothing_but_orders_does_not_move():
    form = dataclasses.replace(forms(Typed.of(checkpoint("bert/BertForMaskedLM")))[-1][1], balanced=())
    found = {key: value for key, value in sample(form, 0).values.items() if set(value) == {"perm"}}
    orders = {key: value for key, value in found.items() if form.spec.spaces[key[0]].part != "residual"}
    assert len(orders) < len(found)
    moves = Moves(form, {key: form.group(key) for key in orders}, orders)
    assert moves.parameters == []
    assert moves.values() == orders


def test_what_may_not_be_scaled_keeps_its_signs_alone():
    """The elements of signed orders have a part for scales, which holds the signs."""
    form = forms(Typed.of(checkpoint("llama-gqa/LlamaForCausalLM")))[-1][1]
    groups = free_groups(form, Choice.parse("ffn,attention"))
    start = identity(form, groups)
    assert any("scale" in value for value in start.values())
    moves = Moves(form, groups, start)
    with torch.no_grad():
        for parameter in moves.parameters:
            parameter.add_(1.0)
    for key, value in moves.exact(moves.parameters).items():
        if "scale" in value:
            assert value["scale"].equal(start[key]["scale"])
