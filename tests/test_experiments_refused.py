"""Experiments that cannot be run are refused in one line, before anything is trained."""

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import transformers

from tiny_experiments import SIZES, made_place, refused

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "experiments"), str(ROOT / "benchmarks")]
measure = import_module("measure")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Beside data and starts, starts that text cannot be read by, a wider one, and rows without labels."""
    folder = made_place(tmp_path_factory.mktemp("refused"))
    without = shutil.copytree(folder / "start-0", folder / "no-tokenizer")
    for file in (*without.glob("*token*"), *without.glob("vocab*"), *without.glob("special*")):
        file.unlink()
    config = transformers.ViTConfig(**SIZES, image_size=8, patch_size=4, num_labels=3)
    transformers.ViTForImageClassification(config).save_pretrained(folder / "vit")
    endless = shutil.copytree(folder / "start-0", folder / "no-padding")
    tokenizer = transformers.AutoTokenizer.from_pretrained(endless)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(endless)
    config = json.loads((endless / "config.json").read_text())
    (endless / "config.json").write_text(json.dumps(config | {"pad_token_id": None}))
    wider = transformers.BertConfig(vocab_size=30522, **SIZES | {"hidden_size": 16})
    transformers.BertModel(wider).save_pretrained(folder / "wider")
    transformers.AutoTokenizer.from_pretrained(folder / "start-0").save_pretrained(folder / "wider")
    np.savez(folder / "images.npz", image=np.zeros((3, 8, 8, 3), np.uint8), label=np.arange(3))
    for split in ("train", "test"):
        row = {"text": "good"} | ({"labels": ["joy"]} if split == "train" else {})
        (folder / f"bare-{split}.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def reads(path, **more):
    return {"read": {"path": f"{{place}}/{path}", **more}}


def starts(*names):
    return {"models": {"own": [{"path": f"{{place}}/{name}"} for name in names]}}


IMAGES = {
    "task": "image",
    "labels": [],
    "data": {"c": reads("images.npz")},
    "training": None,
    "heads": "merge",
    **starts("vit", "vit-2"),
}
BASE = {"merge_method": "ties", "base_model": "{place}/wider", "parameters": {"density": 0.3}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (starts("no-tokenizer"), "models: own: {place}/no-tokenizer: has no tokenizer, which text needs"),
        (starts("no-padding"), "no-padding: the tokenizer has no pad_token, and no eos_token to pad with; add one"),
        (starts("vit"), "models: own: {place}/vit: Transformers has no vit that classifies text; name another model"),
        ({"models": {"x": [{"config": {"model_type": "bert"}}]}}, "models: x: config: has no tokenizer, which text"),
        (
            starts("start-0", "wider"),
            "wider has hidden_size 16, {place}/start-0 has 8: only models of one architecture",
        ),
        (
            {"methods": {"TIES": BASE}},
            "wider has hidden_size 16, {place}/start-0 has 8: only models of one architecture",
        ),
        ({"data": {"x": reads("bare-{split}.jsonl")}}, "bare-test.jsonl: line 1: has no labels, which test rows need"),
        ({"groups": [["happy", "angri"]]}, "groups: no end model 'angri'; did you mean 'angry'?"),
        ({"groups": [["happy", "happy"]]}, "groups: 'happy' is twice in one; give every name once"),
        ({"groups": [["happy"]]}, "models: own starts: nothing to merge: there is happy, angry, and groups are"),
        (
            {"training": {"eval_strategy": "epoch"}},
            "training: eval_strategy 'epoch': nothing is evaluated; leave it out",
        ),
        ({"use": ["happy"]}, "models: own starts: nothing to merge: there is happy, and groups are pairs"),
        ({"labels": ["joy", "joy"]}, "labels: 'joy' is there twice; give every name once"),
        ({"seeds": [0, -1]}, "seeds[1]: -1: "),
        ({"matchings": {"x": {"method": "activations", "data": "x.jsonl"}}}, "matchings: x: x.jsonl: no such file"),
        ({"matchings": {"x": {"anchor": "medioid"}}}, "matchings: x: anchor 'medioid': expected medoid, consensus"),
        ({"matchings": {"x": {"layers": "0-9"}}}, "matchings: x: layers 0-9: the models have layers 0 to 1"),
        ({"measure": "paths", "points": 2}, "2 points on the path: expected an odd number from 3"),
        ({"training": None}, "without training all end models are for one data set, and there are 2: happy, angry"),
        ({"unseen": ["happy", "angry"], "heads": "merge"}, "unseen: all data sets that are used; leave one"),
        (IMAGES | starts("vit", "vit"), "vit: is there twice; give every model once"),
        (IMAGES | {"methods": {"x": {"merge_method": "fisher"}}}, "the rows to collect statistics on and to test on"),
        (IMAGES | {"matchings": {"x": {"layers": "choose"}}}, "the rows to choose a layer on and to test on are the"),
    ],
)
def test_before_anything_is_trained(place, tmp_path, capsys, monkeypatch, changes, message):
    monkeypatch.setattr(measure, "end_models", None)

    def filled(value):
        if isinstance(value, dict):
            return {key: filled(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [filled(entry) for entry in value]
        return value.replace("{place}", str(place)) if isinstance(value, str) else value

    assert filled(message) in refused(place, tmp_path, capsys, **filled(changes))
    assert not (tmp_path / "out").exists()


def test_images_are_not_trained_on(place, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(measure, "end_models", None)
    for split in ("train", "test"):
        shutil.copy(place / "images.npz", tmp_path / f"{split}.npz")
    data = {"c": {"read": {"path": f"{tmp_path}/{{split}}.npz"}}}
    line = refused(place, tmp_path, capsys, task="image", labels=["a", "b", "c"], data=data)
    assert "data: c: image classifiers are not fine-tuned here; leave training out" in line


@pytest.mark.parametrize(
    ("content", "message"), [("[{", "is damaged (Expecting"), ("{}", "is no list of results"), ("[1]", "is no list of")]
)
def test_damaged_results(place, tmp_path, capsys, monkeypatch, content, message):
    monkeypatch.setattr(measure, "end_models", None)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "measured-item.json").write_text(content)
    line = refused(place, tmp_path, capsys)
    assert f"measured-item.json: {message}" in line
    assert line.endswith("remove it to measure anew")


def test_results_in_a_file(place, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(measure, "end_models", None)
    (tmp_path / "out").touch()
    assert "out is no folder that can be written to; choose another one" in refused(place, tmp_path, capsys)


def test_one_model_for_one_data_set(place, tmp_path, capsys):
    changes = {"training": None, "use": ["happy"]}
    line = refused(place, tmp_path, capsys, "--model", str(place / "start-0"), **changes)
    assert "start-0: nothing to merge: there is start-0, and groups are pairs" in line
