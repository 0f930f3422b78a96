"""Models whose parameters are given by spec name; `test_learned.py` runs every architecture so."""

import pytest
import torch

from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.learning import in_memory
from cobasin.learning.in_memory import InMemory
from tiny_models import checkpoint

MIXTRAL, GPT2 = "mixtral/MixtralForCausalLM", "gpt2-untied/GPT2LMHeadModel"


def tensors(typed, names):
    return {name: typed[name].float() for name in names}


def test_experts_are_joined_as_transformers_joins_them():
    typed = Typed.of(checkpoint(MIXTRAL))
    run, plain = InMemory(typed), instantiate(typed.checkpoint, torch.float32)
    parameters = run.parameters(tensors(typed, run.names))
    wanted = dict(plain.named_parameters())
    assert parameters.keys() == wanted.keys()
    assert "experts.gate_up_proj" in " ".join(parameters)
    for name, parameter in parameters.items():
        assert parameter.equal(wanted[name]), name


def test_gradients_reach_the_tensors_of_the_spec():
    """Those of a model that was loaded, in joined experts and in plain tensors alike."""
    typed = Typed.of(checkpoint(MIXTRAL))
    run, plain = InMemory(typed), instantiate(typed.checkpoint, torch.float32)
    state = {name: x.requires_grad_() for name, x in tensors(typed, run.names).items()}
    inputs = probe(typed.checkpoint.config, typed.checkpoint.architecture)
    run(run.parameters(state), inputs).logits.square().mean().backward()
    plain(**inputs).logits.square().mean().backward()
    for name, parameter in run.parameters({name: x.grad for name, x in state.items()}).items():
        wanted = plain.get_parameter(name).grad
        assert torch.allclose(parameter, wanted, atol=1e-6), name
    assert all(x.grad is not None and x.grad.any() for x in state.values())


def test_it_holds_no_parameters_and_shares_those_it_is_given():
    typed = Typed.of(checkpoint(GPT2))
    run = InMemory(typed)
    assert sum(parameter.numel() for parameter in run.model.parameters()) == 0
    state = tensors(typed, run.names)
    parameters = run.parameters(state)
    assert {x.data_ptr() for x in parameters.values()} == {x.data_ptr() for x in state.values()}


def test_tied_tensors_are_one():
    typed = Typed.of(checkpoint("gpt2/GPT2LMHeadModel"))
    run = InMemory(typed)
    assert typed.spec.tied
    assert not set(run.names) & typed.spec.tied.keys()
    state = tensors(typed, run.names)
    inputs = probe(typed.checkpoint.config, typed.checkpoint.architecture)
    with torch.no_grad():
        wanted = instantiate(typed.checkpoint, torch.float32)(**inputs).logits
        assert torch.allclose(run(run.parameters(state), inputs).logits, wanted, atol=1e-5)
        state["wte.weight"] = state["wte.weight"] * 2
        other = run(run.parameters(state), inputs).logits
    assert not torch.allclose(other, wanted, atol=0.1)


def test_what_cannot_be_placed_is_refused(monkeypatch):
    """A class whose weights are computed from those of the file."""

    typed = Typed.of(checkpoint(GPT2))

    def changed(*arguments):
        model = instantiate(*arguments)
        with torch.no_grad():
            weight = model.transformer.h[1].mlp.c_fc.weight
            weight.copy_(weight[torch.randperm(len(weight), generator=torch.Generator().manual_seed(0))])
        return model

    monkeypatch.setattr(in_memory, "instantiate", changed)
    with pytest.raises(InputError, match=r"h\.1\.mlp\.c_fc\.weight has no place in memory that can be told"):
        InMemory(typed)
