"""More than two models: the medoid and the consensus, whatever the order in which models are given."""

import copy
import itertools

import pytest
import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate, outputs
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.finding import from_pairs
from cobasin.finding import match as api
from cobasin.finding.common_form import CommonForm
from cobasin.finding.kept import Kept
from cobasin.matching import many, weights
from cobasin.matching.many import medoid
from cobasin.matching.state import compared
from cobasin.symmetry.canonical import canonical
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from cobasin.symmetry.state import apart
from cobasin.verification import verify
from model_scrambles import general_scramble
from random_states import CONFIGS, checkpoint, random_state, spec_of
from real_models import shared
from sampling import one_in
from tiny_models import checkpoint as tiny
from tiny_models import model as tiny_model
from tiny_models import tolerance

ANCHORS = ["medoid", "consensus"]
ORDERS = list(itertools.permutations(range(3)))


@pytest.fixture
def briefly(few_rounds, monkeypatch):
    """Matching that stops long before it is done, of several models, too."""
    monkeypatch.setattr(many, "MAX_SWEEPS", 1)


def unrelated(family, count=3):
    """Random models; no two have anything in common."""
    return [checkpoint(family, random_state(spec_of(family), seed)) for seed in range(count)]


def held(checkpoint):
    """A checkpoint whose tensors are there, and not computed each time they are read."""
    config = copy.deepcopy(checkpoint.config)
    config.architectures = [checkpoint.architecture]
    return load(dict(checkpoint), config)


def near(typed, noise, seed):
    """The model with relative noise on every matrix."""
    generator = torch.Generator().manual_seed(seed)
    moved = {
        name: x + noise * x.std() * torch.randn(x.shape, generator=generator, dtype=x.dtype) if x.ndim > 1 else x
        for name, x in typed.items()
    }
    return Typed.of(held(typed.derived(moved)))


def scramble(typed, seed):
    """A copy with the same function, moved by a random element of the full group."""
    folded = not typed.spec.unties
    return held(typed.derived(Element.sample(form_of(typed.spec, folded=folded), seed).apply(typed)))


def mean(states):
    return {name: sum(state[name] for state in states) / len(states) for name in states[0]}


def scatter(states):
    """Squared distance of the models from their mean, in canonical form."""
    return sum(
        float((state[name] - centre).square().sum()) for name, centre in mean(states).items() for state in states
    )


def folded(typed, state):
    """A model in canonical form; files in one gauge carry differences through norm offsets into their biases, too."""
    return canonical(form_of(typed.spec, folded=bool(typed.spec.norms), free_biases=True), state)


def gap(a, b):
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def logits(checkpoint):
    model = instantiate(checkpoint, torch.float64)
    return outputs(model, probe(checkpoint.config, checkpoint.architecture))


def assert_in_every_order(models, *args, **options):
    """Whatever the order, the mean is the same, and so is what is done to every model."""
    first = None
    for order in ORDERS:
        matched = api.match_all([models[i] for i in order], *args, **options)
        centre = mean(matched.states)
        elements = dict(zip(order, matched.elements, strict=True))
        if first is None:
            first = centre, elements, order[matched.reference]
        assert order[matched.reference] == first[2]
        assert gap(centre, first[0]) < 1e-9
        for i, element in elements.items():
            assert (element is None) == (i == first[2])
            if element is not None:
                for key, value in element.values.items():
                    for part, x in value.items():
                        torch.testing.assert_close(x, first[1][i].values[key][part], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("family", "anchor"), one_in(3, [("bert", "medoid"), ("llama", "consensus"), ("bert", "consensus")], 1)
)
def test_the_order_of_the_models_makes_no_difference(family, anchor, briefly):
    assert_in_every_order(unrelated(family), anchor=anchor)


def test_with_a_given_anchor_the_order_makes_a_difference(briefly):
    """The control of the test above."""
    models = unrelated("bert")
    first, other = (
        mean(api.match_all([models[i] for i in order], anchor=0).states) for order in (ORDERS[0], ORDERS[2])
    )
    assert gap(first, other) > 0.1


def test_the_order_of_trained_models_makes_no_difference(briefly):
    """Two independently trained models and a noisy, scrambled copy of one, one layer of them."""
    a, b = (Typed.of(load(shared("models", f"cifar10-vit-seed{seed}"))) for seed in (0, 1))
    models = [held(typed.derived(typed, torch.float64)) for typed in (a, b, Typed.of(scramble(near(a, 0.3, 0), 1)))]
    assert_in_every_order(models, "ffn,heads,attention,scale", "0", anchor="consensus")


@pytest.mark.parametrize("family", one_in(2, ["bert", "llama mqa"]))
def test_the_consensus_is_as_close_as_it_says_and_closer_than_any_anchor(family, monkeypatch):
    monkeypatch.setattr(weights, "MAX_ROUNDS", 5)
    monkeypatch.setattr(many, "MAX_SWEEPS", 2)
    models = [Typed.of(model) for model in unrelated(family)]
    spec = models[0].spec
    form = form_of(spec, folded=True, free_biases=True)
    found = api.match_all(models, anchor="consensus")

    def total(matched):
        counted = [name for name in spec.entries if name not in spec.tied]
        return scatter([{name: canonical(form, state)[name] for name in counted} for state in matched.states]) ** 0.5

    objective = found.report["objective"]
    assert total(found) == pytest.approx(objective[-1], rel=1e-9)
    assert total(api.Matched(models, [None] * 3, 0, {})) == pytest.approx(objective[0], rel=1e-9)
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(objective[1:]))
    assert objective[-1] == min(found.report["starts"].values())
    for anchor in ("medoid", 0):
        assert total(api.match_all(models, anchor=anchor)) > 1.01 * objective[-1]


@pytest.mark.parametrize("anchor", ANCHORS)
@pytest.mark.parametrize(
    "case", one_in(2, ["bert/BertForMaskedLM", "llama-gqa/LlamaForCausalLM", "gpt2/GPT2LMHeadModel"])
)
def test_scrambled_copies_become_one_model(case, anchor):
    original = tiny(case)
    copies = [original, *(scramble(Typed.of(original), seed) for seed in (1, 2))]
    matched = api.match_all(copies, anchor=anchor)
    assert matched.states[matched.reference] is matched.typed[matched.reference]
    assert matched.states is matched.states  # made once: of balanced bases that takes time
    raw = scatter([Typed.of(model) for model in copies]) ** 0.5
    assert scatter(matched.states) ** 0.5 < 1e-6 * raw
    base = matched.typed[matched.reference]
    expected, limit = logits(original), tolerance(case)
    size = expected.abs().max()
    assert (logits(base.derived(mean(matched.states))) - expected).abs().max() < limit * size
    plain = Typed.of(original).derived(mean([Typed.of(model) for model in copies]))
    assert (logits(plain) - expected).abs().max() > 0.1 * size  # the control
    if anchor == "consensus":
        assert matched.report["objective"][-1] < 1e-6 * matched.report["objective"][0]


@pytest.mark.parametrize("anchor", ANCHORS)
def test_general_maps(anchor):
    """What only --symmetry gl undoes."""
    original = tiny("bert/BertForMaskedLM")
    copies = [original, *(held(general_scramble(Typed.of(original), 10.0, seed)) for seed in (1, 100))]
    raw = scatter([Typed.of(model) for model in copies])
    matched = api.match_all(copies, "gl", anchor=anchor)
    assert scatter(matched.states) < 1e-8 * raw
    assert {tuple(element.report["condition"]) for element in matched.elements if element} == {("qk", "vo")}
    assert scatter(api.match_all(copies, anchor=anchor).states) > 1e-3 * raw  # the control


@pytest.mark.parametrize("anchor", ANCHORS)
@pytest.mark.parametrize("case", one_in(2, ["gpt2-untied/GPT2LMHeadModel", "llama-mqa-tied/LlamaForCausalLM"]))
def test_every_model_keeps_its_function(case, anchor, briefly):
    models = [tiny(case, seed) for seed in range(3)]
    matched = api.match_all(models, anchor=anchor)
    for i, (model, typed, state) in enumerate(zip(models, matched.typed, matched.states, strict=True)):
        moved = typed.derived(state)
        assert verify(model, moved, tolerance(case)).same
        assert verify(models[i - 1], moved, tolerance(case)).same is False


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("anchor", ANCHORS)
def test_the_same_model_more_than_once(anchor, count):
    model = unrelated("vit", 1)[0]
    matched = api.match_all([model] * count, anchor=anchor)
    for state in matched.states:
        assert gap(state, Typed.of(model)) < 1e-10


@pytest.mark.parametrize(("family", "anchor"), one_in(3, list(zip(CONFIGS, itertools.cycle(ANCHORS), strict=False))))
def test_near_copies_stay_where_they_are(family, anchor):
    base = Typed.of(unrelated(family, 1)[0])
    models = [near(base, 1e-3, seed) for seed in range(3)]
    matched = api.match_all(models, anchor=anchor)
    for element in matched.elements:
        for value in element.values.values() if element else ():
            if "perm" in value:
                assert (value["perm"] == torch.arange(value["perm"].shape[-1])).all()
            if "matrix" in value:
                assert (value["matrix"] - torch.eye(value["matrix"].shape[-1])).abs().max() < 0.02
    before, after = (
        scatter([folded(typed, state) for typed, state in zip(matched.typed, states, strict=True)])
        for states in ([model.untied() for model in models] if base.spec.unties else models, matched.states)
    )
    assert after < 1.001 * before


def count_matches(monkeypatch):
    """A list that every pair that is matched is added to."""
    seen, find = [], CommonForm.find

    def spy(self, source, anchor, *rest):
        seen.append((source, anchor))
        return find(self, source, anchor, *rest)

    monkeypatch.setattr(CommonForm, "find", spy)
    return seen


def test_two_models(monkeypatch):
    """The first is the anchor, and the second is matched to it once, as `match` does."""
    models = unrelated("bert", 2)
    element = api.match(models[1], models[0])
    matches = count_matches(monkeypatch)
    for options in ({}, {"anchor": 0}):
        matched = api.match_all(models, **options)
        assert matched.elements[matched.reference] is None
        assert matched.reference == 0
        assert gap(matched.states[1], element.apply(Typed.of(models[1]))) == 0
        assert matched.elements[1].report["objective"] == element.report["objective"]
    assert matches == [(1, 0), (1, 0)]
    assert gap(matched.states[1], Typed.of(models[1])) > 0.1


def test_the_consensus_of_two_is_their_match_in_either_order():
    models = unrelated("bert", 2)
    one, other = (api.match_all(pair, anchor="consensus") for pair in (models, models[::-1]))
    assert (one.reference, other.reference) in ((0, 1), (1, 0))
    assert gap(mean(one.states), mean(other.states)) < 1e-9
    (element,) = (element for element in one.elements if element)
    pair = models[1 - one.reference], models[one.reference]
    after = api.match(*pair).report["objective"][-1]
    assert 0.99 * after < element.report["objective"][-1] < after * (1 + 1e-9)


@pytest.mark.parametrize("place", one_in(3, range(3), 1))
def test_the_medoid_is_the_one_in_the_middle(place, monkeypatch):
    """Two noisy copies of a model, and the model: it is closer to each than they are to each other."""
    middle = Typed.of(unrelated("llama", 1)[0])
    models = [scramble(near(middle, 0.05, seed), seed) for seed in (1, 2)]
    models.insert(place, middle.checkpoint)
    matches = count_matches(monkeypatch)
    matched = api.match_all(models)
    assert matched.reference == matched.report["reference"] == place
    assert len({frozenset(pair) for pair in matches[:3]}) == 3
    # those of the other way round once more: scales are the best of one direction
    assert {pair for pair in matches if place == pair[1]} == {(i, place) for i in range(3) if i != place}
    assert len(matches) == len({*matches})
    distances = matched.report["distances"]
    assert all(distances[i][j] == distances[j][i] for i in range(3) for j in range(3))
    for i, element in enumerate(matched.elements):
        if i != place:
            report, form = element.report, element.form
            # of the files, in the reference's gauge
            assert report["distance_after"] < 0.1 * report["distance_before"]
            ends = (canonical(form, state) for state in (matched.states[i], matched.typed[place]))
            assert report["objective"][-1] == pytest.approx(apart(*ends, compared(form, ())), rel=1e-9)
            assert gap(matched.states[i], middle) < 0.5


@pytest.mark.parametrize("symmetry", one_in(2, ["full", "ffn"]))
def test_a_medoid_that_is_found_is_an_anchor_that_is_named(symmetry, briefly):
    models = unrelated("llama")
    found = api.match_all(models, symmetry)
    named = api.match_all(models, symmetry, anchor=found.reference)
    for one, other in zip(found.elements, named.elements, strict=True):
        if one is not None:
            assert one.report["objective"] == other.report["objective"]
            assert one.report["objective"][-1] < one.report["objective"][0]
    assert gap(mean(found.states), mean(named.states)) == 0


def test_of_several_medoids_the_first():
    distances = {(i, j): 1.0 for i in range(3) for j in range(3) if i != j}
    assert medoid([2, 0, 1], distances, [0, 1, 2]) == 2
    assert medoid([2, 0, 1], distances, [0, 1]) == 0
    distances[0, 1] = distances[1, 0] = 0.5
    assert medoid([2, 1, 0], distances, [0, 1, 2]) == 1


@pytest.mark.parametrize("anchor", ANCHORS)
def test_heads_of_different_labels(anchor, briefly):
    """Moved along with their model, and neither compared nor mixed up."""
    models = []
    for seed, labels in ((0, 3), (1, 4), (2, 3)):
        made = tiny_model("vit/ViTForImageClassification", seed)
        config = copy.deepcopy(made.config)
        config.num_labels = labels
        torch.manual_seed(seed)
        other = type(made)(config).double()
        other.vit.load_state_dict(made.vit.state_dict())
        models.append(load(other))
    matched = api.match_all(models, anchor=anchor)
    for model, typed, state, element in zip(models, matched.typed, matched.states, matched.elements, strict=True):
        assert verify(model, typed.derived(state), 1e-9).same
        if element is not None:
            note = "the label sets differ: the task heads were moved along, but not compared"
            assert note in element.report["notes"]


def with_zero_gain(seed):
    made = tiny_model("gpt2-untied/GPT2LMHeadModel", seed)
    with torch.no_grad():
        made.transformer.ln_f.weight[3] = 0.0
    return load(made)


@pytest.mark.parametrize("anchor", ANCHORS)
def test_a_model_that_no_other_can_be_written_in_is_not_the_reference(anchor, briefly):
    middle = with_zero_gain(0)
    models = [middle, *(scramble(near(Typed.of(tiny("gpt2-untied/GPT2LMHeadModel")), 0.05, s), s) for s in (1, 2))]
    matched = api.match_all(models, anchor=anchor)
    assert matched.reference != 0
    note = "cannot be the reference: ln_f.weight of the anchor has a gain of zero (entry 3)"
    assert any(note in line for line in matched.elements[0].report["notes"])
    assert matched.elements[0].form.folded
    assert verify(middle, matched.typed[0].derived(matched.states[0]), 1e-9).same
    # where none of them can be, the stream is permuted only
    matched = api.match_all([with_zero_gain(seed) for seed in range(3)], "residual", anchor=anchor)
    element = next(filter(None, matched.elements))
    assert not element.form.folded
    assert element.report["notes"][0].startswith("residual stream matched by permutation only: ")


def test_a_consensus_that_was_found_is_kept(briefly, tmp_path, monkeypatch):
    """A run that is killed before the end of the search goes on from it."""
    models, keep = unrelated("bert"), Kept(tmp_path / "found")
    whole = api.match_all(models, anchor="consensus", keep=keep)
    (tmp_path / "found" / "elements.json").unlink()
    monkeypatch.setattr(from_pairs, "consensus", None)
    again = api.match_all(models, anchor="consensus", keep=keep)
    assert again.report["objective"] == whole.report["objective"]
    assert again.report["starts"] == whole.report["starts"]
    for one, other in zip(again.elements, whole.elements, strict=True):
        assert (one is None) == (other is None)
        if one and other:
            assert all(x.equal(other.values[key][part]) for key, v in one.values.items() for part, x in v.items())


def test_progress_is_told(briefly):
    seen = []
    matched = api.match_all(unrelated("bert"), anchor="consensus", progress=lambda *args: seen.append(args))
    assert all(doing.startswith("matching: round") and done >= 1 and end is None for doing, done, end in seen)
    assert len(seen) > sum(element.report["rounds"] for element in matched.elements if element)


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        (3, {"anchor": "mean"}, "anchor 'mean': expected medoid, consensus, or the position of a model"),
        (3, {"anchor": 3}, "anchor 3 does not exist: there are models 0 to 2"),
        (3, {"anchor": -1}, "anchor -1 does not exist: there are models 0 to 2"),
        (3, {"anchor": True}, "anchor True: expected medoid, consensus, or the position of a model"),
        (1, {}, "matching needs two models or more, got 1"),
        (3, {"symmetry": "scale"}, "symmetry 'scale' leaves nothing free in .* by itself; name what has"),
        (3, {"symmetry": "none"}, "symmetry 'none': 'none' is unknown"),
        (3, {"layers": "7"}, "layer 7 does not exist"),
    ],
)
@pytest.mark.parametrize("anchor", ANCHORS)
def test_what_cannot_be_matched(count, options, message, anchor):
    with pytest.raises(InputError, match=message):
        api.match_all(unrelated("bert", count), **{"anchor": anchor} | options)


@pytest.mark.parametrize("anchor", [*ANCHORS, 0])
def test_every_model_is_checked(anchor):
    other = tiny_model("bert/BertForMaskedLM").float()
    other.config.hidden_act = "relu"
    models = [tiny("bert/BertForMaskedLM"), tiny("bert/BertForMaskedLM", 1), load(other)]
    with pytest.raises(InputError, match="do not compute comparable functions: hidden_act is 'gelu' in"):
        api.match_all(models, anchor=anchor)


@pytest.mark.parametrize("symmetry", one_in(2, ["full", "ffn,heads"]))
def test_an_output_head_of_its_own_in_some_models_only(symmetry, briefly):
    """T5's files say whether the head repeats the embedding: untied in all where the stream turns, compared in none."""
    models = [Typed.of(tiny("t5/T5ForConditionalGeneration", seed)) for seed in range(3)]
    models[1] = models[1].untied()
    matched = api.match_all(models, symmetry, anchor="consensus")
    assert [bool(typed.spec.tied.keys() & {"lm_head.weight"}) for typed in matched.typed] == (
        [False] * 3 if symmetry == "full" else [True, False, True]
    )
    for model, typed, state in zip(models, matched.typed, matched.states, strict=True):
        assert verify(model.checkpoint, typed.derived(state), 5e-6).same
