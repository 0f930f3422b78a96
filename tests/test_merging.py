"""Merging from Python and by recipes: every method, matched and not, and the order in which models are given."""

import json
from itertools import cycle, permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.writer import save
from cobasin.comparing.compare import compare
from cobasin.errors import InputError
from cobasin.execution.jobs import torch_threads
from cobasin.finding.applying import transform
from cobasin.finding.match import match
from cobasin.fusion import arithmetic
from cobasin.fusion.registry import find
from cobasin.merging.merge import merge, merge_recipe
from cobasin.recipe import Recipe
from command_line import run, stock, tensors_of
from merge_cases import CLASSIFIER, METHODS, PARAMETERS, matching_once, recipe, roles, saved, token_rows
from model_folders import assert_bitwise
from sampling import one_in
from tiny_models import checkpoint, config


@pytest.fixture(scope="module")
def once():
    with matching_once():
        yield


@pytest.fixture(scope="module")
def classifiers(tmp_path_factory):
    """Three models and rows for them."""
    folder = tmp_path_factory.mktemp("classifiers")
    return [*saved(folder, CLASSIFIER, 3), token_rows(folder / "rows.jsonl")]


def largest_difference(a, b):
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize(
    ("name", "symmetry"), one_in(3, list(zip(METHODS, cycle(["none", "none", "full", "full"]), strict=False)))
)
def test_a_recipe_does_what_the_call_does(classifiers, tmp_path, name, symmetry):
    *folders, rows = classifiers
    models, base = roles(find(name), folders)
    statistics = {"data": {"path": str(rows)}, "samples": 6, "batch_size": 4} if find(name).statistics else None
    parameters = PARAMETERS.get(name, {})
    anchor = "medoid" if symmetry == "none" else 0
    called = merge(models, name, base=base, symmetry=symmetry, anchor=anchor, statistics=statistics, **parameters)
    anchor = "medoid" if symmetry == "none" else str(models[0])
    keys = {"parameters": parameters, "match": {"symmetry": symmetry, "anchor": anchor}}
    keys |= {} if base is None else {"base_model": str(base)}
    keys |= {} if statistics is None else {"statistics": statistics}
    out = tmp_path / "out"
    assert run("merge", recipe(tmp_path / "recipe.yaml", name, models, **keys), "--out", out).code == 0
    assert_bitwise(dict(called.checkpoint), tensors_of(out))
    stock(out)


@pytest.mark.parametrize("name", [name for name in METHODS if not find(name).statistics])
def test_a_head_without_labels_has_nothing_to_fuse(name):
    empty = config(CLASSIFIER)
    empty.num_labels = 0
    models = [BertForSequenceClassification(empty) for _ in range(3)]
    chosen, base = roles(find(name), models)
    merged = dict(merge(chosen, name, base=base, symmetry="none", **PARAMETERS.get(name, {})).checkpoint)
    assert merged["classifier.weight"].shape == (0, 24)
    assert not torch.equal(merged["bert.pooler.dense.weight"], models[0].bert.pooler.dense.weight)


def test_a_recipe_may_be_a_file_its_content_or_read_before(classifiers, tmp_path):
    a, b, *_ = classifiers
    path = recipe(tmp_path / "recipe.yaml", "linear", [a, b], match="ffn")
    content = {"merge_method": "linear", "models": [{"model": "first"}, {"model": "second"}], "match": "ffn"}
    found = [
        merge_recipe(path),
        merge_recipe(str(path)),
        merge_recipe(Recipe.read(path)),
        merge_recipe(content, {"first": a, "second": load(b)}),
    ]
    expected = dict(merge([a, b], symmetry="ffn").checkpoint)
    for one in found:
        assert_bitwise(dict(one.checkpoint), expected)


def test_what_stands_for_a_given_model_may_have_any_letters(classifiers, tmp_path):
    a, b, *_ = classifiers
    content = {"merge_method": "ties", "models": [{"model": "a+b"}], "base_model": "c@d"}
    given = {"a+b": a, "c@d": b}
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    expected = dict(merge([a], "ties", base=b, symmetry="none").checkpoint)
    for one in (content, path):
        assert_bitwise(dict(merge_recipe(one, given).checkpoint), expected)
    with pytest.raises(InputError, match=r"^c@d: no such folder"):
        merge_recipe(content, {"a+b": a})


def test_every_model_may_have_its_own_value(classifiers):
    a, b, c, _ = classifiers
    found = dict(merge([a, b], "task_arithmetic", base=c, symmetry="none", weight=[0.5, -0.2], lambda_=2).checkpoint)
    one, other, base = map(tensors_of, (a, b, c))
    for name, tensor in found.items():
        expected = base[name] + 2 * (0.5 * (one[name] - base[name]) - 0.2 * (other[name] - base[name]))
        torch.testing.assert_close(tensor, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("t", [[0, 1], (0, 1)])
def test_what_is_one_for_all_models_may_be_a_gradient(classifiers, t):
    a, b, *_ = classifiers
    found = dict(merge([a, b], "slerp", symmetry="none", t=t).checkpoint)
    one, other = tensors_of(a), tensors_of(b)
    for name, tensor in found.items():
        assert torch.allclose(tensor, other[name] if ".layer.1." in name else one[name], atol=1e-6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"anchor": 2}, "anchor 2 does not exist: there are models 0 to 1"),
        ({"anchor": True}, "anchor True: expected a word, or the position of a model, from 0 on"),
        ({"anchor": -1}, "anchor -1 does not exist"),
        ({"anchor": Path("0")}, "anchor PosixPath('0'): expected a word, or the position of a model, from 0 on"),
        ({"anchor": "nearest"}, "match.anchor 'nearest': expected medoid, consensus, model 0, model 1"),
        ({"head": 5}, "head 5 does not exist"),
        ({"head": "last"}, "head 'last': expected keep, model 0, model 1"),
        ({"weights": [1]}, "1 weights for 2 models; give one for each"),
        ({"weights": [1, float("nan")]}, "expected finite numbers"),
        ({"weights": [1, -1]}, "the weights 1, -1 sum to 0; expected a positive sum, or normalize: false"),
        ({"weights": [0.1, 0.2, -0.3]}, "3 weights for 2 models"),
        ({"weights": [1e300, 1]}, "a weight of 1e+300 is beyond float32"),
        ({"weight": [1, 2, 3]}, "weight: 3 values for 2 models; give one for each"),
        ({"wieght": 1}, "wieght: linear has no such parameter; did you mean 'weight'?"),
        ({"method": "liner"}, "merge method 'liner' is unknown; did you mean 'linear'?"),
        ({"method": "slerp"}, "slerp needs t"),
        ({"method": "ties"}, "base_model is missing"),
        ({"method": "regmean"}, "merge_method regmean needs the Grams"),
        ({"method": "regmean", "statistics": {"samples": 3}}, "merge_method regmean needs the Grams"),
        ({"symmetry": "ful"}, "'ful' is unknown; expected none, full"),
        ({"weights": [1, 2], "weight": 0.5}, "weights and weight say the same"),
    ],
    ids=str,
)
def test_refused(options, text):
    models = [checkpoint(CLASSIFIER, seed, torch.float32) for seed in range(2)]
    with pytest.raises(InputError) as refusal:
        merge(models, **options)
    assert text in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_model_that_the_recipe_does_not_name_is_refused(classifiers):
    recipe = {"merge_method": "linear", "models": [{"model": str(folder)} for folder in classifiers[:2]]}
    with pytest.raises(InputError, match="models: 'other' is not in the recipe"):
        merge_recipe(recipe, {"other": classifiers[0]})


@pytest.mark.parametrize("models", [[], ["a"]])
def test_one_model_is_no_merge(models):
    with pytest.raises(InputError, match="needs two models or more"):
        merge(models)


def test_models_in_memory_go_by_their_names():
    broken = checkpoint(CLASSIFIER, 1, torch.float32)
    read = broken.read
    broken.read = lambda name: read(name) * (float("nan") if "query" in name else 1)
    with pytest.raises(InputError, match=r"^model 1: bert.encoder.layer.0.attention.self.query.\w+ has NaN"):
        merge([checkpoint(CLASSIFIER, 0, torch.float32), broken])
    assert broken.label != "model 1"  # the caller's own is left as it is


def test_names_of_models_in_memory_are_no_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a, b, c = (checkpoint(CLASSIFIER, seed, torch.float32) for seed in (0, 1, 2))
    for name, model in (("model 0", b), ("base", a)):
        save(model, Path(name))
    found = merge([a, "model 0"], symmetry="none")
    assert found.recipe.inputs == ["model 0'", "model 0"]
    assert largest_difference(dict(found.checkpoint), {name: (a[name] + b[name]) / 2 for name in a}) < 1e-6
    found = merge(["base", b], "task_arithmetic", base=c, symmetry="none", weights=[1, 0])
    assert found.recipe.base == "base'"
    assert largest_difference(dict(found.checkpoint), dict(a)) < 1e-5


def test_a_folder_that_is_called_as_a_word_of_recipes_is_a_folder(tmp_path, monkeypatch):
    """One whose head is taken, by its place, does not keep all heads."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("keep", "medoid")):
        save(checkpoint(CLASSIFIER, seed, torch.float32), Path(name))
    found = merge([Path("keep"), "medoid"], head=0, anchor=1, symmetry="ffn")
    assert len(found.checkpoints) == 1
    assert found.names == ["./keep", "./medoid"]
    assert found.matched.reference == 1


def test_what_is_made_is_shown_in_a_line():
    a, b = (checkpoint(CLASSIFIER, seed) for seed in (0, 1))
    found = merge([a, b], "slerp", t=0.5)
    element = next(element for element in found.matched.elements if element is not None)
    assert repr(found) == "<Merge by slerp of model 0, model 1>"
    assert repr(element).startswith("<Element of BertForSequenceClassification: ")
    assert repr(compare(a, a)).startswith("<Comparison: ")
    assert max(len(repr(made)) for made in (found, element, compare(a, a))) < 200


def test_what_is_computed_is_not_taken_for_its_files(tmp_path):
    """A moved model has the folder of the one it was, and other tensors."""
    folders = saved(tmp_path, CLASSIFIER, 2)
    moved = transform(match(folders[1], folders[0]), folders[1])
    assert not any("same model" in note for note in merge([moved, folders[1]], symmetry="none").notes)
    assert any("same model" in note for note in merge([load(folders[1]), folders[1]], symmetry="none").notes)


def test_a_filter_that_lets_nothing_through_is_noted():
    models = {name: checkpoint(CLASSIFIER, seed, torch.float32) for seed, name in enumerate("ab")}
    weight = [{"filter": "self_atn", "value": 0.3}, {"filter": "attention", "value": 0.5}, {"value": 1}]
    content = {
        "merge_method": "linear",
        "models": [{"model": name} for name in models],
        "parameters": {"weight": weight},
    }
    notes = merge_recipe(content, models).notes
    assert notes == ["filter self_atn is part of no tensor's name, and has no effect"]


def test_further_modules_that_differ_are_noted(tmp_path):
    folders = saved(tmp_path, CLASSIFIER, 2)
    for folder, text in zip(folders, ("a", "b"), strict=True):
        (folder / "modules.json").write_text('[{"path": ""}, {"path": "2_Dense"}]')
        (folder / "2_Dense").mkdir()
        (folder / "2_Dense/model.safetensors").write_text(text)
    note = f"2_Dense: not merged, but taken from {folders[0]}; the models differ there"
    assert merge(folders, symmetry="none").notes == [note]
    (folders[1] / "2_Dense/model.safetensors").write_text("a")
    assert merge(folders, symmetry="none").notes == []


def test_preprocessors_that_differ_are_noted(tmp_path):
    folders = saved(tmp_path, "vit/ViTForImageClassification", 2)
    settings = {"size": 8, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_normalize": True}
    other = {**settings, "size": {"height": 8, "width": 8}, "image_mean": [0.4] * 3, "feature_extractor_type": "x"}
    for folder, content in zip(folders, (settings, other), strict=True):
        (folder / "preprocessor_config.json").write_text(json.dumps(content))
    note = f"the preprocessors of {folders[0]} and {folders[1]} differ in image_mean: to the models, one picture is "
    note += "other pixel values, which nothing here makes up for"
    assert merge(folders, symmetry="none").notes == [note]
    matched = merge(folders, symmetry="ffn")
    assert matched.notes == []  # it is among those of the match
    assert [element.report["notes"] for element in matched.matched.elements if element is not None] == [[note]]
    assert note in compare(*folders).notes
    for content in (json.dumps({**other, "image_mean": [0.5] * 3}), "no JSON", "[]", "[" * 100_000):
        (folders[1] / "preprocessor_config.json").write_text(content)
        assert merge(folders, symmetry="none").notes == []
    sides = {**settings, "size": {"shortest_edge": 8, "longest_edge": None}}
    (folders[1] / "preprocessor_config.json").write_text(json.dumps(sides))
    assert "differ in size: " in merge(folders, symmetry="none").notes[0]


def test_preprocessors_that_turn_a_picture_round_are_noted(tmp_path):
    folders = saved(tmp_path, "vit/ViTForImageClassification", 2)
    for other, noted in (({"width": 6, "height": 8}, 0), ({"height": 6, "width": 8}, 1)):
        for folder, size in zip(folders, ({"height": 8, "width": 6}, other), strict=True):
            (folder / "preprocessor_config.json").write_text(json.dumps({"size": size}))
        assert len(merge(folders, symmetry="none").notes) == noted


def test_experts_are_fused_one_by_one_where_nothing_moves_them(monkeypatch):
    """A stack of them would be several gigabytes of a large mixture."""
    a, b = (checkpoint("mixtral/MixtralForCausalLM", seed, torch.float32) for seed in (0, 1))
    expected = {name: (a[name] + b[name]) / 2 for name in a}
    fused = merge([a, b], symmetry="none").checkpoint
    stacks, stack = [], torch.stack
    monkeypatch.setattr(torch, "stack", lambda *given, **more: stacks.append(1) or stack(*given, **more))
    assert largest_difference(dict(fused), expected) < 1e-6
    assert not stacks
    dict(merge([a, b], symmetry="ffn").checkpoint)
    assert stacks


def test_what_optimal_transport_cannot_follow_is_refused_before_it_is_matched(monkeypatch):
    models = [checkpoint("mixtral/MixtralForCausalLM", seed) for seed in range(2)]
    monkeypatch.setattr("cobasin.merging.merge.match_all", lambda *_, **__: pytest.fail("was matched"))
    with pytest.raises(InputError, match="optimal transport cannot couple it; use another merge_method"):
        merge(models, "ot_wts")
    with pytest.raises(pytest.fail.Exception, match="was matched"):
        merge(models, "linear")


def test_a_base_in_memory_may_be_one_of_the_models():
    a, b = (checkpoint(CLASSIFIER, seed, torch.float32) for seed in (0, 1))
    found = merge([a, b], "task_arithmetic", base=a, symmetry="none", weights=[1, 1], normalize=True)
    assert found.recipe.inputs == ["model 1"]
    assert largest_difference(dict(found.checkpoint), dict(b)) < 1e-6
    with pytest.raises(InputError, match="model_stock merges 2 or more"):
        merge([a, b], "model_stock", base=a)


@pytest.mark.parametrize("base", ["./a", "a/", Path("a")])
def test_a_base_may_be_one_of_the_models_written_otherwise(tmp_path, monkeypatch, base):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate("ab"):
        save(checkpoint(CLASSIFIER, seed, torch.float32), Path(name))
    found = merge(["a", "b"], "task_arithmetic", base=base, symmetry="none")
    assert (found.recipe.base, found.recipe.inputs) == ("a", ["b"])


@pytest.mark.parametrize(("anchor", "independent"), one_in(2, [("consensus", True), ("medoid", True), (0, False)]))
def test_three_models_in_all_orders(anchor, independent):
    """The mean of matched models is relative to one of them, which must not depend on the order either."""
    models = {i: checkpoint("vit/ViTForImageClassification", i) for i in range(3)}
    first, *others = (
        dict(merge([models[i] for i in order], anchor=anchor, symmetry="ffn,heads").checkpoint)
        for order in permutations(models)
    )
    differences = [largest_difference(first, other) for other in others]
    assert max(differences) < 1e-12 if independent else max(differences) > 1e-3


def test_the_random_numbers_of_dare_are_those_of_the_seed(classifiers, tmp_path):
    a, b, *_ = classifiers
    content = {
        "merge_method": "dare_linear",
        "base_model": str(a),
        "models": [{"model": str(b)}],
        "parameters": {"density": 0.5},
    }
    once, again, other, default = (
        dict(merge_recipe(content | seed).checkpoint) for seed in ({"seed": 1}, {"seed": 1}, {"seed": 2}, {})
    )
    assert_bitwise(once, again)
    assert_bitwise(other, dict(merge([b], "dare_linear", base=a, symmetry="none", seed=2, density=0.5).checkpoint))
    options = ("--method", "dare_linear", "--set", "density=0.5", "--seed", 2, "--match", "none")
    assert run("merge", b, "--base", a, *options, "--out", tmp_path / "out").code == 0
    assert_bitwise(other, tensors_of(tmp_path / "out"))
    assert largest_difference(once, other) > 0.1
    assert largest_difference(once, default) > 0.1
    base, tuned = tensors_of(a), tensors_of(b)
    kept = [(once[name] != base[name]).float().flatten() for name in once]
    assert abs(float(torch.cat(kept).mean()) - 0.5) < 0.02
    equal = [name for name in once if once[name].shape == (24, 24)]
    assert not torch.equal(*((once[name] != base[name]) for name in equal[:2]))  # every tensor draws its own
    for name in once:  # what is kept is doubled
        torch.testing.assert_close(
            once[name], torch.where(once[name] == base[name], base[name], 2 * tuned[name] - base[name])
        )


def test_what_follows_may_be_left_out_in_numpys_words(classifiers):
    a, b, *_ = classifiers
    assert merge([a, b], symmetry="none", repair=np.bool_(False), heal=np.int64(0)).recipe.after is None
    with pytest.raises(InputError, match="heal"):
        merge([a, b], symmetry="none", heal=np.bool_(True))


def test_every_tensor_draws_its_own_where_rows_are_ranked(classifiers):
    a, b, *_ = classifiers
    content = {"merge_method": "della", "base_model": str(a), "models": [{"model": str(b)}]}
    content |= {"parameters": {"density": 0.5}}
    once, again, other = (dict(merge_recipe(content | {"seed": seed}).checkpoint) for seed in (1, 1, 2))
    assert_bitwise(once, again)
    assert largest_difference(once, other) > 0.1
    base = tensors_of(a)
    kept = [once[name] != base[name] for name in once if once[name].shape == (24, 24)]
    assert abs(float(torch.stack(kept).float().mean()) - 0.5) < 0.03
    assert not torch.equal(*kept[:2])


def test_every_slice_draws_its_own(classifiers, monkeypatch):
    a, b, *_ = classifiers
    monkeypatch.setattr(arithmetic, "SLICE", 48)
    content = {"merge_method": "dare_linear", "base_model": str(a), "models": [{"model": str(b)}]}
    content |= {"parameters": {"density": 0.5}}
    once = dict(merge_recipe(content).checkpoint)
    with torch_threads(4):
        assert_bitwise(once, dict(merge_recipe(content).checkpoint))
    base = tensors_of(a)
    name = next(name for name in once if once[name].shape == (24, 24))
    kept = (once[name] != base[name]).reshape(-1, 48)
    assert len(kept.unique(dim=0)) == len(kept) == 12


def test_progress_says_what_is_done(classifiers):
    a, b, _, rows = classifiers
    told = []
    merge([a, b], "fisher", statistics={"data": {"path": str(rows)}}, progress=lambda *step: told.append(step))
    what = [doing.split(":")[0] for doing, _, _ in told]
    assert list(dict.fromkeys(what)) == ["matching", f"fisher of {a}", f"fisher of {b}"]
    assert told[-1][1:] == (1, 1)


def test_the_elements_bring_the_parents_to_what_is_averaged(classifiers):
    a, b, *_ = classifiers
    merged = merge([a, b])
    own, other = tensors_of(a), dict(transform(merged.elements[1], b))
    assert merged.elements[0] is None
    expected = {name: (own[name] + other[name]) / 2 for name in own}
    assert largest_difference(dict(merged.checkpoint), expected) < 1e-6
    assert merged.weights == [0.5, 0.5]
    assert [parent.label for parent in merged.parents] == [str(a), str(b)]
