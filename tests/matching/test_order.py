"""The order of heads and KV groups, found together with their bases."""

import itertools

import pytest
import torch

import cobasin
from cobasin.checkpoints.typed import Typed
from cobasin.matching import order, weights
from cobasin.matching.choice import Choice
from cobasin.matching.order import pairs_size, propose_order
from cobasin.matching.state import Match
from cobasin.symmetry import form as forms
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import Form
from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec
from random_states import form_of, random_state
from tiny_models import checkpoint

BASES = {"bert": "head", "vit": "head", "gpt2": "head"}
BASES |= dict.fromkeys(["llama", "llama with biases", "llama mqa", "stablelm"], "kv")


def pair(family, seed, noise=0.0, parts=("heads", "attention")):
    """A model, and a copy whose heads are reordered, each in a basis of its own, with noise."""
    form = form_of(family, folded=False)
    anchor = random_state(form.spec, seed)
    values = {}
    for part in parts:
        values |= Element.sample(form, seed, part).values
    source = dict(Element(form, values).apply(anchor))
    other = random_state(form.spec, seed + 100)
    return form, {name: x + noise * other[name] for name, x in source.items()}, anchor, Element(form, values)


@pytest.mark.parametrize("family", BASES)
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_one_proposal_finds_order_and_bases(family, noise):
    form, source, anchor, planted = pair(family, 3, noise)
    match = Match.of(form, Choice.parse("heads,attention,scale"), source, anchor)
    expected = planted.inverse().values
    for layer in range(2):
        assert match.step(propose_order(match, (BASES[family], layer)))
    for key, value in expected.items():
        if "perm" in value:
            assert torch.equal(match.values[key]["perm"], value["perm"])
        elif not noise:
            for part, x in value.items():
                y = match.values[key][part]
                gap = torch.remainder(x - y + 1, 2 * torch.pi) - 1 if part == "angle" else x - y
                assert gap.abs().max() < 1e-6
    if not noise:
        assert match.total < 1e-20


def test_the_entries_of_books():
    """Of 320 of 128 numbers, as wav2vec 2.0 has them, the Grams of all pairs would take 54 GB."""
    anchor = Typed.of(checkpoint("wav2vec2/Wav2Vec2ForPreTraining"))
    source = anchor.derived(Element.sample(forms.form_of(anchor.spec, folded=True), 1).apply(anchor))
    assert cobasin.match(source, anchor).report["distance_after"] < 1e-10


@pytest.mark.parametrize("family", BASES)
def test_grams_that_are_not_held_are_made_again(family, monkeypatch):
    form, source, anchor, _ = pair(family, 3, 0.1)
    proposals, counts, made = [], [], order._by_heads
    monkeypatch.setattr(order, "_by_heads", lambda *given, **more: counts.append(0) or made(*given, **more))
    for shared in (0, 4):
        monkeypatch.setattr(order, "SHARED", shared)
        monkeypatch.setattr(order, "LARGE", 0)
        match = Match.of(form, Choice.parse("heads,attention,scale"), source, anchor)
        counts.clear()
        proposals.append((propose_order(match, (BASES[family], 0)), len(counts)))
    (first, often), (second, once) = proposals
    assert often >= 2 * once > 0
    assert first.keys() == second.keys()
    assert all(x.equal(second[key][part]) for key, value in first.items() for part, x in value.items())


@pytest.mark.parametrize("mode", ["heads,attention,scale", "heads,attention"])
@pytest.mark.parametrize("family", ["bert", "vit", "gpt2"])
def test_heads_that_are_proven_to_stay_are_not_compared_with_others(family, mode, monkeypatch):
    form = form_of(family, folded=False)
    anchor, other = random_state(form.spec, 3), random_state(form.spec, 7)
    near = {name: x + 0.01 * other[name] for name, x in anchor.items()}
    made, by_heads, proven = [], order._by_heads, order._Nested.in_place
    monkeypatch.setattr(order, "_by_heads", lambda *given, **more: made.append(given) or by_heads(*given, **more))
    proposals, base = [], ("head", 0)
    for in_place in (proven, lambda self: {}):
        monkeypatch.setattr(order._Nested, "in_place", in_place)
        proposals.append(propose_order(Match.of(form, Choice.parse(mode), near, anchor), base))
        assert bool(made) is (in_place is not proven)
    quick, whole = proposals
    assert quick.keys() == whole.keys()
    for key, value in quick.items():
        for part, x in value.items():
            torch.testing.assert_close(x, whole[key][part], rtol=1e-9, atol=1e-9)
    # the control: nothing is proven of another model, nor of two heads in each other's place, however alike they are
    swap = {base: {"perm": torch.tensor([1, 0, *range(2, form.spec.sizes["head"])])}}
    assert not proven(order._Nested(Match.of(form, Choice.parse(mode), other, anchor), base))
    for apart in (1.0, 1e-2):
        swapped = Element(form, swap).apply(anchor)
        alike = {
            name: x if apart == 1 else (x + swapped[name]) / 2 + apart * (x - swapped[name])
            for name, x in anchor.items()
        }
        source = {name: x + 1e-4 * other[name] for name, x in Element(form, swap).apply(alike).items()}
        assert not proven(order._Nested(Match.of(form, Choice.parse(mode), source, alike), base))


@pytest.mark.parametrize("mode", ["heads,attention,scale", "heads,attention"])
@pytest.mark.parametrize("noise", [0.05, 1.0])
def test_heads_are_no_nearer_in_all_weights_than_in_some(mode, noise):
    form = form_of("bert", folded=False)
    anchor, other = random_state(form.spec, 3), random_state(form.spec, 7)
    source = {name: x + noise * other[name] for name, x in anchor.items()}
    match, base = Match.of(form, Choice.parse(mode), source, anchor), ("head", 0)
    for key in match.fibres(base):
        whole, *parts = (
            match.gram(key, [base, *match.fibres(base)], ("head",), every=every, norms=True) for every in (1, 2, 4)
        )
        distance = match.groups[key].distance(whole)
        least = [match.groups[key].least_distance(part) for part in parts]
        assert (least[0] <= distance).all()
        assert (least[1] < least[0]).any()
        assert (least[1] > 0).any()
        for charge, cross in parts[0].cross.items():
            assert not torch.allclose(cross, whole.cross[charge])


@pytest.mark.parametrize(("family", "space"), [("llama", "vo"), ("bert", "vo"), ("gpt2", "qk")])
def test_the_size_of_grams_of_all_pairs(family, space):
    """It is that of the Gram that is made, and of three tables beside it."""
    form, source, anchor, _ = pair(family, 3)
    match = Match.of(form, Choice.parse("full"), source, anchor)
    key, base = (space, 0), (BASES[family], 0)
    inner = order.inner_order(match, base)
    pairs = (base[0], *([inner[0]] if inner else []))
    grams = order._by_heads(match, key, inner, [base, *match.fibres(base)], pairs)
    tables = [table for gram in grams for table in gram.cross.values()]
    assert {charge for gram in grams for charge in gram.cross} == {1, -1}
    each = max(table.numel() for table in tables) * 8
    assert pairs_size(form.spec, [space]) == (2 + order.SOLVER) * each


def test_layers_whose_grams_are_large_are_matched_one_by_one(monkeypatch):
    form, source, anchor, _ = pair("llama", 3)
    match = Match.of(form, Choice.parse("heads,attention,scale"), source, anchor)
    families, alone = weights._families(match, []), []
    monkeypatch.setattr(weights, "SMALL", 0)
    monkeypatch.setattr(weights, "run_jobs", lambda jobs, one_by_one, **_: alone.append(one_by_one))
    size = pairs_size(form.spec, ["vo", "pair"])
    assert {weights._table(match, family) for family in families.values()} == {size}
    for large in (size, size - 1):
        monkeypatch.setattr(weights, "LARGE", large)
        weights._round(weights.Units(match, None), weights.Streams(match), families, True, "x")
    assert alone == [False, True]


@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_unrelated_heads_is_optimal(family, seed):
    """Against every order of the heads, each head with its best bases."""
    form = form_of(family)
    source, anchor = random_state(form.spec, seed), random_state(form.spec, seed + 10)
    totals = []
    for perm in itertools.permutations(range(3)):
        ordered = Element(form, {("head", 0): {"perm": torch.tensor(perm)}}).apply(source)
        match = Match.of(form, Choice.parse("attention"), dict(ordered), anchor)
        match.set({key: match.groups[key].project(match.gram(key)) for key in (("qk", 0), ("vo", 0))})
        totals.append(match.total)
    match = Match.of(form, Choice.parse("heads,attention"), source, anchor)
    assert match.step(propose_order(match, ("head", 0)))
    assert match.total == pytest.approx(min(totals), rel=1e-12)
    assert max(totals) > min(totals) * 1.001  # the control: the order matters


@pytest.mark.parametrize("family", ["llama", "llama mqa", "stablelm"])
@pytest.mark.parametrize("parts", ["heads,attention", "heads,attention,scale"])
def test_bases_are_best_for_the_order_that_is_proposed(family, parts):
    """What the query heads of a group share, keys and values, counts once, not once a head."""
    form = form_of(family)
    match = Match.of(form, Choice.parse(parts), random_state(form.spec, 1), random_state(form.spec, 11))
    assert match.step(propose_order(match, ("kv", 0)))
    before = match.total
    for key in match.fibres(("kv", 0)):
        if match.groups[key].continuous or key[0] == "nope":
            weights._update(match, key, exactly=True)
    assert match.total == pytest.approx(before, rel=1e-9)


@pytest.mark.parametrize("base", [0, 1])
def test_a_proposal_is_about_one_layer(base):
    form, source, anchor, _ = pair("llama", 0)
    match = Match.of(form, Choice.parse("full"), source, anchor)
    proposal = propose_order(match, ("kv", base))
    assert set(proposal) == {(space, base) for space in ("kv", "rep", "pair", "vo")}
    for key, value in proposal.items():
        assert match.groups[key].deviation(value) < 1e-12
        assert {part: x.shape for part, x in value.items()} == {p: x.shape for p, x in match.values[key].items()}


def test_proposals_use_the_scale_only_if_asked():
    form, source, anchor, _ = pair("llama", 0)
    match = Match.of(form, Choice.parse("heads,attention"), source, anchor)
    proposal = propose_order(match, ("kv", 0))
    assert all("scale" not in value for value in proposal.values())


def test_a_bias_per_head_counts():
    """A tensor that knows the heads but no basis of theirs, in a model whose heads are otherwise alike."""
    spec = Spec(
        "Toy",
        {
            "layer": Space(1),
            "head": Space(4, Permutation(), ("layer",), part="heads"),
            "qk": Space(3, Orthogonal(), ("layer", "head"), part="attention"),
            "resid": Space(5),
            "bucket": Space(6),
        },
        {"{layer}.q": "(head qk) resid", "{layer}.bias": "bucket head"},
    )
    anchor = random_state(spec)
    anchor["0.q"] = anchor["0.q"][:3].repeat(4, 1)
    perm = torch.tensor([2, 0, 3, 1])
    source = dict(Element(Form(spec), {("head", 0): {"perm": perm}}).apply(anchor))
    match = Match.of(Form(spec), Choice.parse("full"), source, anchor)
    proposal = propose_order(match, ("head", 0))
    assert torch.equal(proposal["head", 0]["perm"], perm.argsort())
    without = Match.of(Form(spec), Choice.parse("full"), source, anchor, excluded=["0.bias"])
    assert not torch.equal(propose_order(without, ("head", 0))["head", 0]["perm"], perm.argsort())
