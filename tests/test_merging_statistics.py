"""Statistics in a merge: on which model they are collected, from what data, and when they are used again."""

import json
import shutil

import numpy as np
import pytest
import torch

from cobasin.checkpoints.typed import Typed
from cobasin.data import DataConfig, batches
from cobasin.errors import InputError
from cobasin.finding.applying import transform
from cobasin.fusion.registry import find
from cobasin.merging import statistics as of_models
from cobasin.merging.merge import merge, merge_recipe
from cobasin.statistics import collect
from command_line import edit_tensors, refused, run, tensors_of
from data_sets.data_models import bert
from merge_cases import CLASSIFIER, recipe, saved, token_rows
from model_folders import assert_bitwise
from tiny_models import checkpoint

ROTATED, MONOMIAL = "full", "ffn,heads"


@pytest.fixture
def statistics(tmp_path):
    """The same rows for both models."""
    return {"data": {"path": str(token_rows(tmp_path / "rows.jsonl"))}, "batch_size": 3}


def differences(a, b):
    """Of every tensor the largest difference."""
    return {name: float((a[name].double() - b[name].double()).abs().max()) for name in a}


@pytest.mark.parametrize(
    ("method", "symmetry", "moved"),
    [("regmean", ROTATED, True), ("regmean++", ROTATED, None), ("fisher", ROTATED, False), ("fisher", MONOMIAL, True)],
)
def test_statistics_are_those_of_the_matched_models(statistics, monkeypatch, method, symmetry, moved):
    """Merging matched models is matching, and then merging with statistics that are collected afresh."""
    a, b = (checkpoint(CLASSIFIER, seed) for seed in range(2))
    calls = []
    for name in ("move_grams", "move_fishers"):
        move = getattr(of_models, name)
        monkeypatch.setattr(of_models, name, lambda *given, move=move: calls.append(move) or move(*given))
    merged = merge([a, b], method, symmetry=symmetry, statistics=statistics)
    assert len(calls) == bool(moved)
    matched = transform(merged.elements[1], b)
    fresh = merge([a, matched], method, symmetry="none", statistics=statistics).checkpoint
    # the Fisher information of a key bias, which a softmax cancels, is nothing but rounding
    told = {name: size for name, size in differences(merged.checkpoint, fresh).items() if "key.bias" not in name}
    assert max(told.values()) < 1e-9
    if moved:  # what comes of unmoved statistics
        name = "move_grams" if method == "regmean" else "move_fishers"
        monkeypatch.setattr(of_models, name, lambda element, typed, found: found)
        wrong = merge([a, b], method, symmetry=symmetry, statistics=statistics).checkpoint
        assert max(differences(wrong, fresh).values()) > 0.01


def test_every_model_may_have_data_of_its_own(tmp_path):
    a, b = (checkpoint(CLASSIFIER, seed) for seed in range(2))
    one, other = ({"path": str(token_rows(tmp_path / f"{seed}.jsonl", seed=seed))} for seed in range(2))

    def merged(data):
        return merge([a, b], "regmean", symmetry="none", statistics={"data": data})

    own, swapped, shared = merged([one, other]), merged([other, one]), merged(one)
    assert own.statistics["model 0"]["digest"] == shared.statistics["model 0"]["digest"]
    assert own.statistics["model 1"]["digest"] == swapped.statistics["model 0"]["digest"]
    assert max(differences(own.checkpoint, swapped.checkpoint).values()) > 0.01
    assert max(differences(own.checkpoint, shared.checkpoint).values()) > 0.01


@pytest.mark.parametrize("method", ["fisher", "regmean"])
def test_text_is_read_with_the_models_tokenizer(tmp_path, method):
    texts = ["the cat sat on the mat", "stocks fell sharply on friday", "a good film", "what a bad day it was"]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"sentence": text, "gold": i % 2}) + "\n" for i, text in enumerate(texts)))
    data = {"path": str(rows), "columns": {"text": "sentence", "label": "gold"}}
    models = [bert(), bert()]
    read = models[1].read
    models[1].read = lambda name: read(name) + 0.1 * torch.sin(torch.arange(read(name).numel())).view_as(read(name))
    found = merge(models, method, symmetry="ffn", statistics={"data": data})
    assert [one["rows"] for one in found.statistics.values()] == [4, 4]
    ids = [batch.inputs["input_ids"][0].tolist() for batch in one_by_one(models[0], data)]
    rows.write_text("".join(json.dumps({"input_ids": row, "label": i % 2}) + "\n" for i, row in enumerate(ids)))
    expected = merge(models, method, symmetry="ffn", statistics={"data": {"path": str(rows)}}).checkpoint
    assert max(differences(found.checkpoint, expected).values()) < 1e-5
    rows.write_text("".join(json.dumps({"input_ids": row[:2], "label": i % 2}) + "\n" for i, row in enumerate(ids)))
    other = merge(models, method, symmetry="ffn", statistics={"data": {"path": str(rows)}}).checkpoint
    assert max(differences(found.checkpoint, other).values()) > 1e-3


def one_by_one(model, data):
    return batches(model, DataConfig(**data), samples=None, batch_size=1, seed=0)


def test_images_of_an_npz_file(tmp_path):
    folders = saved(tmp_path, "vit/ViTForImageClassification", 2)
    images = np.random.default_rng(0).integers(0, 256, (9, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "pictures.npz", pixels=images, kinds=np.arange(9) % 3)
    data = {
        "path": str(tmp_path / "pictures.npz"),
        "columns": {"image": "pixels", "label": "kinds"},
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
    }
    statistics = {"data": data, "samples": 5, "fisher": "empirical"}
    for method in ("fisher", "regmean", "ot_acts_emd"):
        merged = merge_recipe(recipe(tmp_path / "recipe.yaml", method, folders, statistics=statistics))
        assert {name: one["rows"] for name, one in merged.statistics.items()} == {str(folder): 5 for folder in folders}
        first = dict(merged.checkpoint)
        np.savez(tmp_path / "pictures.npz", pixels=255 - images, kinds=np.arange(9) % 3)
        assert max(differences(merge_recipe(merged.recipe).checkpoint, first).values()) > 1e-3
        np.savez(tmp_path / "pictures.npz", pixels=images, kinds=np.arange(9) % 3)
        assert max(differences(merge_recipe(merged.recipe).checkpoint, first).values()) == 0


def test_what_was_collected_is_used_again(tmp_path, statistics, monkeypatch):
    folders = saved(tmp_path, CLASSIFIER, 2)
    cache = tmp_path / "cache"
    path = recipe(
        tmp_path / "recipe.yaml", "regmean", folders, statistics={**statistics, "cache": str(cache)}, match="full"
    )
    ran, run_model = [], collect._run
    monkeypatch.setattr(collect, "_run", lambda *given: ran.append(given[1].checkpoint.label) or run_model(*given))
    first = dict(merge_recipe(path).checkpoint)
    assert ran == list(map(str, folders))
    assert_bitwise(dict(merge_recipe(path).checkpoint), first)
    assert len(ran) == 2  # the files were read instead
    old = next(cache.iterdir())
    edit_tensors(folders[1], lambda tensors: tensors["classifier.bias"].add_(1))
    merge_recipe(path)
    assert ran[2:] == [str(folders[1])]  # of a changed model it is collected again
    token_rows(tmp_path / "rows.jsonl", seed=9)
    merge_recipe(path)
    assert ran[3:] == list(map(str, folders))  # and on changed data
    for file in cache.iterdir():
        if file != old:
            shutil.copyfile(old, file)  # now they are not what their names say
    with pytest.raises(InputError, match=r"holds statistics of another (model|data|and| )+ than its name says"):
        merge_recipe(path)


def test_files_of_statistics_are_not_put_where_the_output_goes(tmp_path, statistics):
    folders = saved(tmp_path, CLASSIFIER, 2)
    out = tmp_path / "out"
    for cache in (out, out / "deeper" / "cache"):
        path = recipe(tmp_path / "recipe.yaml", "regmean", folders, statistics={**statistics, "cache": str(cache)})
        line = refused(tmp_path, "merge", path, "--out", out)
        assert f"{out}: holds {cache}, which is read; choose another folder" in line
    inside = folders[0] / "cache"
    path = recipe(tmp_path / "recipe.yaml", "regmean", folders, statistics={**statistics, "cache": str(inside)})
    for option in (("--out", tmp_path / "elsewhere"), ("--dry-run",)):
        line = refused(tmp_path, "merge", path, *option)
        assert f"lies in {folders[0]}, a model that is read; name another folder" in line


def test_what_was_not_collected_is_averaged_and_said(tmp_path, statistics):
    folders = saved(tmp_path, CLASSIFIER, 2)
    path = recipe(tmp_path / "recipe.yaml", "regmean", folders, statistics=statistics)
    report = run("merge", path, "--out", tmp_path / "out", "--json").json
    parents, merged = [tensors_of(folder) for folder in folders], tensors_of(tmp_path / "out")
    average = {name: (parents[0][name] + parents[1][name]) / 2 for name in merged}
    averaged = [name for name in merged if torch.allclose(merged[name], average[name], atol=1e-6)]
    assert set(merged) - set(averaged) == {
        name for name in merged if name.endswith("weight") and not any(x in name for x in ("embeddings", "LayerNorm"))
    }
    assert report["notes"] == [f"{len(averaged)} tensors have no statistics and are averaged"]


def test_experts_have_fisher_information_of_their_own(tmp_path):
    a, b = (checkpoint("mixtral/MixtralForCausalLM", seed) for seed in range(2))
    data = DataConfig(path=str(token_rows(tmp_path / "rows.jsonl")))
    found = merge([a, b], "fisher", symmetry="none", statistics={"data": data}).checkpoint
    fishers = [
        collect.collect("fisher", Typed.of(one), batches(one, data, samples=1000, batch_size=16, seed=0))
        for one in (a, b)
    ]
    for expert in range(4):
        name = f"model.layers.0.block_sparse_moe.experts.{expert}.w1.weight"
        own = [one["layers.0.block_sparse_moe.experts.*.w1.weight"][expert] for one in fishers]
        expected = find("fisher").function([a[name], b[name]], own, weight=(1.0, 1.0))
        torch.testing.assert_close(found[name], expected)


@pytest.mark.parametrize(
    ("method", "change", "text"),
    [
        ("regmean", {"data": {"path": "no-such.jsonl"}}, "no-such.jsonl: no such file or folder"),
        ("regmean", {"data": {"paht": "x"}}, "unknown key 'paht'; did you mean 'path'?"),
        ("regmean", {"data": [{"path": "rows.jsonl"}]}, "statistics.data lists 1 data sets for 2 models"),
        ("regmean", {"data": None}, "merge_method regmean needs the Grams"),
        ("regmean", {"samples": 0}, "statistics.samples: 0: expected a number above 0"),
        ("regmean", {"batch_size": -1}, "statistics.batch_size: -1"),
        ("regmean", {"device": "cuda:77"}, "device 'cuda:77' cannot be used here"),
        ("regmean", {"device": "gpu"}, "statistics.device"),
        ("fisher", {"fisher": "true"}, "statistics.fisher"),
        ("fisher", {"fisher": "empirical", "data": {"path": "bare.jsonl"}}, "bare.jsonl: line 1: no column 'label'"),
        ("fisher", {"data": {"path": "empty.jsonl"}}, "empty.jsonl: is empty"),
        ("fisher", {"data": {"path": "bad.jsonl"}}, "bad.jsonl: line 3: token id 99 is outside the vocabulary of 40"),
        ("fisher", {"data": {"path": "damaged.jsonl"}}, "damaged.jsonl: line 2"),
        ("ot_acts", {"data": [{"path": "rows.jsonl"}, {"path": "bare.jsonl"}]}, "on the same inputs: give one data"),
    ],
    ids=str,
)
@pytest.mark.parametrize("dry", [False, True], ids=["run", "dry-run"])
def test_data_that_cannot_be_used(tmp_path, monkeypatch, statistics, method, change, text, dry):
    """Refused before any tensor is read, so before the models are matched."""
    folders = saved(tmp_path, CLASSIFIER, 2)
    monkeypatch.chdir(tmp_path)
    row = '{"input_ids": [1, 2]}\n'
    for name, content in {
        "bare": row,
        "empty": "",
        "bad": row * 2 + '{"input_ids": [99]}\n',
        "damaged": row + "{",
    }.items():
        (tmp_path / f"{name}.jsonl").write_text(content)
    path = recipe(tmp_path / "recipe.yaml", method, folders, statistics=statistics | change, match="full")
    arguments = ["--dry-run"] if dry else ["--out", tmp_path / "out"]
    assert text in refused(tmp_path, "merge", path, *arguments)


def test_fisher_of_a_model_without_a_head(tmp_path, statistics):
    folders = saved(tmp_path, "bert/BertModel", 2)
    path = recipe(tmp_path / "recipe.yaml", "fisher", folders, statistics=statistics)
    line = refused(tmp_path, "merge", path, "--out", tmp_path / "out")
    assert "a BertModel has no head whose likelihood is known" in line
    assert "use a method without it, such as regmean" in line


@pytest.mark.parametrize(("samples", "batch_size"), [(1000, 16), (3, 1000), (8, 1)])
def test_more_is_asked_for_than_there_is(tmp_path, samples, batch_size):
    rows = token_rows(tmp_path / "rows.jsonl", count=8)
    statistics = {"data": {"path": str(rows)}, "samples": samples, "batch_size": batch_size}
    found = merge([checkpoint(CLASSIFIER, i) for i in range(2)], "regmean", symmetry="none", statistics=statistics)
    assert [one["rows"] for one in found.statistics.values()] == [min(samples, 8)] * 2
