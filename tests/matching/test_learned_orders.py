"""Orders that learn: what is assigned, what its gradient is, and what it finds."""

import pytest
import torch

from cobasin.checkpoints.typed import Typed
from cobasin.finding import match as api
from cobasin.matching.choice import Choice
from cobasin.matching.learned_orders import BONUS, neurons, pairs
from cobasin.matching.moves import Moves
from cobasin.matching.state import Match
from cobasin.proposal.checking import change, forms, run, sample
from cobasin.symmetry.action import act
from cobasin.symmetry.canonical import canonical
from cobasin.symmetry.element import Element
from cobasin.symmetry.groups.permutation import at_pairs
from tiny_models import checkpoint, tolerance

PLAIN, SIGNED = "gpt2-untied/GPT2LMHeadModel", "llama-gqa/LlamaForCausalLM"
EXPERTS = "mixtral/MixtralForCausalLM"
CASES = (PLAIN, SIGNED, EXPERTS)
FULL = Choice.parse("full")


def planted(case):
    """A model, a random element of it without general maps, and its match to what that makes of the model."""
    model, form = forms(Typed.of(checkpoint(case)))[0]
    values = sample(form, 1).values
    source = canonical(form, model)
    anchor = {name: act(form.spec, values, form.group, name, source[name]) for name in form.spec.entries}
    return model, form, values, Match(form, FULL, source, anchor, values=values)


def exchanged(form, values, match):
    """The same where the first two neurons of every order are exchanged, with scales that they do not need."""
    values = dict(values)
    for key in neurons(form, match.groups):
        value = {part: x.clone() for part, x in values[key].items()}
        value["perm"][..., :2] = value["perm"][..., :2].flip(-1)
        values[key] = value
    match.set(values)
    return values


def scores(moves):
    """What is added to the scores of every order; the parameters that come last."""
    return dict(zip(moves.orders, moves.parameters[-len(moves.orders) :], strict=True))


def at_random(moves, size):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in moves.parameters:
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))


@pytest.mark.parametrize("case", CASES)
def test_only_neurons_move_and_zero_is_the_start(case):
    _, form, _, match = planted(case)
    values = match.values
    keys = neurons(form, match.groups)
    assert keys
    assert {form.spec.spaces[key[0]].part for key in keys} == {"ffn"}
    assert all(key[0] not in form.spec.batch_axes(other[0]) for key in keys for other in match.groups)
    orders = pairs(match)
    for key in keys:  # partners agree in all that they read and write, whatever their signs and scales
        assert at_pairs(orders[key]["scores"], values[key]["perm"]).sub(1 + BONUS).abs().max() < 1e-5
    moves = Moves(form, match.groups, values, orders=orders)
    for found in (moves.exact(moves.parameters), moves.values()):
        for key in keys:
            assert torch.equal(found[key]["perm"], values[key]["perm"])
            if "scale" in values[key]:
                torch.testing.assert_close(found[key]["scale"].double(), values[key]["scale"])
    assert all(found.keys() == values[key].keys() for key, found in moves.exact(moves.parameters).items())


def test_the_start_is_the_best_by_the_bonus_whatever_it_is():
    _, form, values, match = planted(PLAIN)
    wrong = exchanged(form, values, match)
    for key, found in pairs(match).items():
        scores, perm = found["scores"], wrong[key]["perm"]
        now = scores.gather(-2, perm[None])[0]
        others = scores.scatter(-2, perm[None], -torch.inf).amax(-2)
        assert (now - others > BONUS - 1e-6).all()
        torch.testing.assert_close((now - others)[:2], torch.full((2,), BONUS))  # the right one is held back


@pytest.mark.parametrize("case", CASES)
def test_the_function_is_kept_whatever_is_assigned(case):
    model, form, _, match = planted(case)
    moves = Moves(form, match.groups, match.values, orders=pairs(match))
    at_random(moves, 1.0)
    values = moves.exact(moves.parameters)
    for key in neurons(form, match.groups):
        assert not torch.equal(values[key]["perm"], match.values[key]["perm"])
    element = Element(form, values)
    assert max(element.deviation().values()) < 1e-12
    assert change(model.derived(element.apply(model), torch.float64), run(model.checkpoint)) < tolerance(case)


def test_orders_stay_unless_they_are_named():
    """Control."""
    _, form, _, match = planted(PLAIN)
    moves = Moves(form, match.groups, match.values)
    at_random(moves, 1.0)
    values = moves.exact(moves.parameters)
    assert all(torch.equal(values[key]["perm"], match.values[key]["perm"]) for key in neurons(form, match.groups))


@pytest.mark.parametrize("case", CASES)
def test_the_right_partner_comes_with_its_scale(case):
    _, form, values, match = planted(case)
    assert match.total < 1e-18
    moves = Moves(form, match.groups, exchanged(form, values, match), orders=pairs(match))
    assert match.total > 1e-3
    with torch.no_grad():
        for key, parameter in scores(moves).items():
            parameter.scatter_(-2, values[key]["perm"][..., None, :], 2.0)
    match.set(moves.exact(moves.parameters))
    assert match.total < 1e-9


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_is_that_of_the_matrix(case):
    _, form, _, match = planted(case)
    found = pairs(match)
    moves = Moves(form, match.groups, match.values, orders=found)
    values, generator = moves.values(), torch.Generator().manual_seed(0)
    for key, pair in found.items():
        group, parameter = form.group(key), scores(moves)[key]
        perm, n = match.values[key]["perm"], parameter.shape[-1]
        x, weights = torch.randn(2, *parameter.shape[:-2], 3, n, generator=generator)
        for charge in (1, -1, 0):
            matrix = torch.zeros_like(parameter).scatter(-2, perm[..., None, :], 1.0).detach().requires_grad_()
            scale = match.values[key].get("scale", torch.ones(n)).float()[..., None, :] * pair.get(
                "ratio", torch.ones(1)
            )
            wanted = torch.autograd.grad(((x @ (matrix * scale.float().pow(charge))) * weights).sum(), matrix)[0]
            loss = (group.act(values[key], x, charge) * weights).sum()
            (gradient,) = torch.autograd.grad(loss, parameter, retain_graph=True)
            torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
            assert wanted.any(-1).all()


@pytest.mark.parametrize("down", [True, False])
def test_descent_finds_the_order(down):
    """The distance to the anchor falls to nothing; up the same gradient it does not (control)."""
    _, form, values, match = planted(PLAIN)
    moves = Moves(form, match.groups, exchanged(form, values, match), orders=pairs(match))
    optimizer = torch.optim.Adam(moves.parameters, lr=1e-2, maximize=not down)
    names = match.tensors_of(neurons(form, match.groups))

    def distance():
        now, total = moves.values(), torch.zeros(())
        for name in names:
            moved = act(form.spec, now, form.group, name, match.source[name].float())
            total = total + (moved - match.anchor[name].float()).square().sum()
        return total

    assert distance() > 1
    for _ in range(40):
        optimizer.zero_grad()
        distance().backward()
        optimizer.step()
    match.set(moves.exact(moves.parameters))
    assert (match.total < 1e-18) is down


@pytest.mark.usefixtures("few_rounds")
def test_learning_from_the_top(monkeypatch):
    monkeypatch.setattr("cobasin.matching.learned.RATE", 0.3)
    models = [checkpoint("vit/ViTForImageClassification", seed) for seed in (1, 0)]
    asked = {"method": "learned", "samples": 32, "steps": 3}
    for orders, symmetry in ((True, "ffn"), (True, "full"), (False, "full")):
        element = api.match(*models, symmetry=symmetry, orders=orders, **asked)
        assert max(element.deviation().values()) < 1e-9
        assert all("scores" not in value for value in element.values.values())
