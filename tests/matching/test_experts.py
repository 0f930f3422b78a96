"""The neurons of experts, and the order of these: what bounds say, and what is not looked at for that."""

import gc
import itertools
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cobasin.errors import InputError
from cobasin.matching import neurons
from cobasin.matching.choice import Choice
from cobasin.matching.compared import Compared
from cobasin.matching.experts import Experts
from cobasin.matching.neurons import EVERY
from cobasin.matching.order import propose_order
from cobasin.matching.state import Match
from cobasin.matching.weights import ascend
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import Form
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec
from random_states import random_state

GROUPS = [Permutation(signed, scaled) for signed, scaled in itertools.product([False, True], repeat=2)]
NEURONS = pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.describe(4)[0])


def mixture(group, neurons=4, width=5):
    """A layer of three experts."""
    spaces = {
        "layer": Space(1),
        "expert": Space(3, Permutation(), ("layer",), "experts"),
        "ffn": Space(neurons, group, ("layer", "expert"), "ffn"),
        "d": Space(width),
    }
    templates = {
        "{layer}.router": "expert d",
        "{layer}.gate": "expert ffn~ d",
        "{layer}.up": "expert ffn d",
        "{layer}.down": "expert d ffn'",
    }
    return Spec("Toy", spaces, templates)


@NEURONS
@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_experts_is_optimal(group, seed):
    """Against every order of the experts, the neurons of each matched as well as can be."""
    spec = mixture(group)
    source, anchor = random_state(spec, seed), random_state(spec, seed + 10)
    totals = []
    for perm in itertools.permutations(range(3)):
        moved = dict(Element(Form(spec), {("expert", 0): {"perm": torch.tensor(perm)}}).apply(source))
        match = Match.of(Form(spec), Choice.parse("ffn,scale"), moved, anchor)
        match.set({("ffn", 0): match.groups["ffn", 0].project(match.gram(("ffn", 0)))})
        totals.append(match.total)
    match = Match.of(Form(spec), Choice.parse("ffn,experts,scale"), source, anchor)
    match.set(propose_order(match, ("expert", 0)))
    assert match.total == pytest.approx(min(totals), rel=1e-12)
    assert max(totals) > 1.01 * min(totals)


@NEURONS
def test_neurons_of_experts_that_stay_in_their_order(group, monkeypatch):
    """Each expert is compared with its own twin only, one at a time."""
    spec = mixture(group)
    anchor = random_state(spec, 0)
    neurons = Element.sample(Form(spec), 1, "ffn")
    compared = []
    gram = Compared.gram

    def watched(own, columns=None, *, select):
        compared.append(select["expert"])
        return gram(own, columns, select=select)

    monkeypatch.setattr(Compared, "gram", watched)
    ascend(Match.of(Form(spec), Choice.parse("ffn,scale"), random_state(spec, 2), anchor))
    assert set(compared) == {(0, 0), (1, 1), (2, 2)}
    match = Match.of(Form(spec), Choice.parse("ffn,scale"), dict(neurons.apply(anchor)), anchor)
    start = match.total
    ascend(match)
    assert match.total < 1e-20 * start
    order = Element(Form(spec), {("expert", 0): {"perm": torch.tensor([1, 2, 0])}})
    source = dict(order.apply(neurons.apply(anchor)))
    for symmetry, found in (("ffn,scale", False), ("ffn,experts,scale", True)):
        match = Match.of(Form(spec), Choice.parse(symmetry), source, anchor)
        ascend(match)
        assert (match.total < 1e-20 * start) is found


@NEURONS
def test_no_table_is_made_of_experts_that_nearly_agree(group, monkeypatch):
    """In another order, and their neurons, too: which are twins a part of the weights tells."""
    spec = mixture(group, neurons=32, width=64)
    anchor, other = random_state(spec, 0), random_state(spec, 1)
    planted = Element.sample(Form(spec), 3)
    near = {name: x + 0.02 * other[name] for name, x in anchor.items()}
    gram, rough_bound = Compared.gram, Experts.rough_bound
    for source, related in ((dict(planted.apply(near)), True), (other, False)):
        match, made, asked = Match.of(Form(spec), Choice.parse("ffn,experts,scale"), source, anchor), [], []
        with monkeypatch.context() as patch:
            patch.setattr(Compared, "gram", lambda *of, made=made, **to: made.append(1) or gram(*of, **to))
            patch.setattr(
                Experts, "rough_bound", lambda own, *of, asked=asked: asked.append(of) or rough_bound(own, *of)
            )
            proposal = propose_order(match, ("expert", 0))
        found = [proposal[key]["perm"].equal(value["perm"]) for key, value in planted.inverse().values.items()]
        assert (len(asked) == 3, not made, all(found)) == (related, related, related)


def test_what_was_compared_is_not_held(monkeypatch):
    """A layer's tensors go with what is asked about them, not with the next collection of cycles."""
    spec = mixture(GROUPS[0])
    match = Match.of(Form(spec), Choice.parse("ffn,experts"), random_state(spec, 0), random_state(spec, 1))
    compared = []
    own = Compared.__init__
    monkeypatch.setattr(Compared, "__init__", lambda self, *of: compared.append(weakref.ref(self)) or own(self, *of))
    gc.collect()
    gc.disable()
    try:
        match.set(propose_order(match, ("expert", 0)))
        assert compared
        assert not any(one() for one in compared)
    finally:
        gc.enable()


def test_what_overflows_is_refused():
    spec = mixture(GROUPS[0])
    ends = [{name: 1e20 * x.float() for name, x in random_state(spec, seed).items()} for seed in (0, 1)]
    match = Match.of(Form(spec), Choice.parse("ffn,experts"), *ends)
    with pytest.raises(InputError, match="beyond float32"):
        propose_order(match, ("expert", 0))


@NEURONS
def test_parts_of_a_table_are_the_table(group, monkeypatch):
    spec = mixture(group, neurons=9, width=20)
    source, anchor = random_state(spec, 0), random_state(spec, 1)
    proposals = []
    for table in (neurons.TABLE, 4 * 9 * 2):
        monkeypatch.setattr(neurons, "TABLE", table)
        match = Match.of(Form(spec), Choice.parse("ffn,experts,scale"), source, anchor)
        proposals.append(propose_order(match, ("expert", 0)))
    whole, parts = proposals
    for key, value in whole.items():
        for part, tensor in value.items():
            torch.testing.assert_close(parts[key][part], tensor)


@NEURONS
@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    noise=st.floats(0, 2),
    neurons=st.integers(1, 40),
    width=st.integers(1, 40),
    tiny=st.sampled_from([1, 1e-20]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_no_pair_gains_more_than_its_bounds(group, seed, noise, neurons, width, tiny, dtype):
    """Whatever a part of the weights says, and where it says nothing of some neurons."""
    spec = mixture(group, neurons, width)
    anchor, other = random_state(spec, seed), random_state(spec, seed + 1)
    source = {name: x + noise * other[name] for name, x in Element.sample(Form(spec), seed).apply(anchor).items()}
    if seed % 3 == 0:
        source["0.up"][:, 0, ::EVERY] = 0
    source["0.up"] *= tiny
    source, anchor = ({name: x.to(dtype) for name, x in state.items()} for state in (source, anchor))
    compared = Compared(
        Match.of(Form(spec), Choice.parse("ffn,experts,scale"), source, anchor), ("ffn", 0), [("expert", 0)]
    )
    experts = Experts(compared)
    rough = experts.rough_bounds()
    slack = 1e-5 * float(rough.abs().max())
    for p, q in itertools.product(range(experts.count), repeat=2):
        pair, gain = experts.pair(p, q), float(compared.group.support(compared.gram(select={"expert": (p, q)})))
        assert pair.gain == pytest.approx(gain, abs=slack)
        assert min(pair.bound, experts.rough_bound(p, q), float(rough[p, q])) >= gain - slack
