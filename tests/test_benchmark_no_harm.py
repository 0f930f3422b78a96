"""The benchmark on two fine-tunes of one base, on a tiny model and made-up texts; and how it tells harm from noise."""

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
import transformers
from sklearn.metrics import f1_score

from real_models import minilm

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
no_harm = import_module("no_harm")
WORDS = {"isear": {"joy": "good", "fear": "dark", "anger": "bad"}, "crowdflower": {"joy": "good", "love": "dear"}}


@pytest.fixture
def shared(tmp_path):
    """Texts of two tasks with labels of their own; some rows have none."""
    for task, words in WORDS.items():
        folder = tmp_path / "shared" / "data" / "emotion" / task
        folder.mkdir(parents=True)
        for split, count in (("train", 12), ("dev", 6), ("test", 9)):
            rows = [
                {"text": f"{word} {'day ' * i}", "label": label} for i in range(count) for label, word in words.items()
            ]
            rows.append({"text": "nothing", "label": None})
            (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "shared"


@pytest.fixture
def base(tmp_path, monkeypatch):
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    folder = tmp_path / "base"
    transformers.BertModel(transformers.BertConfig(vocab_size=30522, **sizes)).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(minilm()).save_pretrained(folder)
    monkeypatch.setattr(no_harm, "base", lambda: folder)
    monkeypatch.setattr(no_harm, "STEPS", 4)
    monkeypatch.setattr(no_harm, "RESAMPLES", 19)
    return folder


@pytest.mark.usefixtures("base")
def test_no_harm(shared, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(no_harm, "WAYS", {name: no_harm.WAYS[name] for name in ("as they are", "weights")})
    monkeypatch.setattr("rich.console.Console.width", 400)
    arguments = ["--shared", str(shared), "--out", str(tmp_path / "out"), "--seeds", "2"]
    no_harm.main(arguments)
    shown = capsys.readouterr()
    assert "expected: about" in shown.err
    found = json.loads((tmp_path / "out" / "no_harm.json").read_text())
    rows = json.loads((tmp_path / "out" / "measured-no_harm.json").read_text())
    assert {tuple(len(own) for own in row["predictions"]) for row in rows} == {(27, 18)}
    assert not any("predictions" in row for rows in found["rows"].values() for row in rows)
    for row in found["rows"]["weights"]:
        assert row["kept"]["ffn"] == row["kept"]["resid"] == 1
        assert row["moved"] < 0.5 * row["before"]
        assert 0 < row["after"] <= row["before"]
    assert all(low <= 0 <= high for gain in found["gains"]["weights"] for low, high in [gain["interval"]])
    # the results are there: no model is needed
    monkeypatch.setattr(no_harm, "measure", None)
    shutil.rmtree(tmp_path / "out" / "models")
    no_harm.main(arguments)
    assert shown.out.endswith(capsys.readouterr().out)
    assert not (tmp_path / "out" / "models").exists()
    with pytest.raises(TypeError):
        no_harm.main([*arguments, "--dev"])


def test_macro_f1_is_that_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    truth, predicted = torch.randint(5, (2, 50), generator=generator)
    truth[truth == 3] = 4
    assert no_harm.macro_f1(truth, predicted) == pytest.approx(f1_score(truth, predicted, average="macro"))


def test_harm_is_told_from_noise():
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(3, (300,), generator=generator)
    noisy = [torch.where(torch.rand(300, generator=generator) < 0.3, 0, truth).tolist() for _ in range(3)]
    worse = [[0 if i < 60 else x for i, x in enumerate(row)] for row in noisy]
    high = {
        "other": no_harm.harm(truth.tolist(), noisy[1:] + noisy[:1], noisy)["interval"][1],
        "worse": no_harm.harm(truth.tolist(), worse, noisy)["interval"][1],
    }
    assert high["worse"] < 0 <= high["other"]
    assert no_harm.harm(truth.tolist(), noisy, noisy) == {"gains": [0.0] * 3, "interval": [0.0, 0.0]}
