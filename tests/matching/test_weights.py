"""Weight matching: the objective never rises, planted elements are found, what is not asked for is left alone."""

from itertools import combinations
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_models
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.finding import match as api
from cobasin.finding.applying import transform
from cobasin.matching import neurons, streams, weights
from cobasin.matching.choice import Choice
from cobasin.matching.compared import Compared
from cobasin.matching.order import propose_order
from cobasin.matching.state import Match, free_groups, same
from cobasin.matching.weights import MAX_ROUNDS, ascend
from cobasin.symmetry.canonical import gauge_of
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of as form_for
from cobasin.symmetry.gauges import ValueBias
from cobasin.symmetry.state import Lazy
from random_states import CONFIGS, checkpoint, distance, form_of, random_state, spec_of
from sampling import one_in

MODES = [
    "full",
    "paper",
    "ffn",
    "heads",
    "attention",
    "residual",
    "attention,scale",
    "ffn,scale",
    "heads,attention",
    "ffn,heads,residual",
]
every_family = pytest.mark.parametrize("family", CONFIGS)


def scrambled(family, seed, part=None):
    """A form, a model, and a copy moved by a random element of its group (of one part of it)."""
    form = form_of(family)
    anchor = random_state(form.spec, seed)
    return form, dict(Element.sample(form, seed + 1, part).apply(anchor)), anchor


def matched(form, choice, source, anchor):
    match = Match.of(form, Choice.parse(choice), source, anchor)
    progress = ascend(match)
    return match, progress, Element(form, match.values, gauge_of(form, source), gauge_of(form, anchor))


def test_scales_that_no_step_has_moved_are_there(monkeypatch):
    """They are what learning goes on from."""
    form = form_of("llama")
    taken = Match.step
    monkeypatch.setattr(
        Match, "step", lambda self, values: not any("scale" in one for one in values.values()) and taken(self, values)
    )
    match, _, _ = matched(form, "full", *(random_state(form.spec, seed) for seed in (1, 0)))
    scaled = [key for key, group in match.groups.items() if group.scaled]
    assert scaled
    assert [key for key in scaled if "scale" not in match.values[key]] == []


@pytest.mark.parametrize("rounds", [2, 3])
def test_the_last_round_that_there_may_be_finds_scales(rounds, monkeypatch):
    """They wait until the stream has settled, which may take longer than that."""
    monkeypatch.setattr(weights, "MAX_ROUNDS", rounds)
    form = form_of("llama")
    models = [random_state(form.spec, seed) for seed in (1, 0)]
    match, progress, _ = matched(form, "full", *models)
    assert progress.rounds == rounds
    scaled = [key for key, group in match.groups.items() if group.scaled]
    assert scaled
    assert all("scale" in match.values[key] for key in scaled)


@pytest.mark.parametrize("family", ["bert", "vit", "gpt2", "llama", "llama mqa"])
@settings(deadline=None, max_examples=12, derandomize=True)
@given(mode=st.sampled_from(MODES), folded=st.booleans(), seed=st.integers(0, 10**6), likeness=st.sampled_from([0, 1]))
def test_the_objective_never_rises(family, mode, folded, seed, likeness):
    form = form_of(family, folded)
    anchor, source = random_state(form.spec, seed), random_state(form.spec, seed + 1)
    source = {name: likeness * anchor[name] + x for name, x in source.items()}
    match = Match.of(form, Choice.parse(mode), source, anchor)
    start = match.total
    seen = []
    progress = ascend(match, lambda rounds, total: seen.append((rounds, total)))
    assert progress.history[0] == start
    assert progress.history[-1] == match.total
    assert seen == list(enumerate(progress.history))[1:]
    assert 1 <= progress.rounds <= MAX_ROUNDS
    for before, after in zip(progress.history, progress.history[1:], strict=False):
        assert after <= before * (1 + 1e-8)
    # what it says is true: the element is one of the group, and brings the models as close as that
    element = Element(form, match.values)
    assert max(element.deviation().values()) < 1e-10
    assert match.distances == {name: match.distance(name) for name in match.tensors}
    assert match.total <= start * (1 + 1e-8)


@every_family
def test_full_symmetry_undoes_a_random_element(family):
    form, source, anchor = scrambled(family, 3)
    assert distance(source, anchor) > 10
    *_, element = matched(form, "full", source, anchor)
    assert distance(element.apply(source), anchor) < 1e-6 * distance(source, anchor)


PARTS = ("ffn", "heads", "attention", "scale", "residual")


@pytest.mark.parametrize(
    "words", [words for n in (1, 2, 3, 4) for words in combinations(PARTS, n) if words != ("scale",)]
)
@pytest.mark.parametrize("family", one_in(3, ["bert", "gpt2", "llama"], 2))
def test_any_parts_undo_a_random_element_of_them(family, words):
    """In plain form, where the stream is permuted: it settles in the first round."""
    form, symmetry = form_of(family, folded=False), ",".join(words).replace("residual", "residual-order")
    anchor, generator = random_state(form.spec, 3), torch.Generator().manual_seed(4)
    groups = free_groups(form, Choice.parse(symmetry))
    values = {
        key: group.sample(form.spec.batch(key[0]), form.spec.sizes[key[0]], generator) for key, group in groups.items()
    }
    source = dict(Element(form, values).apply(anchor))
    *_, element = matched(form, symmetry, source, anchor)
    assert distance(element.apply(source), anchor) < 1e-6 * distance(source, anchor)


@pytest.mark.parametrize("seed", one_in(3, range(3)))
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_noise_does_not_hide_the_planted_element(family, seed):
    """A copy that differs more than it agrees: what is found comes closer than what was planted."""
    form = form_of(family)
    anchor, noise = random_state(form.spec, seed), random_state(form.spec, seed + 99)
    planted = Element.sample(form, seed)
    gains = {name for name, x in anchor.items() if x.ndim == 1 and name.endswith("weight")}
    source = {name: x if name in gains else x + 1.5 * noise[name] for name, x in planted.apply(anchor).items()}
    match = matched(form, "full", source, anchor)[0]
    there = Match.of(form, Choice.parse("full"), source, anchor)
    there.set(planted.inverse().values)
    assert match.total < there.total


@pytest.mark.parametrize(
    "mode", one_in(5, ["full", "ffn,residual", "heads,attention", "ffn,heads,residual", "attention,scale"])
)
@pytest.mark.parametrize("family", one_in(2, ["vit", "gpt2", "llama"]))
def test_the_outcome_is_a_fixed_point(family, mode):
    """No exact step of any space, alone or with all that varies over it, takes more off than the tolerance."""
    form = form_of(family)
    match, progress, _ = matched(form, mode, random_state(form.spec, 1), random_state(form.spec, 2))
    assert progress.rounds < MAX_ROUNDS
    least = match.total
    for key in match.groups:
        weights._update(match, key, exactly=True)
        if match.fibres(key):
            match.step(propose_order(match, key))
    assert match.total > least * (1 - 10 * weights.SETTLED)


@pytest.mark.usefixtures("few_rounds")
@pytest.mark.parametrize("family", ["vit", "gpt2", "llama"])
def test_while_a_stream_stays_it_moves_every_tensor_once(family, monkeypatch):
    """What a family is compared by, and what its steps leave behind, is what it is without."""
    form = form_of(family)
    plain, other = (matched(form, "full", random_state(form.spec, 1), random_state(form.spec, 2))[0] for _ in range(2))
    still = [key for key in plain.groups if plain.spec.spaces[key[0]].part == "residual"]
    keys = [key for key in plain.groups if key not in still]
    read = list[str]()
    source = other.source
    monkeypatch.setattr(other, "source", Lazy(list(source), lambda name: read.append(name) or source[name]))
    beside = other.while_still(still, keys)
    for key in keys:
        names = plain.tensors_of([key])
        for name in names:
            torch.testing.assert_close(beside.moved(name), plain.moved(name))
            torch.testing.assert_close(beside.moved(name, [key]), plain.moved(name, [key]))
        value = plain.groups[key].identity(plain.spec.batch(key[0]), plain.spec.sizes[key[0]])
        plain.set({key: value})
        beside.set({key: value})
    assert len(read) == len(set(read))
    assert all(same(value, other.values[key]) for key, value in plain.values.items())
    assert other.distances == pytest.approx(plain.distances)
    assert other.while_still([], keys) is other


def test_large_models_settle_sooner(monkeypatch):
    """And their rounds, as far as they go, are those of others."""
    form = form_of("vit")
    ends = random_state(form.spec, 1), random_state(form.spec, 2)
    patient = matched(form, "ffn,attention,residual", *ends)[1].history
    monkeypatch.setattr(weights, "LARGE_MODEL", 0)
    soon = matched(form, "ffn,attention,residual", *ends)[1].history
    assert len(soon) < len(patient)
    assert soon == patient[: len(soon)]
    assert soon[-1] == pytest.approx(patient[-1], rel=1e-3)


def test_rounding_does_not_decide_where_the_ends_say_nothing(monkeypatch):
    """Ends of fewer axes than the stream has: the rest of it starts from where it is, on every machine."""
    form = form_of("llama")
    ends = [random_state(form.spec, seed) for seed in (1, 2)]
    for end in ends:
        for name in ("embed_tokens.weight", "lm_head.weight"):
            end[name][3:] = 0.0  # 6 rows are left, for a stream of 16

    def turned(rounding):
        source = {name: x * (1 + rounding * torch.randn_like(x)) for name, x in ends[0].items()}
        match = Match.of(form, Choice.parse("full"), source, ends[1])
        found = streams.Streams(match)
        assert found.turn_to_ends()
        return match.values[found.keys[0]]["matrix"]

    torch.manual_seed(0)
    assert (turned(0.0) - turned(1e-15)).abs().max() < 1e-4
    monkeypatch.setattr(streams, "LEANING", 0.0)
    assert (turned(0.0) - turned(1e-15)).abs().max() > 0.1


@pytest.mark.parametrize("mode", one_in(3, ["full", "ffn", "ffn,scale"]))
@pytest.mark.parametrize("family", one_in(2, ["gpt2", "llama"]))
def test_large_tables_are_made_in_parts(family, mode, monkeypatch):
    """With the same result, of models that are near and of models that are not."""
    form, near, anchor = scrambled(family, 3)
    wholes = [matched(form, mode, source, anchor)[0] for source in (near, random_state(form.spec, 9))]
    seen = small_tables(monkeypatch)
    for whole, source in zip(wholes, (near, random_state(form.spec, 9)), strict=True):
        parts = matched(form, mode, source, anchor)[0]
        assert parts.total == pytest.approx(whole.total, rel=1e-9, abs=1e-12)
        for key, value in whole.values.items():
            if "perm" in value:
                assert parts.values[key]["perm"].equal(value["perm"])
    assert any(columns is not None and columns.stop - columns.start < 16 for columns in seen)


def test_large_tables_of_experts_are_made_in_parts(monkeypatch):
    ends = [Typed.of(tiny_models.checkpoint("mixtral/MixtralForCausalLM", seed)) for seed in (1, 2)]
    form = form_for(ends[0].spec, parts={"ffn"})
    whole = matched(form, "ffn", *ends)[0]
    seen = small_tables(monkeypatch)
    parts = matched(form, "ffn", *ends)[0]
    assert all(parts.values[key]["perm"].equal(value["perm"]) for key, value in whole.values.items())
    (experts,) = {space.size for space in form.spec.spaces.values() if space.part == "experts"}
    width = min(space.size for space in form.spec.spaces.values() if space.part == "ffn")
    assert any(value["perm"].shape == (experts, width) for value in parts.values.values())
    assert seen
    assert all(columns.stop - columns.start < width for columns in seen)


def small_tables(monkeypatch):
    """Have tables made a few neurons at a time; the columns that were asked for."""
    seen, gram = [], Compared.gram

    def watched(own, columns=None, **select):
        seen.append(columns)
        return gram(own, columns, **select)

    monkeypatch.setattr(Compared, "gram", watched)
    monkeypatch.setattr(neurons, "TABLE", 200)
    return seen


@every_family
def test_the_papers_symmetry_does_not(family):
    form, source, anchor = scrambled(family, 3)
    *_, element = matched(form, "paper", source, anchor)
    assert distance(element.apply(source), anchor) > 0.1 * distance(source, anchor)


@pytest.mark.parametrize(
    ("mode", "part"),
    [
        ("ffn,scale", "ffn"),
        ("attention,scale", "attention"),
        ("heads", "heads"),
        ("residual", "residual"),
        ("paper", "attention"),
    ],
)
@every_family
def test_one_part_is_enough_for_what_it_moved(family, mode, part):
    form, source, anchor = scrambled(family, 5, part)
    *_, element = matched(form, mode, source, anchor)
    assert distance(element.apply(source), anchor) < 1e-6 * distance(source, anchor)


def test_the_papers_order_is_rotation_then_scale():
    form = form_of("bert")
    source, anchor = random_state(form.spec, 1), random_state(form.spec, 2)
    for name in source:
        source[name] = source[name] * (4 if "key" in name else 1)
    matches = {mode: matched(form, mode, source, anchor)[0] for mode in ("paper", "ffn,attention,scale")}
    fresh = Match.of(form, Choice.parse("paper"), source, anchor)
    for key, group in fresh.groups.items():
        if group.scaled:
            expected = group.project(fresh.gram(key), joint=False)
            for part, x in matches["paper"].values[key].items():
                torch.testing.assert_close(x, expected[part])
    assert matches["paper"].total > matches["ffn,attention,scale"].total * (1 + 1e-6)


@pytest.mark.parametrize("exactly", [True, False])
@pytest.mark.parametrize(("family", "base"), [("bert", "head"), ("gpt2", "head"), ("llama", "kv")])
def test_bases_are_found_while_heads_are_reordered(family, base, exactly):
    """One step of one basis, its heads already in their places."""
    form = form_of(family, folded=False)
    anchor = random_state(form.spec, 3)
    count = form.spec.spaces[base].size
    order = {(base, layer): {"perm": torch.arange(count).roll(1)} for layer in range(2)}
    planted = Element(form, Element.sample(form, 3, "attention").values | order)
    match = Match.of(form, Choice.parse("heads,attention,scale"), dict(planted.apply(anchor)), anchor)
    match.set({key: value for key, value in planted.inverse().values.items() if key in order})
    for key in match.groups:
        if key[0] in ("qk", "vo", "pair"):
            for _ in range(1 if exactly else 20):
                weights._update(match, key, exactly)
    assert match.total < 1e-10


@pytest.mark.parametrize("mode", ["ffn", "heads", "attention", "ffn,scale", "ffn,heads", "paper"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "llama with biases"])
def test_what_is_not_asked_for_is_left_alone(family, mode):
    """Bitwise: every tensor without a space of these parts, and without a bias that attention moves."""
    spec = spec_of(family)
    source, anchor = (checkpoint(family, random_state(spec, seed)) for seed in (1, 2))
    moved = transform(api.match(source, anchor, symmetry=mode), source)
    changed = {name for name in source if not torch.equal(moved[name], source[name])}
    parts = {"ffn", "attention"} if mode == "paper" else set(mode.split(","))
    touched = {s.tensor for key, sites in spec.sites.items() if spec.spaces[key[0]].part in parts for s in sites}
    if "attention" in parts and mode != "paper":
        touched |= {gauge.out_bias for gauge in form_for(spec, free_biases=True).biases if isinstance(gauge, ValueBias)}
    assert changed
    assert changed <= touched
    assert len(touched) < len(source)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_the_stream_alone(family):
    """No order, no basis and no scale: only axes of the stream move, and all of them alike."""
    source, anchor = (checkpoint(family, random_state(spec_of(family), seed)) for seed in (1, 2))
    element = api.match(source, anchor, symmetry="residual")
    assert {key[0] for key in element.values} == {"resid"}
    moved = transform(element, source)
    name = next(name for name in source if "query.weight" in name or "k_proj.weight" in name)
    assert not torch.equal(moved[name], source[name])
    if family == "bert":
        assert torch.equal(moved[name].sort(-1).values, source[name].sort(-1).values)
        bias = name.replace("weight", "bias")
        assert torch.equal(moved[bias], source[bias])


def test_rotations_without_scale_keep_the_norms_of_heads():
    source, anchor = (checkpoint("llama", random_state(spec_of("llama"), seed)) for seed in (1, 2))
    name = "layers.0.self_attn.v_proj.weight"
    norms = {}
    for mode in ("attention", "attention,scale"):
        moved = transform(api.match(source, anchor, symmetry=mode), source)
        norms[mode] = moved[name].view(2, 6, 16).norm(dim=(1, 2))
    before = source[name].view(2, 6, 16).norm(dim=(1, 2))
    torch.testing.assert_close(norms["attention"], before)
    assert not torch.allclose(norms["attention,scale"], before, rtol=1e-4)


@pytest.mark.parametrize("family", ["bert", "vit", "gpt2", "llama"])
def test_other_layers_are_left_alone(family):
    """Bitwise: all of layer 0, and all that the stream touches."""
    source, anchor = (checkpoint(family, random_state(spec_of(family), seed)) for seed in (1, 2))
    moved = transform(api.match(source, anchor, symmetry="full", layers="1"), source)
    changed = {name for name in source if not torch.equal(moved[name], source[name])}
    assert changed
    assert all(any(f"{word}.1." in name for word in ("layer", "layers", "h")) for name in changed)
    assert not any("norm" in name.lower() or "ln_" in name for name in changed)


@pytest.mark.parametrize(("symmetry", "layers"), [("scale", None), ("residual", "1")])
def test_what_frees_nothing_is_refused(symmetry, layers):
    source, anchor = (checkpoint("bert", random_state(spec_of("bert"), seed)) for seed in (1, 2))
    with pytest.raises(InputError, match=symmetry):
        api.match(source, anchor, symmetry=symmetry, layers=layers)


@every_family
def test_a_model_is_matched_to_itself_by_the_identity(family):
    form = form_of(family)
    source = random_state(form.spec, 1)
    _, progress, element = matched(form, "full", source, source)
    assert max(progress.history) < 1e-24
    assert progress.rounds <= 2
    for name, x in element.apply(source).items():
        torch.testing.assert_close(x, source[name], rtol=1e-12, atol=1e-12)


@every_family
@pytest.mark.parametrize("seed", one_in(3, range(3)))
def test_near_copies_keep_their_order(family, seed):
    form = form_of(family)
    anchor, noise = random_state(form.spec, seed), random_state(form.spec, seed + 50)
    source = {name: x + 1e-3 * noise[name] for name, x in anchor.items()}
    match, progress, _ = matched(form, "full", source, anchor)
    for value in match.values.values():
        if "perm" in value:
            assert (value["perm"] == torch.arange(value["perm"].shape[-1])).all()
        if "matrix" in value:
            assert (value["matrix"] - torch.eye(value["matrix"].shape[-1])).abs().max() < 0.02
    assert progress.history[-1] < progress.history[0] < 0.01


def test_what_is_at_its_optimum_rests_until_its_stream_moves(monkeypatch):
    """Of models that are not taken for near, one round finds all but the scales, which wait, another these."""
    monkeypatch.setattr(weights, "within", lambda match, share: False)
    updated, update = {True: [], False: []}, weights._update_family

    def record(match, family, reorder):
        updated[match.hold_scales].append(family)
        return update(match, family, reorder)

    monkeypatch.setattr(weights, "_update_family", record)
    form = form_of("bert")
    anchor, noise = random_state(form.spec, 1), random_state(form.spec, 3)
    match, progress, _ = matched(form, "full", {name: x + 0.01 * noise[name] for name, x in anchor.items()}, anchor)
    families = weights._families(match, streams.Streams(match).keys).values()
    scaled = [family for family in families if any(match.groups[key].scaled for key in family)]
    assert progress.rounds == 2
    assert 0 < len(scaled) < len(families)
    assert sorted(updated[True]) == sorted(families)
    assert sorted(updated[False]) == sorted(scaled)
    # the control: a stream that moves wakes all
    moved, update_stream = [], streams.Streams.update
    monkeypatch.setattr(
        streams.Streams, "update", lambda self, key: moved.append(key) or update_stream(self, key) or len(moved) == 1
    )
    updated[True].clear()
    matched(form, "full", {name: x + 0.01 * noise[name] for name, x in anchor.items()}, anchor)
    assert sorted(updated[True][len(families) : 2 * len(families)]) == sorted(families)


@pytest.mark.parametrize("mode", ["ffn", "ffn,heads", "heads,attention,scale", "ffn,attention,scale", "paper"])
@every_family
def test_what_rests_would_be_found_again(family, mode):
    form = form_of(family)
    match, *_ = matched(form, mode, random_state(form.spec, 1), random_state(form.spec, 2))
    resting = 0
    for keys in weights._families(match, []).values():
        before = {key: match.values[key] for key in keys}
        if not weights._update_family(match, keys, True)["left"]:
            resting += 1
            assert all(same(match.values[key], value) for key, value in before.items())
    assert resting or "heads" in mode


def test_an_order_within_the_order_is_found_in_turn():
    """Query heads of a KV group share its keys and values: their order is found for bases that it then changes."""
    form = form_of("llama")
    models = [random_state(form.spec, seed) for seed in (1, 0)]
    assert [matched(form, mode, *models)[1].rounds > 1 for mode in ("heads,attention", "attention", "ffn")] == [
        True,
        False,
        False,
    ]


def test_excluded_tensors_do_not_count():
    form = form_of("vit")
    source, anchor = random_state(form.spec, 1), random_state(form.spec, 2)
    head = ["classifier.weight", "classifier.bias"]
    whole, without = (Match.of(form, Choice.parse("full"), source, anchor, skip) for skip in ([], head))
    assert set(whole.distances) - set(without.distances) == set(head)
    ascend(without)
    other = Match.of(form, Choice.parse("full"), source, anchor | {name: 100 * anchor[name] for name in head}, head)
    ascend(other)
    assert other.total == without.total


def test_tied_and_folded_tensors_do_not_count():
    form = form_of("bert")
    match = Match.of(form, Choice.parse("full"), random_state(form.spec, 1), random_state(form.spec, 2))
    assert set(form.spec.entries) - set(match.distances) == set(form.spec.tied)
    form = form_of("llama")
    match = Match.of(form, Choice.parse("full"), random_state(form.spec, 1), random_state(form.spec, 2))
    assert set(form.spec.entries) - set(match.distances) == set(form.norm_parameters)


def test_a_square_map_of_the_stream_is_linearised_where_it_stands():
    """The dense layer of a masked-LM head has the stream on both axes: each is seen with the other one moved."""
    spec = spec_of("bert")
    anchor = random_state(spec, 0)
    perm = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    source = dict(Element(form_for(spec), {("resid",): {"perm": perm}}).inverse().apply(anchor))
    match = Match.of(form_for(spec), Choice.parse("residual"), source, anchor)
    match.set({("resid",): {"perm": perm}})
    name = "cls.predictions.transform.dense.weight"
    sites = [site for site in match.sites(("resid",)) if site.tensor == name]
    gram = match.gram(("resid",), sites=sites).total()
    assert len(sites) == 2
    found = gram.gather(-2, perm[None])[0].sum()
    torch.testing.assert_close(found, 2 * anchor[name].square().sum())


def test_a_key_that_meets_two_families_makes_them_one():
    tensors = {("a",): ["x", "y"], ("b",): ["z"], ("c",): ["z", "y", "w"], ("d",): ["v"]}

    def tensors_of(keys):
        return list(dict.fromkeys(name for key in keys for name in tensors[key]))

    families = weights._families(SimpleNamespace(groups=tensors, tensors_of=tensors_of), [])
    assert [sorted(family) for family in families.values()] == [[("a",), ("b",), ("c",)], [("d",)]]
