"""End models of experiments: what they start from, what they are called, and what is kept of them."""

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from real_models import minilm
from sampling import one_in
from tiny_experiments import SIZES, TRAINING, emotions, made_place, ran, refused

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "experiments"), str(ROOT / "benchmarks")]
experiment, models, starts, tables, world = (
    import_module(name) for name in ("experiment", "models", "starts", "tables", "world")
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data of three kinds, and two encoders to start from."""
    return made_place(tmp_path_factory.mktemp("models"))


def vits(folder, *names):
    """An experiment on vision transformers of these names, and images."""
    draw = np.random.default_rng(0)
    for split in ("train", "test"):
        np.savez(folder / f"{split}.npz", image=draw.integers(0, 256, (12, 8, 8, 3), np.uint8), label=np.arange(12) % 3)
    for seed, name in enumerate(names):
        torch.manual_seed(seed)
        config = transformers.ViTConfig(**SIZES, image_size=8, patch_size=4, num_labels=3)
        transformers.ViTForImageClassification(config).save_pretrained(folder / name)
        size = {"height": 8, "width": 8}
        transformers.ViTImageProcessor(size=size).save_pretrained(folder / name)
    return {
        "task": "image",
        "labels": [],
        "data": {"images": {"read": {"path": f"{folder}/{{split}}.npz"}}},
        "models": {"all": [{"path": f"{folder}/{name}"} for name in names]},
        "training": None,
        "heads": "merge",
        "matchings": {"none": "none"},
    }


def test_folders_of_one_name_are_two_models(place, tmp_path, capsys):
    found, _ = ran(place, tmp_path, capsys, **vits(tmp_path, "a/vit", "b/vit", "b/other"))
    groups = {tuple(row["group"]) for row in found["rows"]}
    assert groups == {("a/vit", "b/vit"), ("a/vit", "b/other"), ("b/vit", "b/other")}
    parents = {row["parent"]: row["loss"] for row in found["rows"] if row["way"] == "parents"}
    assert len({*parents.values()}) == 3


def test_another_preprocessor_makes_another_model(place, tmp_path, capsys):
    changes = vits(tmp_path, "one", "other")
    before = ran(place, tmp_path, capsys, **changes)[0]["rows"]
    for name in ("one", "other"):
        file = tmp_path / name / "preprocessor_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"image_mean": [0.1] * 3, "image_std": [0.2] * 3}))
    after = ran(place, tmp_path, capsys, **changes)[0]["rows"]
    assert [row["loss"] for row in after] != [row["loss"] for row in before]


def test_another_tokenizer_makes_another_model(place, tmp_path):
    start = shutil.copytree(place / "start-0", tmp_path / "start")
    assert starts.content(start) == starts.content(place / "start-0")
    starts.content.cache_clear()
    (start / "tokenizer_config.json").write_text("{}")
    assert starts.content(start) != starts.content(place / "start-0")


def test_matches_are_kept_by_the_rows_that_they_were_found_on(place, tmp_path, capsys):
    data = tmp_path / "inputs.jsonl"
    data.write_text("".join(json.dumps({"text": f"good {i}"}) + "\n" for i in range(4)))
    changes = {"matchings": {"activations": {"method": "activations", "data": {"path": str(data)}}}}
    ran(place, tmp_path, capsys, **changes)
    ran(place, tmp_path, capsys, **changes)
    assert len([*(tmp_path / "matches").iterdir()]) == 1
    measured = json.loads((tmp_path / "measured-item.json").read_text())
    data.write_text("".join(json.dumps({"text": f"dark {i}"}) + "\n" for i in range(4)))
    ran(place, tmp_path, capsys, **changes)
    assert len([*(tmp_path / "matches").iterdir()]) == 2
    assert len(json.loads((tmp_path / "measured-item.json").read_text())) > len(measured)


def test_a_decoder_that_cannot_pad_pads_with_its_end(place, tmp_path, capsys):
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm())
    tokenizer.add_special_tokens({"eos_token": "[SEP]"})
    tokenizer.pad_token = None
    sizes = {"vocab_size": 30522, "n_embd": 8, "n_head": 2, "n_layer": 2, "n_positions": 32}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    ran(place, tmp_path, capsys, models={"decoder": [{"path": f"{tmp_path}/gpt2"}]})
    trained = {json.loads(file.read_text())["pad_token_id"] for file in tmp_path.glob("models/*/config.json")}
    assert trained == {tokenizer.eos_token_id}


def test_a_start_of_16_bits_is_trained_in_32(place, tmp_path, capsys):
    """In bfloat16 small steps are rounded away; what they do can be seen in the body."""
    start = transformers.BertModel.from_pretrained(place / "start-0", dtype=torch.bfloat16)
    start.save_pretrained(tmp_path / "start")
    transformers.AutoTokenizer.from_pretrained(place / "start-0").save_pretrained(tmp_path / "start")
    ran(place, tmp_path, capsys, models={"half": [{"path": str(tmp_path / "start")}]})
    (trained, *_) = (load_file(file) for file in tmp_path.glob("models/*/model.safetensors"))
    assert {tensor.dtype for tensor in trained.values()} == {torch.float32}
    weight = trained["bert.encoder.layer.0.output.dense.weight"]
    assert not torch.equal(weight, weight.bfloat16().float())


def test_a_training_that_diverges(place, tmp_path, capsys):
    training = TRAINING | {"learning_rate": 1e30}
    assert "training: it diverged: " in refused(place, tmp_path, capsys, training=training)
    assert not [*tmp_path.glob("out/models/*")]


def test_a_start_with_a_head_for_other_labels(place, tmp_path, capsys):
    start = tmp_path / "start"
    config = transformers.BertConfig(vocab_size=30522, **SIZES, num_labels=7)
    model = transformers.BertForSequenceClassification(config)
    model.save_pretrained(start)
    transformers.AutoTokenizer.from_pretrained(place / "start-0").save_pretrained(start)
    ran(place, tmp_path, capsys, models={"other": [{"path": str(start)}]})
    # but a body is not drawn anew
    content = json.loads((start / "config.json").read_text())
    (start / "config.json").write_text(json.dumps(content | {"intermediate_size": 16}))
    line = refused(place, tmp_path, capsys, models={"other": [{"path": str(start)}]})
    assert "start: bert.encoder.layer.0.intermediate.dense.bias has another shape than the config says" in line


@pytest.mark.parametrize("heads", one_in(2, ["keep", "merge"]))
def test_methods_with_a_base(place, tmp_path, capsys, heads):
    """That of task vectors has the head that all were trained from, so there is no task vector without training."""
    ties = {"merge_method": "ties", "base_model": f"{place}/start-0", "parameters": {"density": 0.3}}
    methods = {"TIES": ties, "Slerp": {"merge_method": "slerp", "parameters": {"t": 0.5}}}
    one = {"one start": [{"path": f"{place}/start-0"}]}
    found, _ = ran(place, tmp_path, capsys, methods=methods, models=one, heads=heads)
    ways = [(row["way"], row["matching"], row["test"]) for row in found["rows"] if "matching" in row]
    assert ways == [
        (way, matching, test) for way in methods for matching in ("none", "full") for test in ("happy", "angry")
    ]
    data = experiment.Experiment.model_validate(emotions(place)).used()["happy"]
    there = world.World(tmp_path, tmp_path)
    training = {"max_steps": 1, "learning_rate": 0.0}
    start = models.untrained(place / "start-0", data, 0, there)
    trained = models.fine_tuned(place / "start-0", "happy", data, training, None, 0, there)
    states = [
        transformers.AutoModelForSequenceClassification.from_pretrained(one).state_dict() for one in (start, trained)
    ]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_what_is_shown_is_the_tables_and_the_command_that_makes_them(place, tmp_path, capsys):
    out = tmp_path / "my own"
    out.mkdir()
    found, shown = ran(place, out, capsys)
    assert "train_runtime" not in shown
    assert f"`python experiments/run.py '{out}/item.yaml'`; seeds 0" in shown
    assert ' --model "a b"`; seeds 0' in tables.markdown(found | {"model": "a b"})


def test_what_a_training_from_scratch_says_is_no_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(starts, "train", lambda *_: print("loss 8.38"))
    starts.folder_of(experiment.Start(family="gpt2-words", seed=99), world.World(tmp_path, tmp_path / "out"))
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "loss 8.38\n")
