"""What follows the model in folders of Sentence Transformers: read from the hub, and named where it differs."""

import json
from pathlib import Path

import pytest

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.sentence_transformers import differing_modules
from cobasin.merging.merge import merge
from cobasin.verification import verify
from merge_cases import CLASSIFIER, saved

POOLING = {"embedding_dimension": 24, "pooling_mode": "mean", "include_prompt": True}
OLD_POOLING = {"word_embedding_dimension": 24, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


def with_modules(folder: Path, pooling: dict, kinds: dict[str, str], package: str = "new.modules") -> Path:
    """Make a folder one of Sentence Transformers, with these modules behind the model."""
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    modules = [{"path": path, "type": f"{package}.{kind}"} for path, kind in {"": "Transformer", **kinds}.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


@pytest.mark.parametrize(
    ("pooling", "kinds", "differing"),
    [
        (POOLING, {"1_Pooling": "Pooling"}, []),
        (OLD_POOLING, {"1_Pooling": "Pooling"}, []),
        ({**POOLING, "pooling_mode": ["mean"]}, {"1_Pooling": "Pooling"}, []),
        ({**POOLING, "pooling_mode": "cls"}, {"1_Pooling": "Pooling"}, ["1_Pooling"]),
        ({**OLD_POOLING, "pooling_mode_cls_token": True}, {"1_Pooling": "Pooling"}, ["1_Pooling"]),
        ({**POOLING, "include_prompt": False}, {"1_Pooling": "Pooling"}, ["1_Pooling"]),
        (POOLING, {"1_Pooling": "Pooling", "2_Normalize": "Normalize"}, ["2_Normalize"]),
    ],
)
def test_modules_that_differ(tmp_path, pooling, kinds, differing):
    a = with_modules(tmp_path / "a", POOLING, {"1_Pooling": "Pooling"})
    b = with_modules(tmp_path / "b", pooling, kinds, "old.models")
    assert differing_modules(a, b) == differing_modules(b, a) == differing
    (b / "modules.json").unlink()  # an ordinary folder
    assert differing_modules(a, b) == []


def test_pooling_that_differs_is_noted(tmp_path):
    folders = saved(tmp_path, CLASSIFIER, 2)
    for folder, mode in zip(folders, ("mean", "cls"), strict=True):
        with_modules(folder, {**POOLING, "pooling_mode": mode}, {"1_Pooling": "Pooling"})
    note = f"1_Pooling: not merged, but taken from {folders[0]}; the models differ there"
    assert merge(folders, symmetry="none").notes == [note]
    assert verify(folders[0], folders[1]).reason.endswith("; not compared, but other files: 1_Pooling")
    assert "not compared" not in verify(folders[0], folders[0]).reason


def test_pickled_weights_of_further_modules_come_from_the_hub(tmp_path, monkeypatch):
    """Many repositories hold the model as safetensors, and a dense layer behind it only as ``pytorch_model.bin``."""
    (folder,) = saved(tmp_path, CLASSIFIER, 1)
    with_modules(folder, POOLING, {"1_Pooling": "Pooling", "2_Dense": "Dense"})
    asked = []

    def snapshot_download(hub_id, revision, allow_patterns, ignore_patterns):
        asked.append([pattern for pattern in allow_patterns if pattern.endswith(".bin")])
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert load("org/name").folder == folder
    assert asked == [[], ["1_Pooling/pytorch_model.bin", "2_Dense/pytorch_model.bin"]]
