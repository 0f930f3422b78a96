"""The Gram of a stream, of which what has not moved is kept: the same to the last bit, and not computed twice."""

import pytest
import torch

from cobasin.matching import weights
from cobasin.matching.choice import Choice
from cobasin.matching.state import Match, identity, same
from cobasin.matching.streams import Streams
from cobasin.symmetry.element import Element
from cobasin.symmetry.groups import Permutation
from random_states import CONFIGS, form_of, random_state

every_family = pytest.mark.parametrize("family", CONFIGS)


def start(family, source=2):
    form = form_of(family)
    return Match.of(form, Choice.parse("full"), random_state(form.spec, source), random_state(form.spec, 1))


def with_itself(family):
    form = form_of(family, folded=False)
    anchor = random_state(form.spec, 1)
    return Match.of(form, Choice.parse("full"), dict(anchor), anchor)


def spaces_of(match, sites):
    return {other[0] for site in sites for other in match._keys_of[site.tensor]}


def recorded(match, monkeypatch):
    """The spaces that move what a Gram is made of, besides the stream, of every Gram from now on."""
    seen, gram = [], match.gram

    def record(key, **given):
        seen.append(spaces_of(match, given["sites"]) - {key[0]})
        return gram(key, **given)

    monkeypatch.setattr(match, "gram", record)
    return seen


def moved(match, part, seed=0):
    """Sample the keys of a part."""
    generator = torch.Generator().manual_seed(seed)
    keys = [key for key in match.groups if match.spec.spaces[key[0]].part == part]
    for key in keys:
        batch, size = match.spec.batch(key[0]), match.spec.sizes[key[0]]
        match.set({key: match.groups[key].sample(batch, size, generator)})
    assert keys


def gram_of(streams, match, key):
    found = streams._gram(key)
    fresh = Streams(match)._gram(key)
    assert all(found.cross[charge].equal(term) for charge, term in fresh.cross.items())
    return found


@every_family
def test_what_is_kept_is_what_would_be_found(family, monkeypatch):
    match = start(family)
    streams = Streams(match)
    (key,) = streams.keys
    whole = match.gram(key).total()
    assert torch.allclose(gram_of(streams, match, key).total(), whole, rtol=1e-12, atol=1e-12)
    moved(match, "ffn")
    for _ in range(3):
        gram_of(streams, match, key)
    seen = recorded(match, monkeypatch)
    streams._gram(key)
    assert not seen, "nothing has moved"
    moved(match, "attention")
    streams._gram(key)
    assert seen
    assert not any("ffn" in spaces or not spaces for spaces in seen), "neither FFNs nor ends have moved"
    moved(match, "ffn", seed=1)
    seen.clear()
    streams._gram(key)
    assert {"ffn"} in seen
    gram_of(streams, match, key)
    moved(match, "residual")  # what it meets on both sides moves with it
    gram_of(streams, match, key)


def test_another_group_asks_for_other_terms():
    """Norms, that groups with a scale need, are no part of the Gram of one without."""
    match = start("bert")
    streams = Streams(match)
    (key,) = streams.keys
    for _ in range(3):
        assert not streams._gram(key).source
    group = type(match.groups[key])(scaled=True)
    match.groups[key] = group
    assert streams._gram(key).source


def test_ends_that_agree_are_no_second_start(monkeypatch):
    monkeypatch.setattr(weights, "within", lambda match, share: False)
    rounds, round_ = [], weights._round

    def record(units, streams, families, reorder, name):
        rounds.append(name)
        return round_(units, streams, families, reorder, name)

    monkeypatch.setattr(weights, "_round", record)
    form = form_of("bert", folded=False)
    anchor, noise = random_state(form.spec, 1), random_state(form.spec, 3)
    near = {name: x + 0.01 * noise[name] for name, x in anchor.items()}
    weights.ascend(Match.of(form, Choice.parse("full"), near, anchor))
    assert [name for name in rounds if name.startswith("1-")] == ["1-0"]
    rounds.clear()
    weights.ascend(Match.of(form, Choice.parse("full"), noise, anchor))
    assert [name for name in rounds if name.startswith("1-")] == ["1-0", "1-1"]


def test_a_step_to_where_it_stands_costs_nothing(monkeypatch):
    match = start("llama")
    key, value = next(iter(match.values.items()))
    monkeypatch.setattr(match, "distance", lambda name: pytest.fail("computed a distance"))
    assert match.step({key: {part: x.clone() for part, x in value.items()}})


@every_family
@pytest.mark.parametrize(("noise", "sure"), [(0.0, True), (0.02, True), (0.5, None), (None, False)])
def test_an_order_that_is_proven_is_that_of_the_gram(family, noise, sure):
    form = form_of(family, folded=False)
    anchor, other = random_state(form.spec, 1), random_state(form.spec, 3)
    source = other if noise is None else {name: x + noise * other[name] for name, x in anchor.items()}
    match = Match.of(form, Choice.parse("full"), source, anchor)
    streams = Streams(match)
    (key,) = streams.keys
    assert isinstance(match.groups[key], Permutation)
    found = streams._stays(key)
    assert sure in (None, found)
    if found:
        assert same(match.groups[key].project(streams._gram(key)), match.values[key])


@every_family
def test_another_order_and_another_sign_are_not_proven(family):
    match = with_itself(family)
    streams = Streams(match)
    (key,) = streams.keys
    assert streams._stays(key)
    right = match.values[key]
    swapped = right["perm"].clone()
    swapped[[0, 1]] = swapped[[1, 0]]
    wrong = [right | {"perm": swapped}]
    if match.groups[key].signed:
        wrong.append(right | {"scale": right["scale"].clone().index_fill_(0, torch.tensor(2), -1)})
    for value in wrong:
        match.set({key: value})
        assert not streams._stays(key)
    assert streams.update(key)
    assert same(match.values[key], right)


def test_the_largest_tensor_alone_proves_nothing():
    match = with_itself("bert")
    form, anchor, (key,) = match.form, match.anchor, Streams(match).keys
    largest = max(match.sites(key), key=lambda site: anchor[site.tensor].numel()).tensor
    small = dict(anchor) | {largest: 1e-3 * anchor[largest]}
    turned = Element(form, {key: {"perm": torch.arange(match.spec.sizes[key[0]]).roll(1)}}).apply(small)
    match = Match.of(form, Choice.parse("full"), dict(turned) | {largest: small[largest]}, small)
    streams = Streams(match)
    assert not streams._stays(key)
    assert streams.update(key)
    assert not same(match.values[key], identity(form, match.groups)[key])


@pytest.mark.parametrize("related", [True, False])
def test_no_gram_of_a_stream_is_made_of_near_copies(related, monkeypatch):
    form = form_of("bert", folded=False)
    anchor, other = random_state(form.spec, 1), random_state(form.spec, 3)
    source = {name: x + 0.01 * other[name] for name, x in anchor.items()} if related else other
    seen, gram = [], Streams._gram
    monkeypatch.setattr(Streams, "_gram", lambda own, key: seen.append(key) or gram(own, key))
    weights.ascend(Match.of(form, Choice.parse("full"), source, anchor))
    assert bool(seen) is not related


def test_scales_are_not_proven():
    match = with_itself("bert")
    streams = Streams(match)
    (key,) = streams.keys
    match.groups[key] = Permutation(scaled=True)
    assert not streams._stays(key)


@every_family
def test_models_that_agree_need_no_other_start(family, monkeypatch):
    form = form_of(family)
    anchor, other = random_state(form.spec, 1), random_state(form.spec, 3)
    source = {name: x + 0.01 * other[name] for name, x in anchor.items()}
    matches, rounds, within = [], [], weights.within
    for told in (within, lambda match, share: False):
        monkeypatch.setattr(weights, "within", told)
        matches.append(Match.of(form, Choice.parse("full"), source, anchor))
        rounds.append(weights.ascend(matches[-1]).rounds)
    assert rounds[0] < rounds[1]
    assert matches[0].total == pytest.approx(matches[1].total, rel=1e-6)
    # the control: the same copies with their streams moved, and unrelated models
    moved = Element.sample(form, 0, part="residual").apply(source)
    ends = [Match.of(form, Choice.parse("full"), x, anchor) for x in (source, moved, other)]
    assert [within(match, weights.NEAR) for match in ends] == [True, False, False]
