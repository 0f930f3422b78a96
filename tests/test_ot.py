"""Fusion by optimal transport: of models that are the same up to the order of their neurons, and of others."""

from itertools import product

import pytest
import torch

import tiny_models
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate, outputs
from cobasin.checkpoints.typed import Typed
from cobasin.coupling.couplings import hard
from cobasin.coupling.flow import Stage, flow_of
from cobasin.errors import InputError
from cobasin.fusion import ot
from cobasin.fusion.registry import find
from cobasin.symmetry.state import Lazy
from permuted_copies import activations, permuted
from sampling import one_in

CASES = [
    "bert/BertForMaskedLM",
    "bert/BertForSequenceClassification",
    "gpt2/GPT2LMHeadModel",
    "gptj/GPTJForCausalLM",
    "llama-gqa/LlamaForCausalLM",
    "bloom/BloomForCausalLM",
    "t5/T5ForConditionalGeneration",
    "vit/ViTForImageClassification",
]
METHODS = ["ot_wts", "ot_acts", "ot_acts_emd"]
SHARP = 1e-3  # a regularisation that leaves the coupling of equal neurons alone


def typed(case: str, seed: int = 0) -> Typed:
    return Typed.of(tiny_models.checkpoint(case, seed))


def fused(name, models, position=0, weights=None, coupled=True, **parameters):
    """The models fused by a method, as a checkpoint."""
    method = find(name)
    values = {key: one.default for key, one in method.parameters.items()}
    values |= {"weight": weights or (1.0,) * len(models), **parameters}
    given = [activations(model) for model in models] if method.statistics else None
    states = method.coupled(models[position], models, position, given, values) if coupled else models
    anchor = models[position]
    return anchor.derived(Lazy(anchor, lambda key: method.fuse({"tensors": [one[key] for one in states]}, values)))


def change(checkpoint, other) -> float:
    """The largest relative change of the outputs."""
    inputs = probe(checkpoint.config, checkpoint.architecture, seed=99)
    a, b = (outputs(instantiate(one, torch.float64), inputs) for one in (checkpoint, other))
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize(("case", "name"), one_in(5, [*product(CASES, METHODS)]))
def test_a_model_and_its_permuted_copy_give_the_model(case, name):
    anchor = typed(case)
    copy = permuted(anchor)
    sharp = {} if name == "ot_acts_emd" else {"regularization": SHARP}
    assert change(copy.checkpoint, anchor.checkpoint) < tiny_models.tolerance(case)  # it is the same function
    tolerance = tiny_models.tolerance(case) if name == "ot_acts_emd" else 1e-4
    assert change(fused(name, [anchor, copy], **sharp), anchor.checkpoint) < tolerance
    assert change(fused(name, [anchor, copy], **sharp, coupled=False), anchor.checkpoint) > 0.1


@pytest.mark.parametrize("name", METHODS)
def test_all_models_are_coupled_to_the_anchor(name):
    anchor = typed("vit/ViTForImageClassification")
    models = [permuted(anchor, 1), anchor, permuted(anchor, 2)]
    sharp = {} if name == "ot_acts_emd" else {"regularization": SHARP}
    merged = fused(name, models, position=1, weights=(0.5, 0.2, 0.3), **sharp)
    assert max(float((merged[key] - anchor.checkpoint[key]).abs().max()) for key in merged) < 1e-5
    other = fused(name, models, position=2, weights=(0.5, 0.2, 0.3), **sharp)
    assert max(float((other[key] - anchor.checkpoint[key]).abs().max()) for key in other) > 0.1
    assert max(float((other[key] - models[2].checkpoint[key]).abs().max()) for key in other) < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_equal_models_are_coupled_by_the_identity(case):
    model = typed(case)
    own = activations(model)
    coupled = ot.Coupled(model, flow_of(model), model, model, (own, own), hard, "averaging")
    for coupling in (*coupled.writing.values(), *coupled.reading.values()):
        assert torch.equal(coupling, torch.eye(coupling.shape[-1]).expand_as(coupling))
    assert all(torch.equal(coupled.state[name], model[name]) for name in model)


def test_hard_couplings_of_other_models_are_permutations_where_they_are_written():
    models = [typed("vit/ViTForImageClassification", seed) for seed in (0, 1)]
    given = activations(models[1]), activations(models[0])
    coupled = ot.Coupled(models[0], flow_of(models[0]), models[1], models[0], given, hard, "averaging")
    for coupling in coupled.writing.values():
        assert coupling.unique().tolist() == [0, 1]
        assert torch.equal(coupling.sum(-1), torch.ones(coupling.shape[:-1]))
        assert torch.equal(coupling.sum(-2), torch.ones(coupling.shape[:-1]))
    mixed = [coupling.unique().numel() > 2 for coupling in coupled.reading.values()]
    assert any(mixed)  # the residual stream averages two permutations


@pytest.mark.parametrize("policy", ["averaging", "weighted_scalar", "weighted_matrix"])
@pytest.mark.parametrize("solver", ["hard", "soft"])
def test_every_coupling_keeps_the_mass(policy, solver):
    models = [typed("gpt2/GPT2LMHeadModel", seed) for seed in (0, 1)]
    solve = hard if solver == "hard" else (lambda cost: ot.soft(cost, 0.06))
    coupled = ot.Coupled(models[0], flow_of(models[0]), models[1], models[0], None, solve, policy)
    for coupling in (*coupled.writing.values(), *coupled.reading.values()):
        assert coupling.min() >= 0
        assert torch.allclose(coupling.sum(-2), torch.ones(coupling.shape[:-1]), atol=1e-6)
    for coupling in coupled.writing.values():
        assert torch.allclose(coupling.sum(-1), torch.ones(coupling.shape[:-1]), atol=1e-4)


def test_residual_policies_follow_their_definition():
    skip, own = torch.eye(2)[None], torch.eye(2).flip(0)[None]
    stage = Stage((("resid",),), before=0, skip=torch.tensor([3.0, 1.0]), branch=torch.tensor([1.0, 1.0]))
    by_scalar = 4 / 6 * skip + 2 / 6 * own
    by_neuron = torch.stack([0.75 * skip[..., 0] + 0.25 * own[..., 0], 0.5 * skip[..., 1] + 0.5 * own[..., 1]], -1)
    assert torch.allclose(ot._joined(stage, skip, own, "averaging"), (skip + own) / 2)
    assert torch.allclose(ot._joined(stage, skip, own, "weighted_scalar"), by_scalar)
    assert torch.allclose(ot._joined(stage, skip, own, "weighted_matrix"), by_neuron)
    unseen = Stage((("resid",),), before=0)
    assert torch.allclose(ot._joined(unseen, skip, own, "weighted_matrix"), (skip + own) / 2)


def test_a_softer_coupling_mixes_more():
    models = [typed("vit/ViTForImageClassification", seed) for seed in (0, 1)]

    def purity(regularization: float) -> float:
        solve = lambda cost: ot.soft(cost, regularization)  # noqa: E731
        coupled = ot.Coupled(models[0], flow_of(models[0]), models[1], models[0], None, solve, "averaging")
        return sum(float(one.max(-2).values.mean()) for one in coupled.writing.values()) / len(coupled.writing)

    assert purity(0.01) > 0.6 > purity(0.1) > purity(1.0)


def test_activations_are_those_of_the_same_inputs():
    models = [typed("vit/ViTForImageClassification", seed) for seed in (0, 1)]
    given = [activations(models[0]), activations(models[1], seeds=2)]
    with pytest.raises(InputError, match=r"activations of .* optimal transport compares models on the same inputs"):
        find("ot_acts").coupled(models[0], models, 0, given, {"weight": (1.0, 1.0)})


def test_tensors_without_outputs_are_compared_by_their_values():
    anchor = typed("bert/BertForMaskedLM")
    copy = permuted(anchor)
    given = [activations(anchor), activations(copy)]
    for one in given:
        del one["embeddings.position_embeddings.weight"]
    states = find("ot_acts_emd").coupled(anchor, [anchor, copy], 0, given, {"weight": (1.0, 1.0)})
    assert all(torch.allclose(states[1][name], anchor[name], atol=1e-12) for name in anchor)


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [("ot_wts", "regularization", 0.0), ("ot_acts", "regularization", -1.0), ("ot_wts", "residual", "mean")],
)
def test_parameters_are_checked(name, parameter, value):
    with pytest.raises(ValueError, match=r"above 0|'averaging'"):
        find(name).parameters[parameter].check(value)


def test_what_couples_has_one_value_for_the_whole_merge():
    parameters = find("ot_acts").parameters
    assert [name for name, one in parameters.items() if one.whole] == ["regularization", "residual"]
    assert parameters["regularization"].default == 0.08
    assert find("ot_wts").parameters["regularization"].default == 0.06
    assert "regularization" not in find("ot_acts_emd").parameters
    assert not any(one.whole for one in find("linear").parameters.values())
    states = [object(), object()]
    assert find("linear").coupled(None, states, 0, None, {"weight": 1.0}) == states
