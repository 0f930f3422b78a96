"""Mixtures of models whose elements learn, in every declared architecture."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.data import Batch, task_of
from cobasin.errors import InputError
from cobasin.learning.answers import Memory, answers
from cobasin.learning.descent import hold_out
from cobasin.learning.in_memory import InMemory
from cobasin.matching.choice import Choice
from cobasin.matching.learned import Mixture, learn, mixture_weights
from cobasin.matching.state import free_groups, identity
from cobasin.symmetry.canonical import canonical, gauge_of
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from cobasin.symmetry.state import Lazy
from sampling import one_in
from tiny_models import ONE_A_DECLARATION, checkpoint

VIT = "vit/ViTForImageClassification"


def mixture(case, seeds=(0, 1), symmetry="full", labels=False):
    """Models of a case, and the same in canonical form, mixed."""
    typed = [Typed.of(checkpoint(case, seed, torch.float32)) for seed in seeds]
    if typed[0].spec.unties:
        typed = [one.untied() for one in typed]
    choice = Choice.parse(symmetry)
    forms = [
        form_of(one.spec, bool(one.spec.norms), free_biases=True, balanced=choice.general, parts=choice.parts)
        for one in typed
    ]
    run = InMemory(typed[0])
    states = [canonical(form, one) for form, one in zip(forms, typed, strict=True)]
    states = [{name: state[name].float() for name in run.names} for state in states]
    try:
        task = task_of(typed[0].checkpoint)
    except InputError:  # no rows are read for it
        task = "features"
    groups = [{key: form.group(key) for key in form.spec.sites} for form in forms]
    return typed, Mixture(forms, groups, states, run, task, labels)


def elements(mixed, sampled=True, symmetry="full"):
    """An element of all that is free for every model; the identity for the last."""
    found, choice = [], Choice.parse(symmetry)
    for seed, form in enumerate(mixed.forms):
        groups, generator = free_groups(form, choice), torch.Generator().manual_seed(seed)
        found.append(identity(form, groups))
        if sampled and seed < len(mixed.forms) - 1:
            for key, group in groups.items():
                space = key[0]
                found[-1][key] = group.sample(form.spec.batch(space), form.spec.sizes[space], generator)
    return found


def probes(typed, count):
    config, architecture = typed.checkpoint.config, typed.checkpoint.architecture
    found = [probe(config, architecture, seed) for seed in range(count)]
    return [Batch({key: x for key, x in one.items() if key != "logits_to_keep"}, None) for one in found]


@pytest.mark.parametrize("case", one_in(8, ONE_A_DECLARATION[::4]))
def test_two_steps_of_every_fourth_declaration(case):
    """With all weight on one model the mixture computes what that does; the loss has a gradient, in the group."""
    typed, mixed = mixture(case)
    values, batches = elements(mixed), probes(typed[0], 2)
    with torch.no_grad():
        inputs = batches[0].inputs
        ends = [
            answers(mixed.task, mixed.run(mixed.parameters(values, share), inputs), inputs)
            for share in ([1, 0], [0, 1])
        ]
        for one, found, other in zip(typed, ends, reversed(ends), strict=True):
            wanted = answers(mixed.task, instantiate(one.checkpoint, torch.float32)(**inputs), inputs)
            size = wanted.abs().max()
            assert (found - wanted).abs().max() < 1e-3 * size
            assert (other - wanted).abs().max() > 1e-2 * size
    seen = []
    learned = learn(mixed, [values], [True, None], *hold_out(batches), steps=2, report=lambda *look: seen.append(look))
    before, after = learned.descent.losses
    assert before != after
    assert seen == [(2, after)]
    assert max(Element(mixed.forms[0], learned.values[0]).deviation().values()) < 1e-9
    assert learned.values[1] is values[1]


def test_the_middle_is_the_mean_of_what_was_moved():
    """The same function as the mean of the models written in the gauge of the last."""
    typed, mixed = mixture(VIT, seeds=(0, 1, 2))
    values, batch = elements(mixed), probes(typed[0], 1)[0]
    gauges = [gauge_of(form, one) for form, one in zip(mixed.forms, typed, strict=True)]
    files = [
        Element(form, value, own, gauges[-1]).apply(one)
        for form, value, own, one in zip(mixed.forms, values, gauges, typed, strict=True)
    ]
    share = [0.2, 0.5, 0.3]
    mean = Lazy(typed[0], lambda name: sum(w * file[name] for w, file in zip(share, files, strict=True)))
    with torch.no_grad():
        wanted = instantiate(typed[0].derived(mean), torch.float32)(**batch.inputs).logits
        found = mixed.run(mixed.parameters(values, share), batch.inputs).logits
        other = mixed.run(mixed.parameters(values, [0.5, 0.2, 0.3]), batch.inputs).logits
    assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max()
    assert (other - wanted).abs().max() > 1e-2 * wanted.abs().max()


def test_the_loss_is_that_of_the_parents_answers_or_of_labels():
    typed, mixed = mixture(VIT)
    values, batch = elements(mixed), probes(typed[0], 1)[0]
    parameters = mixed.parameters(values, [0.5, 0.5])
    models = [instantiate(one.checkpoint, torch.float32) for one in typed]
    with torch.no_grad():
        logits = mixed.run(parameters, batch.inputs).logits.log_softmax(-1)
        taught = sum(model(**batch.inputs).logits.softmax(-1) for model in models) / 2
        assert float(mixed.loss(parameters, batch)) == pytest.approx(-float((taught * logits).sum(-1).mean()), rel=1e-4)
        labelled = replace(batch, labels=torch.tensor([1, 0]))
        expected = -float(logits[torch.arange(2), labelled.labels].mean())
        assert float(replace(mixed, labels=True).loss(parameters, labelled)) == pytest.approx(expected, rel=1e-4)


def test_weights_are_about_the_middle():
    generator = torch.Generator().manual_seed(0)
    two = torch.tensor([mixture_weights(2, generator) for _ in range(4000)])
    assert torch.allclose(two.sum(1), torch.ones(4000))
    assert 0.4 <= two.min() < 0.401
    assert 0.599 < two.max() <= 0.6
    quarters = torch.histc(two[:, 0], 4, 0.4, 0.6)
    assert (quarters - 1000).abs().max() < 150
    three = torch.tensor([mixture_weights(3, generator) for _ in range(1000)])
    assert torch.allclose(three.sum(1), torch.ones(1000))
    assert 0.8 / 3 <= three.min() < 0.27
    assert (three.mean(0) - 1 / 3).abs().max() < 0.02


def test_it_starts_from_the_better_start_and_lowers_the_loss():
    typed, mixed = mixture(VIT)
    good, bad = elements(mixed, sampled=False), elements(mixed)
    batches = probes(typed[0], 16)
    held = batches[:2]
    good_loss, bad_loss = (mixed.middle_loss(values, held) for values in (good, bad))
    assert good_loss != bad_loss
    (_, better), (_, worse) = sorted([(good_loss, good), (bad_loss, bad)], key=lambda pair: pair[0])
    for starts in ([better, worse], [worse, better]):
        learned = learn(mixed, starts, [True, None], *hold_out(batches), steps=40)
        assert learned.descent.losses[0] == pytest.approx(min(good_loss, bad_loss))
        assert min(learned.descent.losses) < 0.99 * learned.descent.losses[0]
        assert mixed.middle_loss(learned.values, held) == pytest.approx(min(learned.descent.losses), rel=1e-4)


def test_a_start_that_overflows_is_not_taken(monkeypatch):
    typed, mixed = mixture(VIT)
    finite, other = elements(mixed), elements(mixed, sampled=False)
    losses = {id(other): math.nan, id(finite): 1.0}
    monkeypatch.setattr(type(mixed), "middle_loss", lambda _, values, batches: losses.get(id(values), 0.5))
    for starts in ([other, finite], [finite, other]):
        (found, _) = learn(mixed, starts, [True, None], *hold_out(probes(typed[0], 2)), steps=0).values
        assert all(torch.allclose(x, found[key][part]) for key, v in finite[0].items() for part, x in v.items())


def test_a_reference_moves_its_scales_and_general_maps_only():
    """And a third model, which stays, does not move at all."""
    typed, mixed = mixture(VIT, seeds=(0, 1, 2), symmetry="gl")
    values = elements(mixed, symmetry="gl")
    learned = learn(mixed, [values], [True, None, False], *hold_out(probes(typed[0], 4)), steps=5)
    moved, stays, stretched = learned.values
    assert stays is values[1]
    keys = {
        key: any(not x.equal(values[2][key][part]) for part, x in value.items()) for key, value in stretched.items()
    }
    assert {key[0] for key, changed in keys.items() if changed} == {"qk", "vo"}
    for key, value in stretched.items():
        if keys[key]:  # symmetric and positive: nothing turns
            assert torch.allclose(value["matrix"], value["matrix"].mT)
    assert not moved[("resid",)]["matrix"].equal(values[0][("resid",)]["matrix"])
    for form, value in zip(mixed.forms, learned.values, strict=True):
        assert max(Element(form, value).deviation().values()) < 1e-9


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("case", [VIT, "mixtral/MixtralForCausalLM", "llama-gqa/LlamaForCausalLM"])
def test_on_a_gpu(case):
    """The first losses are those on the CPU; what was learned is on the CPU, in the group."""
    typed, mixed = mixture(case)
    run, values, batches = InMemory(typed[0], "cuda"), elements(mixed), probes(typed[0], 4)
    states = [{name: x.cuda() for name, x in state.items()} for state in mixed.states]
    found = [
        learn(one, [values], [True, False], *hold_out(batches), steps=10)
        for one in (mixed, replace(mixed, run=run, states=states, taught=Memory()))
    ]
    assert found[1].descent.losses == pytest.approx(found[0].descent.losses, rel=1e-2)
    for one in found[1].values:
        assert {x.device.type for value in one.values() for x in value.values()} == {"cpu"}
    assert max(Element(mixed.forms[0], found[1].values[0]).deviation().values()) < 1e-9
