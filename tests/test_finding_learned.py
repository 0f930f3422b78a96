"""Elements that are learned: two models or more, with and without data, interrupted, with an anchor that moves."""

import math
from functools import cache

import pytest
import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.running import instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.finding import match as api
from cobasin.finding.applying import transform
from cobasin.matching.learned import Mixture
from cobasin.merging.merge import merge_recipe
from cobasin.recipe import Recipe
from cobasin.symmetry.state import Lazy
from cobasin.verification import verify
from made_up import synthetic_inputs
from sampling import one_in
from tiny_models import checkpoint, model, tolerance

GPT2, VIT = "gpt2-untied/GPT2LMHeadModel", "vit/ViTForImageClassification"
BERT, BASE = "bert/BertForSequenceClassification", "bert/BertModel"
LLAMA, GEMMA, MIXTRAL = "llama-gqa/LlamaForCausalLM", "gemma/GemmaForCausalLM", "mixtral/MixtralForCausalLM"
LEARN = {"method": "learned", "samples": 32, "steps": 4}


class Interrupted(Exception):
    """What ends a run in the middle."""


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Texts that are quickly made up, and matches of unrelated models that end before they have settled."""
    monkeypatch.setattr("cobasin.matching.weights.MAX_ROUNDS", 4)
    monkeypatch.setattr("cobasin.matching.many.MAX_SWEEPS", 1)
    monkeypatch.setattr("cobasin.data.writing.LONGEST", 8)
    monkeypatch.setattr("cobasin.finding.search.TEXTS", 16)
    monkeypatch.setattr("cobasin.learning.inputs.WRITTEN", 16)


@cache
def models(case, count=2):
    return [checkpoint(case, seed) for seed in range(count)]


def pictures(count=40, labels=True):
    """Rows of random images whose class says whether they are bright."""
    size, generator = models(VIT)[0].config.image_size, torch.Generator().manual_seed(0)
    pixels = torch.randn(count, size, size, 3, generator=generator)
    bright = torch.rand(count, generator=generator) < 0.5
    pixels += torch.where(bright, 1.0, -1.0).view(-1, 1, 1, 1)
    return [{"image": x.numpy()} | ({"label": int(b)} if labels else {}) for x, b in zip(pixels, bright, strict=True)]


def same(one, other):
    """Whether two elements have the very same values."""
    return one.values.keys() == other.values.keys() and all(
        x.equal(other.values[key][part]) for key, value in one.values.items() for part, x in value.items()
    )


def middle(matched):
    """The mean of the matched models."""
    states, typed = matched.states, matched.typed[0]
    mean = Lazy(typed, lambda name: sum(state[name].double() for state in states) / len(states))
    return instantiate(typed.derived(mean, torch.float64), torch.float64)


def disagreement(ends, mean):
    """Cross-entropy of a model to what the ends answer on average, on inputs that no match has seen."""
    built = [instantiate(end, torch.float64) for end in ends]
    inputs = {name: x.double() if x.is_floating_point() else x for name, x in synthetic_inputs(built, 32, 99).items()}
    with torch.no_grad():
        wanted = sum(one(**inputs).logits.softmax(-1) for one in built) / len(built)
        return -float((wanted * mean(**inputs).logits.log_softmax(-1)).sum(-1).mean())


def test_an_overflow_is_told(monkeypatch):
    loss = Mixture.loss
    monkeypatch.setattr(Mixture, "middle_loss", lambda *_: 1.0)
    rows = iter([1.0, math.nan])
    monkeypatch.setattr(Mixture, "loss", lambda *arguments: loss(*arguments) * next(rows))
    report = api.match(*models(GPT2), **LEARN).report
    assert report["notes"][1:] == ["learning ended after 1 of 4 steps: the loss overflowed"]
    assert report["learning"]["taken"] == 1


@pytest.mark.parametrize("case", one_in(2, [GPT2, LLAMA, GEMMA, MIXTRAL, BASE, "t5/T5ForConditionalGeneration"], 1))
def test_any_model_keeps_its_function(case):
    source, anchor = models(case)
    element = api.match(source, anchor, **LEARN)
    assert verify(source, transform(element, source, torch.float64), tolerance(case)).same
    assert max(element.deviation().values()) < 1e-9
    assert len(element.report["learning"]["held_out"]) == 2  # at the start, and after the last step
    assert not same(element, api.match(source, anchor))


def test_learning_lowers_what_it_learns():
    """On inputs it has not seen: of the file that an average of any tool would be."""
    ends, seen = models(VIT), []
    options = {"method": "learned", "samples": 512, "steps": 60, "anchor": 1}
    matched = api.match_all(ends, progress=lambda *step: seen.append(step), **options)
    before = disagreement(ends, middle(api.match_all(ends, anchor=1)))
    assert disagreement(ends, middle(matched)) < before - 0.01
    held_out = matched.elements[0].report["learning"]["held_out"]
    assert min(held_out) < held_out[0]
    assert [step for _, *step in seen[-6:]] == [[step, 60] for step in (10, 20, 30, 40, 50, 60)]
    assert {doing.split(":")[0] for doing, *_ in seen} == {"matching", "matching activations", "learning"}
    element = matched.elements[0]
    assert element.report["objective"][-1] > 0
    assert f"{min(held_out):.4g} after" in element.report["notes"][-1]


def test_it_learns_labels():
    source, anchor = models(VIT)
    data = pictures(120)
    options = {"method": "learned", "data": data, "steps": 40}
    found = {loss: api.match(source, anchor, loss=loss, **options) for loss in ("parents", "labels")}
    assert not same(*found.values())
    for loss, element in found.items():
        assert element.report["learning"]["loss"] == loss
        assert verify(source, transform(element, source, torch.float64), tolerance(VIT)).same
    held_out = found["labels"].report["learning"]["held_out"]
    assert min(held_out) < held_out[0] - 0.02


def test_the_same_seed_gives_the_same_element():
    source, anchor = models(VIT)
    first, again, other = (api.match(source, anchor, seed=seed, **LEARN) for seed in (0, 0, 1))
    assert same(first, again)
    assert not same(first, other)


def test_three_models_learn_jointly_in_whatever_order():
    ends = models(VIT, 3)
    matched = api.match_all(ends, **LEARN)
    for original, element in zip(ends, matched.elements, strict=True):
        if element is not None:
            assert verify(original, transform(element, original, torch.float64), tolerance(VIT)).same
    order = [2, 0, 1]
    turned = api.match_all([ends[i] for i in order], **LEARN)
    assert order[turned.reference] == matched.reference
    for place, i in enumerate(order):
        one, other = matched.elements[i], turned.elements[place]
        assert (one is None) == (other is None)
        assert one is None or (same(one, other) and one.report["learning"] == other.report["learning"])
    alone = api.match(ends[(matched.reference + 1) % 3], ends[matched.reference], **LEARN)
    assert not same(alone, matched.elements[(matched.reference + 1) % 3])
    fixed = api.match_all(ends, anchor=(matched.reference + 1) % 3, **LEARN)
    assert fixed.elements[fixed.reference] is None
    assert fixed.reference != matched.reference


def test_a_consensus_is_learned_from():
    ends = models(VIT, 3)
    by_weights = api.match_all(ends, anchor="consensus")
    matched = api.match_all(ends, anchor="consensus", **LEARN)
    again = api.match_all(ends[::-1], anchor="consensus", **LEARN)
    assert matched.report["starts"].keys() == {0, 1, 2}
    assert matched.reference == by_weights.reference == 2 - again.reference
    for i in range(3):
        if i != matched.reference:
            assert same(matched.elements[i], again.elements[2 - i])
            assert not same(matched.elements[i], by_weights.elements[i])


@pytest.mark.parametrize(("case", "symmetry"), one_in(2, [(VIT, "gl"), (VIT, "full"), (LLAMA, "full")]))
def test_an_anchor_that_moves(case, symmetry):
    """Both functions are kept; the mean of the two files is the mean that was learned."""
    ends = models(case)
    matched = api.match_all(ends, symmetry, anchor=1, move="all", **LEARN | {"steps": 20})
    for original, element in zip(ends, matched.elements, strict=True):
        assert verify(original, transform(element, original, torch.float64), tolerance(case)).same
    learning = matched.elements[0].report["learning"]
    assert learning["move"] == "all"
    assert len(learning["held_out"]) == 3
    old, new = matched.typed[1], matched.states[1]
    moved = {name for name in old if not torch.allclose(new[name].double(), old[name].double(), atol=1e-6)}
    paired = ("query", "key", "value", "attention.output", "_proj")
    assert moved
    assert all(any(part in name for part in paired) for name in moved), "its stream does not turn"


def test_agreeing_models_are_left_alone_and_a_moving_anchor_stays():
    source = models(VIT)[0]
    matched = api.match_all([source, source], anchor=1, move="all", **LEARN)
    for element in matched.elements:
        assert element.report["notes"] == ["the weights agree: nothing was left for method learned"]
        moved = transform(element, source)
        assert all(torch.allclose(moved[name], source[name], atol=1e-9) for name in source)


def test_an_interrupted_search_goes_on(tmp_path, monkeypatch):
    source, anchor = models(VIT)
    options = {"method": "learned", "samples": 32, "steps": 40, "state": str(tmp_path / "state")}
    whole = api.match(source, anchor, **options | {"state": None})

    def stop(doing, step, _):
        if doing.startswith("learning") and step == 20:
            raise Interrupted

    with pytest.raises(Interrupted):
        api.match(source, anchor, progress=stop, **options)
    assert (tmp_path / "state").exists()
    steps = []
    done = api.match(source, anchor, progress=lambda _, step, __: steps.append(step), **options)
    assert steps[-2:] == [30, 40]
    assert 20 not in steps
    assert same(done, whole)
    assert done.report["learning"] == whole.report["learning"]
    for change, message in (
        ({"seed": 1}, "with other data and starts;"),  # activations are compared on other inputs
        ({"steps": 30}, "with other settings;"),
        ({"symmetry": "gl"}, "with other starts and settings;"),
        ({"data": pictures()}, "with other data and starts;"),
    ):
        with pytest.raises(InputError, match=message):
            api.match(source, anchor, **options | change)
    with pytest.raises(InputError, match="other models"):
        api.match(anchor, models(VIT, 3)[2], **options)
    (tmp_path / "state").unlink()
    assert list(tmp_path.iterdir()) == []


def test_a_merge_of_moved_models():
    """By a recipe, with an anchor that moves: the same as matching so and averaging."""
    ends = dict(zip("ab", models(VIT), strict=True))
    content = {"merge_method": "linear", "models": [{"model": "a"}, {"model": "b"}]}
    matching = {"method": "learned", "samples": 32, "steps": 4, "move": "all", "symmetry": "gl", "orders": True}
    merged = merge_recipe(Recipe.of(content | {"match": matching}), ends)
    assert all(element is not None for element in merged.elements)
    matched = api.match_all(list(ends.values()), "gl", move="all", **LEARN)
    mean = middle(matched).state_dict()
    found = instantiate(merged.checkpoint, torch.float64).state_dict()
    assert all(torch.allclose(found[name], mean[name], atol=1e-6) for name in mean)
    with_labels = matching | {"loss": "labels"}
    with pytest.raises(InputError, match="loss labels: inputs that are made up have no labels"):
        Recipe.of(content | {"match": with_labels})


@pytest.mark.parametrize(
    ("case", "options", "message"),
    [
        (VIT, {"loss": "truth"}, "loss 'truth' is unknown; expected one of parents, labels"),
        (VIT, {"loss": "labels"}, "inputs that are made up have no labels"),
        (
            VIT,
            {"loss": "labels", "data": "unlabelled"},
            "none: rows.0.: no column .label. .there are: image.; say .*; or take loss parents",
        ),
        (BASE, {"loss": "labels", "data": [{"input_ids": [5, 6, 7]}] * 8}, "a BertModel predicts none"),
        (VIT, {"method": "activations", "loss": "labels"}, "method activations learns nothing"),
        (VIT, {"symmetry": "ffn"}, "symmetry 'ffn' frees only orders here"),
        (VIT, {"device": "cuda:99"}, "device 'cuda:99' cannot be used here"),
    ],
)
def test_what_cannot_be_learned_is_refused(case, options, message):
    source, anchor = (load_unread(one) for one in models(case))
    if options.get("data") == "unlabelled":
        options = options | {"data": pictures(labels=False)}
    with pytest.raises(InputError, match=message) as refused:
        api.match(source, anchor, **{"method": "learned", "samples": 8} | options)
    assert "\n" not in str(refused.value)


def load_unread(made):
    """The model, whose tensors must not be read."""

    def read(name):
        raise AssertionError(f"{name} was read")

    unread = load(made)
    copied = type(unread)(unread.label, unread.config, unread.architecture, unread.headers, read, unread.folder)
    return Typed.of(copied).checkpoint


def test_an_anchor_without_scales_cannot_move():
    source, anchor = (load_unread(one) for one in models(VIT))
    with pytest.raises(
        InputError, match=r"with symmetry 'attention' no part of the anchor can move: ViT.* has neither"
    ):
        api.match_all([source, anchor], "attention", anchor=1, move="all", method="learned", samples=8)


def test_different_labels_cannot_be_learned():
    ends = [model(BERT, seed) for seed in (0, 1)]
    ends[0].config.id2label, ends[0].config.label2id = {0: "yes", 1: "no"}, {"yes": 0, "no": 1}
    with pytest.raises(InputError, match="the task heads have different labels"):
        api.match(*map(load, ends), method="learned")


def test_what_reads_pictures_learns_from_texts_and_says_so():
    match = api.match(*models("paligemma/PaliGemmaForConditionalGeneration"), **LEARN)
    assert any("inputs that were made up (texts, without pictures)" in note for note in match.report["notes"])
