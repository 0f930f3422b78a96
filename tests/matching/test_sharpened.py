"""Orders of streams that learn: what lies between two orders, and that learning ends at one, the right one."""

import pytest
import torch

from cobasin.checkpoints.typed import Typed
from cobasin.finding import learning
from cobasin.finding import match as api
from cobasin.matching import learned
from cobasin.matching.choice import Choice
from cobasin.matching.moves import Moves
from cobasin.matching.sharpened import SOFT, settled, signs, softened
from cobasin.matching.state import Match, free_groups, identity
from cobasin.proposal.checking import change, forms, run, sample
from cobasin.symmetry.action import act
from cobasin.symmetry.canonical import canonical
from cobasin.symmetry.element import Element
from cobasin.symmetry.groups import Permutation
from tiny_models import checkpoint, tolerance

PLAIN, SIGNED = "bert/BertForMaskedLM", "olmo2/Olmo2ForCausalLM"
CASES = (PLAIN, SIGNED)
STREAM = ("resid",)
ONES = 1e-3  # how near a sharpened matrix is to one of zeros and ones


def start(n, signed, seed=0):
    """An order, with signs where there are some, and the signs of all pairs over those of it."""
    generator = torch.Generator().manual_seed(seed)
    value, ratio = {"perm": torch.rand(n, generator=generator).argsort()}, None
    if signed:
        value["scale"] = torch.randint(2, (n,), generator=generator).mul(2).sub(1).double()
        ratio = torch.randint(2, (n, n), generator=generator).mul(2).sub(1).double()
        ratio.scatter_(0, value["perm"][None], 1.0)
    return value, ratio


@pytest.mark.parametrize("signed", [False, True])
def test_learning_begins_between_the_orders_and_sharpens(signed):
    value, ratio = start(12, signed)
    shares, sharp = (softened(value, torch.zeros(12, 12), share, ratio)["soft"] for share in (0.0, 1.0))
    now = torch.zeros(12, 12).scatter_(0, value["perm"][None], 1.0)
    assert (shares.argmax(0) == value["perm"]).all()
    assert float(shares.gather(0, value["perm"][None]).mean()) == pytest.approx(12 / 23)
    assert shares.min() > 1e-3  # every pair has one
    for axis in (0, 1):
        torch.testing.assert_close(shares.sum(axis).float(), torch.ones(12), rtol=1e-4, atol=1e-4)
    assert (sharp - now).abs().max() < ONES


@pytest.mark.parametrize("signed", [False, True])
def test_the_scores_assign_an_order_with_its_signs(signed):
    (value, ratio), move, at = start(12, signed), torch.zeros(12, 12), torch.arange(12)
    assert settled(value, move, ratio)["perm"].equal(value["perm"])
    wanted, _ = start(12, signed, seed=1)
    assert not wanted["perm"].equal(value["perm"])
    move[wanted["perm"], at] = 0.1
    found, sharp = settled(value, move, ratio), softened(value, move, 1.0, ratio)
    assert found["perm"].equal(wanted["perm"])
    assert ratio is None or found["scale"].equal((value["scale"] * ratio[wanted["perm"], at]).float())
    group, x = Permutation(signed), torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    for charge in (1, -1, 0):  # sharpened, it acts as that
        assert (group.act(value | sharp, x, charge) - group.act(found, x, charge)).abs().max() < 12 * ONES


@pytest.mark.parametrize("case", CASES)
def test_the_model_is_its_own_after_the_soft_steps_only(case):
    model, form = forms(Typed.of(checkpoint(case)))[0]
    values = sample(form, 1).values
    moves = Moves(form, {key: form.group(key) for key in values}, values)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in moves.parameters:
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    assert not moves.exact(moves.parameters)[STREAM]["perm"].equal(values[STREAM]["perm"])
    source, before = canonical(form, model), run(model.checkpoint)

    def changed(values):
        moved = Element(form, values).apply(model)
        return change(model.derived(moved, torch.float64), before)

    for found in (moves.values(SOFT), moves.values(), moves.exact(moves.parameters)):
        assert changed({key: _double(value) for key, value in found.items()}) < 1e-4  # some of it in float32
        assert "soft" not in found[STREAM]
    assert changed(moves.exact(moves.parameters)) < tolerance(case)
    soft = moves.values(0.3)[STREAM]
    name = next(name for name in source if any("resid" in str(axis) for axis in form.spec.entries[name].layout.blocks))
    assert soft["soft"].requires_grad
    moved = act(form.spec, {STREAM: soft}, form.group, name, source[name].float())
    assert moved.requires_grad


def _double(value):
    return {part: x.detach().double() if x.is_floating_point() else x for part, x in value.items()}


def test_how_long_an_order_is_soft():
    """With nothing else to learn, to the end; what stays, never. It sharpens all the way."""
    (_, form), turns = forms(Typed.of(checkpoint(PLAIN)))[0], {}
    for symmetry in ("residual", "residual,attention", "attention"):
        groups = free_groups(form, Choice.parse(symmetry))
        turns[symmetry] = [Moves(form, groups, identity(form, groups), turns=one).soft for one in (True, False)]
    assert turns == {"residual": [1.0, 0.0], "residual,attention": [SOFT, 0.0], "attention": [0.0, 0.0]}
    groups = free_groups(form, Choice.parse("residual"))
    moves = Moves(form, groups, identity(form, groups))
    first, second, third = (moves.values(share)[STREAM]["soft"].max().item() for share in (0.0, 0.2, 0.4))
    assert first < second < third


def test_learning_goes_on_while_an_order_is_soft(monkeypatch):
    """Though no look brings a gain, at a rate that is far too high."""
    monkeypatch.setattr(learned, "PATIENCE", 1)
    monkeypatch.setattr(learned, "RATE", 10.0)
    taken = {}
    for symmetry in ("residual,attention", "attention"):
        asked = {"method": "learned", "samples": 32, "steps": 100, "symmetry": symmetry}
        element = api.match(checkpoint(PLAIN, 1), checkpoint(PLAIN, 0), **asked)
        taken[symmetry] = element.report["learning"]["taken"]
    assert taken["residual,attention"] >= 70 > taken["attention"]


@pytest.mark.parametrize("down", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_descent_finds_the_order(case, down):
    """The distance to the anchor falls to nothing; up the same gradient it does not (control)."""
    model, form = forms(Typed.of(checkpoint(case)))[0]
    source, groups = canonical(form, model), free_groups(form, Choice.parse("residual"))
    values = {STREAM: sample(form, 1).values[STREAM]}
    names = [n for n in source if n not in form.norm_parameters]
    anchor = {name: act(form.spec, values, form.group, name, source[name]) for name in form.spec.entries}
    wrong = {STREAM: {part: x.roll(1) if part == "perm" else -x for part, x in values[STREAM].items()}}
    match = Match(form, Choice.parse("residual"), source, anchor, values=wrong)
    moves = Moves(form, groups, match.values, orders=signs(match))
    optimizer = torch.optim.Adam(moves.parameters, lr=1e-2, maximize=not down)
    for step in range(60):
        now = moves.values(step / 60)
        distance = torch.zeros(())
        for name in names:
            moved = act(form.spec, now, form.group, name, source[name].float())
            distance = distance + (moved - anchor[name].float()).square().sum()
        optimizer.zero_grad()
        distance.backward()
        optimizer.step()
    found = moves.exact(moves.parameters)[STREAM]
    assert all(x.equal(found[part].to(x)) for part, x in values[STREAM].items()) is down


@pytest.mark.parametrize("case", CASES)
def test_learning_from_the_top(case, monkeypatch):
    """Streams move where they are free, by signs where they have some; orders of neurons, not asked for, stay."""
    given = []
    monkeypatch.setattr(learning, "signs", lambda match: given.append(signs(match)) or given[-1])

    class Seen(Moves):
        def __init__(self, *how):
            given.append(how[-1])
            super().__init__(*how)

    monkeypatch.setattr(learned, "Moves", Seen)
    models = [checkpoint(case, seed) for seed in (1, 0)]
    asked = {"method": "learned", "samples": 32, "steps": 10}
    start, moved, kept = (
        api.match(*models, symmetry=symmetry, **(asked if learns else {}))
        for symmetry, learns in (("residual", False), ("residual", True), ("ffn,attention", True))
    )
    assert {key for key, value in moved.values.items() if "perm" in value} == {STREAM}
    assert max(moved.deviation().values()) < 1e-9
    assert min(moved.report["learning"]["held_out"]) <= moved.report["learning"]["held_out"][0]
    assert STREAM not in kept.values
    ratios = [found[STREAM]["ratio"] for found in given if STREAM in (found or {})]
    assert len(ratios) == (2 if case == SIGNED else 0)  # as they are found, and as they are learned by
    assert all(ratio is ratios[0] for ratio in ratios)
    assert start.values[STREAM]["perm"].shape == moved.values[STREAM]["perm"].shape
