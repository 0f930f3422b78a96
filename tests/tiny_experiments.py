"""Tiny experiments: models to start from, made-up data, and the command run on them."""

import json
import sys
from importlib import import_module
from pathlib import Path

import torch
import transformers
import yaml

from real_models import minilm

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "experiments"), str(ROOT / "benchmarks")]
run, tables = import_module("run"), import_module("tables")
WORDS = {"happy": {"joy": "good", "fear": "dark"}, "angry": {"anger": "bad", "joy": "nice"}}
SIZES = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 8}
SIZES["initializer_range"] = 0.3  # so that two models differ in what they say
TRAINING = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1e-3}


def made_place(folder):
    """A folder with data of three kinds, and two encoders to start from."""
    for name, words in WORDS.items():
        for split, count in (("train", 6), ("dev", 3), ("test", 3)):
            rows = [
                {"text": f"{word} {'day ' * i}", "emotions": {**dict.fromkeys(words, 0), label: 1, "love": None}}
                for i in range(count)
                for label, word in words.items()
            ]
            (folder / f"{name}-{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            tagged = "".join(f"{name} NNP B-person\nsaid VBD O\n{word} NN O\n\n" for word in words.values())
            (folder / f"{name}-{split}.conll").write_text("-DOCSTART- -X- O\n\n" + tagged * count)
    for seed in (0, 1):
        torch.manual_seed(seed)
        transformers.BertModel(transformers.BertConfig(vocab_size=30522, **SIZES)).save_pretrained(
            folder / f"start-{seed}"
        )
        transformers.AutoTokenizer.from_pretrained(minilm()).save_pretrained(folder / f"start-{seed}")
    return folder


def emotions(place, **changes):
    """An experiment on emotions that knows of love, which nobody annotated."""
    return {
        "title": "tiny",
        "minutes": 0.1,
        "task": "multilabel",
        "labels": ["anger", "fear", "joy", "love"],
        "data": {
            name: {"read": {"path": f"{place}/{name}-{{split}}.jsonl", "columns": {"labels": "emotions"}}}
            for name in WORDS
        },
        "models": {"own starts": [{"path": f"{place}/start-{seed}"} for seed in (0, 1)]},
        "training": TRAINING,
        "matchings": {"none": "none", "full": "full"},
        "seeds": [0],
    } | changes


def ran(place, out, capsys, **changes):
    """What the command writes for an experiment."""
    path = out / "item.yaml"
    path.write_text(yaml.safe_dump(emotions(place, **changes), sort_keys=False))
    assert run.main([str(path), "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert "expected: about 0 CPU minutes" in shown.err
    measured = [line for line in shown.err.splitlines() if line.startswith("measured-item.json: ")]
    assert not [line for line in measured if "{" in line or len(line) > 120]
    found = json.loads((out / "item.json").read_text())
    assert (out / "item.md").read_text() == tables.markdown(found)
    return found, shown.out


def refused(place, tmp_path, capsys, *options, **changes):
    """The line that the command ends with, for an experiment that it refuses."""
    path = tmp_path / "item.yaml"
    path.write_text(yaml.safe_dump(emotions(place, **changes), sort_keys=False))
    assert run.main([str(path), "--out", str(tmp_path / "out"), *options]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    return line
