"""The runner of the experiments, end to end on tiny models and made-up data."""

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
import yaml

from cobasin.errors import InputError
from cobasin.finding import match
from model_folders import as_bins
from tiny_experiments import SIZES, TRAINING, emotions, made_place, ran

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "experiments"), str(ROOT / "benchmarks")]
experiment, measure, run, starts, tables, world = (
    import_module(name) for name in ("experiment", "measure", "run", "starts", "tables", "world")
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data of three kinds, and two encoders to start from."""
    return made_place(tmp_path_factory.mktemp("experiments"))


def test_scores_are_measured_once(place, tmp_path, capsys, monkeypatch):
    methods = {"Simple": {"merge_method": "linear"}, "RegMean": {"merge_method": "regmean"}}
    changes = {"methods": methods, "statistics": {"samples": 4}, "seeds": [0, 1]}
    found, shown = ran(place, tmp_path, capsys, **changes)
    rows = found["rows"]
    merged = [row for row in rows if row["way"] == "RegMean"]
    assert [(row["seed"], row["matching"], row["test"]) for row in merged] == [
        (seed, matching, test) for seed in (0, 1) for matching in ("none", "full") for test in ("happy", "angry")
    ]
    assert {row["way"] for row in rows} == {"parents", "ensemble", "Simple", "RegMean"}
    assert {row["metric_name"] for row in rows} == {"macro F1"}
    # merged without matching, these are not what they are after it
    losses = {row["matching"]: row["loss"] for row in merged if (row["seed"], row["test"]) == (0, "happy")}
    assert losses["none"] != losses["full"]
    assert "| macro F1, %; 2 models at once | none | full |" in shown
    assert "of 2 up)" in shown
    assert (tmp_path / "item-own-starts.png").exists()
    # without the results: the models are there, and so is what was found for them, once for both methods
    assert len(list((tmp_path / "matches").glob("*/elements.json"))) == len(changes["seeds"])
    (tmp_path / "measured-item.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(match, "CommonForm", None)
        assert ran(place, tmp_path, capsys, **changes)[0]["rows"] == rows
    # again: the models are there, and so is every result
    monkeypatch.setattr(measure, "merge_recipe", None)
    monkeypatch.setattr(transformers, "Trainer", None)
    again, _ = ran(place, tmp_path, capsys, **changes)
    assert again["rows"] == rows
    with pytest.raises(TypeError):
        ran(place, tmp_path, capsys, **changes, rows={"test": 2})


def test_more_models_on_data_that_none_has_seen(place, tmp_path, capsys):
    """Tags of another name, merged heads, and a layer that is chosen on dev data."""
    data = {
        name: {"read": {"path": f"{place}/{file}-{{split}}.conll", "labels": {"person": "PER"}}}
        for name, file in (("a", "happy"), ("b", "angry"), ("c", "happy"), ("new", "angry"))
    }
    found, shown = ran(
        place,
        tmp_path,
        capsys,
        task="tokens",
        labels=["O", "B-PER", "I-PER"],
        data=data,
        models={"own starts": [{"path": f"{place}/start-{seed}"} for seed in (0, 1, 0)]},
        unseen=["new"],
        groups="growing",
        heads="merge",
        matchings={"best layer": {"symmetry": "paper", "layers": "choose"}},
    )
    rows = [row for row in found["rows"] if row["way"] == "Simple"]
    assert {row["test"] for row in found["rows"]} == {"new"}
    assert [len(row["group"]) for row in rows if row.get("split") != "dev"] == [2, 3]
    for size in (2, 3):
        dev = {row["layers"]: row["metric"] for row in rows if len(row["group"]) == size and row.get("split") == "dev"}
        (test,) = [row for row in rows if len(row["group"]) == size and row.get("split") != "dev"]
        assert dev.keys() == {"0", "1"}
        assert dev[test["layers"]] == max(dev.values())
    assert "| span F1, %; 3 models at once | best layer |" in shown
    assert "(layer " in shown


def test_layers_paths_and_distances(place, tmp_path, capsys):
    matchings = {"none": "none", "last": {"symmetry": "paper", "layers": "last"}}
    found, shown = ran(place, tmp_path, capsys, matchings=matchings)
    swept = [row["layers"] for row in found["rows"] if row.get("matching") == "last" and row["test"] == "happy"]
    assert swept == ["1-1", "0-1"]
    assert "| Simple: layer k; the first, or last, k + 1 | last |\n| --- | --- |\n| 0 | " in shown
    found, shown = ran(place, tmp_path, capsys, measure="paths", points=3)
    for row in found["rows"]:
        assert row["alphas"] == [0.0, 0.5, 1.0]
        assert row["barrier"] >= 0
    ends = {(row["test"], row["matching"]): (row["loss"][0], row["loss"][-1]) for row in found["rows"]}
    # on its own data, with its own head, a model is itself, matched or not; with the other's head it is not
    assert ends["happy", "none"][0] == pytest.approx(ends["happy", "full"][0], rel=1e-4)
    assert ends["angry", "none"][1] == pytest.approx(ends["angry", "full"][1], rel=1e-4)
    assert ends["happy", "none"][1] != pytest.approx(ends["happy", "full"][1], rel=1e-4)
    assert "| matching | barrier |" in shown
    found, shown = ran(place, tmp_path, capsys, measure="distances")
    none, full = found["rows"]
    assert full["distance_canonical"] < none["distance_canonical"]
    assert none["kept"]
    assert full["kept"]
    assert 0 < full["change"] < 1e-9
    assert full["loss"] == pytest.approx(none["loss"], rel=1e-4)
    assert "| full | " in shown


def test_images_and_couplings(place, tmp_path, capsys):
    """Models that are there, of images; hard couplings move one without keeping its function."""
    for seed in (0, 1):
        torch.manual_seed(seed)
        config = transformers.ViTConfig(**SIZES, image_size=8, patch_size=4, num_labels=3)
        transformers.ViTForImageClassification(config).save_pretrained(tmp_path / f"vit-{seed}")
    draw = np.random.default_rng(0)
    for split in ("train", "test"):
        images = draw.integers(0, 256, (12, 8, 8, 3), np.uint8)
        np.savez(tmp_path / f"{split}.npz", image=images, label=np.arange(12) % 3)
    changes = {
        "task": "image",
        "labels": [],
        "data": {"images": {"read": {"path": f"{tmp_path}/{{split}}.npz", "mean": [0.5] * 3, "std": [0.5] * 3}}},
        "models": {"both": [{"path": f"{tmp_path}/vit-{seed}"} for seed in (0, 1)]},
        "training": None,
        "heads": "merge",
        "methods": {"Simple": {"merge_method": "linear"}, "couplings": {"merge_method": "ot_acts_emd"}},
        "statistics": {"samples": 6},
        "seeds": [0, 1],
    }
    found, shown = ran(place, tmp_path, capsys, **changes)
    rows = found["rows"]
    assert [row["parent"] for row in rows if row["way"] == "parents" and row["seed"] == 0] == ["vit-0", "vit-1"]
    # an average has nothing to draw, so it has one seed
    assert {way: {row["seed"] for row in rows if row["way"] == way} for way in ("Simple", "couplings")} == {
        "Simple": {0},
        "couplings": {0, 1},
    }
    assert "| accuracy, %; 2 models at once | none | full |" in shown
    found, shown = ran(place, tmp_path, capsys, **changes, measure="distances", groups=[["vit-0", "vit-1"]])
    kept = {row["matching"]: row["kept"] for row in found["rows"] if row["seed"] == 0}
    assert kept == {"none": True, "full": True, "couplings": False}
    assert "| couplings | " in shown
    assert (tmp_path / "item-both.png").exists()
    # how long training took is known of what was trained here
    (tmp_path / "vit-1/training.json").write_text('{"seconds": 7.5}')
    found, shown = ran(place, tmp_path, capsys, **changes | {"methods": {}}, measure="seconds")
    assert [row["way"] for row in found["rows"] if row["step"] == "training" and row["seed"] == 0] == ["vit-1"]
    assert "| training | vit-1 | 7.50 ± 0.00 |" in shown


def test_seconds(place, tmp_path, capsys):
    found, shown = ran(place, tmp_path, capsys, measure="seconds", use=["happy", "angry"])
    assert [(row["step"], row["way"]) for row in found["rows"]] == [
        ("fine-tuning", "happy"),
        ("fine-tuning", "angry"),
        ("matching", "full"),
        ("merging", "Simple"),
    ]
    assert all(row["seconds"] > 0 for row in found["rows"])
    assert "| merging | Simple | " in shown


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("item", experiment.items())
def test_the_files_are_experiments(item, small):
    read = experiment.Experiment.read(item, small)
    assert read.used()
    if small:
        assert read.minutes < experiment.Experiment.read(item).minutes
        assert read.seeds == [0]
        own = [start for starts in read.models.values() for start in starts if start.family]
        # cifar10-vit is there already; the others take hours, where they are trained to the end
        assert all(start.max_steps or start.family == "cifar10-vit" for start in own)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"x": {"read": {"path": "nowhere/{split}.jsonl"}}}}, "data: x: nowhere/test.jsonl: no such file"),
        ({"data": {"x": {"read": {"path": "{place}/happy-test.jsonl"}}}}, "data: x: read: the rows to train on and to"),
        (
            {"data": {"x": {"read": {"path": "{place}/happy-{split}.jsonl", "columns": {"text": "txt"}}}}},
            "happy-test.jsonl: line 1: no column 'txt' (there are: text, emotions)",
        ),
        (
            {"metric": "macro F1 at least one label"},
            "no macro F1 at least one label of multilabel; expected macro F1 or",
        ),
        ({"methods": {"TIES": {"merge_method": "ties"}}}, "methods: TIES: recipe: "),
        (
            {"methods": {"x": {"merge_method": "linear", "base_model": "{minilmm}"}}},
            "methods: x: {minilmm}: there is no",
        ),
        ({"methods": {"x": {"merge_method": "fisher"}}, "statistics": {"sampels": 3}}, "did you mean 'samples'?"),
        ({"training": {"learning_rate": "fast"}}, "training: learning_rate: 'fast': expected a number"),
        ({"models": {"x": [{"family": "modernbert-word"}]}}, "models: x: modernbert-word: no such family"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_trained(place, tmp_path, capsys, monkeypatch, changes, message):
    monkeypatch.setattr(measure, "end_models", None)
    path = tmp_path / "item.yaml"
    text = yaml.safe_dump(emotions(place, **changes), sort_keys=False)
    path.write_text(text.replace("{place}", str(place)))
    assert run.main([str(path), "--out", str(tmp_path / "out")]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"error: {path}: ")
    assert message in line


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"titel": "x"}, "titel: "),
        ({"use": ["hapy"]}, "no data set 'hapy'; did you mean 'happy'?"),
        ({"methods": {"Simple": {"merge_method": "liner"}}}, "methods: Simple: merge method 'liner' is unknown"),
        ({"matchings": {"x": "fll"}}, "matchings: x: symmetry 'fll': 'fll' is unknown"),
        ({"unseen": ["happy"]}, "data that is unseen is nobody's own: it needs heads: merge"),
        (
            {"data": {name: {"read": {"path": "x.jsonl"}} for name in "abc"}},
            "models: own starts: 2 starts for 3 data sets; give each its own, or one for all",
        ),
        ({"models": {"x": [{"seed": 1}]}}, "expected path, family or config, exactly one of them"),
        (
            {"training": None, "models": {"x": [{"path": "x", "training": {"max_steps": 1}}]}},
            "models: x: training of a start changes that of the experiment, which has none",
        ),
        ({"labels": []}, "labels are missing, which a multilabel head needs"),
        ({"training": {"learning_rat": 1}}, "training: "),
        ({"data": {"x": {"read": {"path": "{there}/x.jsonl"}}}}, "there is no {there}; expected {split}, {shared}, "),
        (
            {"data": {"x": {"read": {"path": "{splt}.jsonl"}}}},
            "data: x: {splt}.jsonl: there is no {splt}; expected {split}, ",
        ),
        ({"data": {"x": {"read": {"file": "x.jsonl"}}}}, "item.yaml: data: x: read: "),
        ({"models": {"x": [{"path": "no/such model"}]}}, "no/such model: no such folder, and not available "),
        ({"models": {"x": [{"config": {"model_type": "brt"}}]}}, "config: "),
    ],
)
def test_bad_experiments(place, tmp_path, capsys, changes, message):
    path = tmp_path / "item.yaml"
    path.write_text(yaml.safe_dump(emotions(place, **changes), sort_keys=False))
    assert run.main([str(path), "--out", str(tmp_path / "out")]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    assert message in line
    assert not (tmp_path / "out" / "item.json").exists()


def test_an_unknown_item(capsys):
    assert run.main(["table1-emotions"]) == 2
    assert "table1-emotions: no such experiment; did you mean 'table1-emotion'?" in capsys.readouterr().err


def test_one_file_like_another(tmp_path):
    (tmp_path / "a.yaml").write_text(
        yaml.safe_dump(emotions("x") | {"small": {"seeds": [3], "minutes": 0.05, "matchings": {"none": "none"}}})
    )
    (tmp_path / "b.yaml").write_text("like: a\ntitle: other\nmatchings: {gl: gl}\nsmall: {minutes: 0.01}\n")
    whole, small = (experiment.Experiment.read(str(tmp_path / "b.yaml"), small) for small in (False, True))
    assert (whole.title, whole.matchings, whole.seeds) == ("other", {"gl": "gl"}, [0])
    assert (small.matchings, small.seeds, small.minutes) == ({"gl": "gl"}, [3], 0.01)


def test_another_model_for_all(tmp_path):
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(emotions("x")))
    read = experiment.Experiment.read(str(tmp_path / "a.yaml"), model="roberta-base")
    assert {setting: [start.path for start in starts] for setting, starts in read.models.items()} == {
        "roberta-base": ["roberta-base"]
    }


def test_a_start_from_the_hub_as_older_ones_are(place, tmp_path, capsys, monkeypatch):
    """Its weights are pickled, and its config does not say which class reads them."""
    start = tmp_path / "hub" / "start"
    shutil.copytree(place / "start-0", start)
    as_bins(start)
    config = json.loads((start / "config.json").read_text())
    (start / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "architectures"}))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(start))
    found, _ = ran(place, tmp_path, capsys, models={"hub": [{"path": "org/start"}]})
    assert {row["models"] for row in found["rows"]} == {"hub"}
    assert starts.content(start) != starts.content(place / "start-1")


def test_a_start_with_training_of_its_own(place, tmp_path, capsys):
    starts = [{"path": f"{place}/start-0", "training": {"max_steps": 1}}, {"path": f"{place}/start-1"}]
    ran(place, tmp_path, capsys, models={"own": starts})
    records = {path.parent.name: json.loads(path.read_text())["of"] for path in tmp_path.glob("models/*/training.json")}
    trained = {name.split("-")[0]: of["training"] for name, of in records.items()}
    assert trained == {"happy": {**TRAINING, "max_steps": 1}, "angry": TRAINING}


def test_a_start_without_a_config_is_refused(place, tmp_path, capsys):
    start = tmp_path / "start"
    shutil.copytree(place / "start-0", start)
    (start / "config.json").unlink()
    path = tmp_path / "item.yaml"
    path.write_text(yaml.safe_dump(emotions(place, models={"own": [{"path": str(start)}]})))
    assert run.main([str(path), "--out", str(tmp_path)]) == 2
    assert "has no config.json" in capsys.readouterr().err


def test_one_setting_alone(place, tmp_path, capsys):
    path = tmp_path / "item.yaml"
    models = {"one": [{"path": str(place)}], "other": [{"path": "nowhere"}]}
    path.write_text(yaml.safe_dump(emotions("x", models=models)))
    read = experiment.Experiment.read(str(path), setting="one")
    assert {setting: [start.path for start in starts] for setting, starts in read.models.items()} == {
        "one": [str(place)]
    }
    assert run.main([str(path), "--setting", "onne"]) == 2
    assert "models: no 'onne'; did you mean 'one'?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run.main(["all", "--setting", "one"])
    assert "--setting is of an item's own models" in capsys.readouterr().err


def test_images_beside_the_project_are_unpacked(tmp_path):
    (tmp_path / "data" / "vision").mkdir(parents=True)
    (tmp_path / "data" / "vision" / "cifar10_jpeg.npz").touch()
    loader = "import numpy as np\n\ndef cifar10():\n    images = np.zeros((20, 32, 32, 3), np.uint8)\n"
    loader += "    return images, np.arange(20), images[:5], np.arange(5)\n"
    (tmp_path / "data" / "load.py").write_text(loader)
    there = world.World(tmp_path, tmp_path / "out")
    folder = Path(there.fill("{cifar10}/{split}.npz", split="dev")).parent
    assert {path.stem: np.load(path)["label"].tolist() for path in folder.iterdir()} == {
        "train": [*range(18)],
        "dev": [18, 19],
        "test": [*range(5)],
    }
    with pytest.raises(InputError, match="--shared"):
        world.World(tmp_path / "nowhere", tmp_path / "other").fill("{cifar10}")
