"""`cobasin merge --repair --heal`: what is reported apart from the merge, and what is refused."""

import json

import pytest
import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.running import instantiate
from cobasin.data import DataConfig, batches, task_of
from cobasin.evaluation.tasks import evaluate
from cobasin.learning.descent import hold_out
from command_line import refused, run, snapshot, stock, tensors_of
from merge_cases import CLASSIFIER, recipe, saved, token_rows
from model_folders import assert_bitwise

T5 = "t5/T5ForConditionalGeneration"


@pytest.fixture
def berts(tmp_path):
    return saved(tmp_path, CLASSIFIER, 3)


@pytest.fixture
def rows(tmp_path):
    return token_rows(tmp_path / "rows.jsonl", 40)


def test_both_are_reported_apart_from_the_merge(tmp_path, berts, rows):
    plain, out = tmp_path / "plain", tmp_path / "out"
    models = berts[:2]
    assert run("merge", *models, "--out", plain, "--json").json["after"] is None
    report = run("merge", *models, "--repair", "--heal", "30", "--data", rows, "--out", out, "--json").json
    assert json.loads((out / "cobasin.json").read_text()) == report
    after = report["after"]
    assert after["inputs"] | {"digest": ""} == {
        "kind": "rows of data",
        "count": 40,
        "digest": "",
        "seed": 0,
        "held_out": 5,
    }
    assert list(after["losses"]) == ["merge", "repair", "heal"]
    assert after["repair"] == {"norms": 5}
    assert after["heal"]["steps"] == 30
    assert after["heal"]["held_out"][0] == pytest.approx(after["losses"]["repair"]["parents"])
    assert min(after["heal"]["held_out"]) == pytest.approx(after["losses"]["heal"]["parents"])
    stock(out)
    assert tensors_of(out).keys() == tensors_of(plain).keys()
    # the same rows, read by what is there for evaluation
    held, _ = hold_out(batches(load(out), DataConfig(path=str(rows)), samples=1024, batch_size=5, seed=0))
    for folder, stage in ((plain, "merge"), (out, "heal")):
        checkpoint = load(folder)
        found = evaluate(instantiate(checkpoint, torch.float32), held, task_of(checkpoint))
        assert found.loss == pytest.approx(after["losses"][stage]["labels"], rel=1e-5)


def test_what_is_shown(tmp_path, berts, rows):
    out = tmp_path / "out"
    shown = run("merge", *berts[:2], "--repair", "--heal", "10", "--data", rows, "--out", out).out
    card = (out / "README.md").read_text()
    losses = json.loads((out / "cobasin.json").read_text())["after"]["losses"]
    for stage, row, line in (
        ("merge", "the merge itself", "| the merge itself |"),
        ("repair", "repaired", "| the same, the statistics of 5 norms repaired |"),
        ("heal", "healed", "| then healed against parents: at most 10 steps, rate 0.0003 |"),
    ):
        figures = [f"{losses[stage][word]:.4g}" for word in ("parents", "labels")]
        (found,) = [text for text in shown.splitlines() if row in text]
        assert all(figure in found for figure in figures)
        assert f"{line} {' | '.join(figures)} |\n" in card
    assert "after the merge, and no part of it" in shown
    assert "40 rows of data (sha256 " in card


def test_without_data_inputs_are_made_up(tmp_path, berts):
    out = tmp_path / "out"
    shown = run("merge", *berts[:2], "--repair", "--out", out).out
    report = json.loads((out / "cobasin.json").read_text())["after"]
    assert "held-out inputs that were made up" in shown
    assert report["inputs"]["digest"] is None
    assert list(report["losses"]["repair"]) == ["parents"]
    assert "heal" not in report
    assert "128 inputs that were made up, of which 16 were held out" in (out / "README.md").read_text()


def test_a_device_says_where_it_heals_though_nothing_is_matched(tmp_path, berts, rows):
    how = "--match", "none", "--device", "cpu", "--heal", "2", "--data", rows
    report = run("merge", *berts[:2], *how, "--out", tmp_path / "out", "--json").json
    assert report["match"] == "none"
    assert report["after"]["heal"]["steps"] == 2


def test_a_recipe_says_the_same(tmp_path, berts, rows):
    """And the recipe that a report holds does it again."""
    data = {"path": str(rows)}
    path = recipe(tmp_path / "recipe.yaml", "linear", berts, repair=True, heal={"steps": 10, "data": data, "seed": 3})
    first = run("merge", path, "--out", tmp_path / "first", "--json").json
    (tmp_path / "again.yaml").write_text(first["recipe"])
    again = run("merge", tmp_path / "again.yaml", "--out", tmp_path / "again", "--json").json
    assert first["after"] == again["after"]
    assert_bitwise(tensors_of(tmp_path / "first"), tensors_of(tmp_path / "again"))
    path = recipe(tmp_path / "recipe.yaml", "linear", berts, repair={"data": data}, heal={"steps": 10, "seed": 4})
    other = run("merge", path, "--out", tmp_path / "other", "--json").json
    assert other["after"]["inputs"]["digest"] != first["after"]["inputs"]["digest"]


def test_a_repair_that_harms_is_kept_and_told(tmp_path, berts, rows):
    """The labels are what the plain merge answers, so that all else is worse."""
    models, plain = berts[:2], tmp_path / "plain"
    run("merge", *models, "--match", "none", "--out", plain)
    checkpoint = load(plain)
    with torch.no_grad():
        model = instantiate(checkpoint, torch.float32)
        content = [json.loads(line) for line in rows.read_text().splitlines()]
        for row in content:
            row["label"] = int(model(input_ids=torch.tensor([row["input_ids"]])).logits.argmax())
    rows.write_text("".join(json.dumps(row) + "\n" for row in content))
    arguments = ("--match", "none", "--repair", "--data", rows)
    report = run("merge", *models, *arguments, "--out", tmp_path / "out", "--json").json
    losses = {stage: found["labels"] for stage, found in report["after"]["losses"].items()}
    raised = losses["repair"] - losses["merge"]
    assert raised > 0
    note = f"repair raised the held-out loss against labels by {raised:.2g}, from {losses['merge']:.4g}"
    assert any(note in one for one in report["notes"])
    assert any(not torch.equal(x, tensors_of(plain)[name]) for name, x in tensors_of(tmp_path / "out").items())


def test_only_the_weights_of_norms_count_for_a_repair(tmp_path, berts, rows):
    own = [[{"filter": "intermediate", "value": value}, {"value": 1.0}] for value in (-0.2, 1.2)]
    for what, code in (("intermediate", 0), ("LayerNorm", 2)):
        weights = [{"weight": [{**one[0], "filter": what}, one[1]]} for one in own]
        keys = {"repair": {"data": {"path": str(rows)}}}
        path = recipe(tmp_path / "recipe.yaml", "linear", berts[:2], weights, **keys)
        assert run("merge", path, "--out", tmp_path / what).code == code


def test_heads_of_other_labels(tmp_path, berts, rows):
    """The result has one parent's head: that one's answers are compared; there is no mean to heal against."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(berts[1], num_labels=3, ignore_mismatched_sizes=True)
    model.save_pretrained(berts[1])
    out = tmp_path / "out"
    arguments = ("merge", *berts[:2], "--head-from", berts[0], "--data", rows)
    report = run(*arguments, "--repair", "--out", out, "--json").json["after"]
    assert list(report["losses"]["repair"]) == ["parents", "labels"]
    line = refused(tmp_path, *arguments, "--heal", "5", "--out", tmp_path / "other")
    assert "the task heads of the models have different labels, so their answers have no mean; take loss labels" in line
    heal = {"steps": 5, "loss": "labels", "data": {"path": str(rows)}}
    path = recipe(tmp_path / "recipe.yaml", "linear", berts[:2], head=str(berts[0]), heal=heal)
    assert run("merge", path, "--out", tmp_path / "labels").code == 0


def test_the_plan(tmp_path, berts, rows):
    before = snapshot(tmp_path)
    arguments = ("merge", *berts[:2], "--repair", "--heal", "7", "--data", rows, "--dry-run")
    found = run(*arguments, "--json")
    assert found.reads == []
    assert found.json["after"] | {"inputs": found.json["after"]["inputs"]["count"]} == {
        "repair": True,
        "heal": 7,
        "inputs": 40,
    }
    assert found.json["memory"]["after the merge"] > 0
    assert "after the merge: repair, heal, 7 steps, on 40 rows of data" in run(*arguments).out
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--data", "{rows}"), "--data is what --repair and --heal read: give one of them, or leave it out"),
        (("--heal", "0"), "heal.steps: 0: expected a number above 0"),
        (("--repair", "--data", "nowhere.jsonl"), "nowhere.jsonl"),
        (("--repair", "--keep-heads"), "repair and heal make one model, head: keep several"),
        (("--heal", "3", "--keep-heads"), "repair and heal make one model, head: keep several"),
        (("--repair", "--method", "ties", "--base", "{2}"), "repair: ties adds to a base what others have learned"),
        (("--repair", "--weights", "2,-1"), "has weights 2, -1: expected none below 0, one above"),
    ],
)
def test_options_that_are_refused(tmp_path, berts, rows, options, text):
    options = [option.format(*berts, rows=rows) for option in options]
    assert text in refused(tmp_path, "merge", *berts[:2], *options, "--out", tmp_path / "out")


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"repair": False}, "repair: to leave it out, leave the key out"),
        ({"repair": {"sample": 4}}, "unknown key 'sample'; did you mean 'samples'?"),
        ({"repair": {"samples": 1}}, "repair and heal hold some inputs out: 1 is too few; give more samples"),
        ({"heal": {}}, "heal.steps is missing"),
        ({"heal": 0}, "heal.steps: 0: "),
        ({"heal": {"steps": 3, "rate": 0}}, "heal.rate: 0: "),
        ({"heal": {"steps": 3, "loss": "labels"}}, "heal.loss labels needs data with labels"),
        ({"heal": {"steps": 3, "loss": "labels", "data": "{unlabelled}"}}, "loss labels, but the data has none: "),
        ({"repair": {"seed": 1}, "heal": {"steps": 3, "seed": 2}}, "repair.seed and heal.seed differ"),
    ],
)
def test_recipes_that_are_refused(tmp_path, berts, rows, keys, text):
    if isinstance(heal := keys.get("heal"), dict) and "data" in heal:
        content = [{"input_ids": json.loads(line)["input_ids"]} for line in rows.read_text().splitlines()]
        rows.write_text("".join(json.dumps(row) + "\n" for row in content))
        keys = {"heal": heal | {"data": {"path": str(rows)}}}
    path = recipe(tmp_path / "recipe.yaml", "linear", berts[:2], **keys)
    assert text in refused(tmp_path, "merge", path, "--out", tmp_path / "out")


def test_a_recipe_takes_no_options(tmp_path, berts, rows):
    path = recipe(tmp_path / "recipe.yaml", "linear", berts)
    for options in (("--repair",), ("--heal", "3"), ("--data", rows)):
        line = refused(tmp_path, "merge", path, *options, "--out", tmp_path / "out")
        assert f"{options[0]} goes with models; in {path} write it under" in line


def test_inputs_that_cannot_be_made_up(tmp_path):
    line = refused(tmp_path, "merge", *saved(tmp_path, "t5/T5Model", 2), "--repair", "--out", tmp_path / "out")
    assert "no inputs can be made up for T5Model; give it data" in line


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("wav2vec2/Wav2Vec2ForCTC", "for Wav2Vec2ForCTC, nor read; match by weights, without repair and heal"),
        ("bert/BertForMultipleChoice", "by weights, with nothing that runs models on data"),
    ],
)
def test_a_model_that_no_inputs_are_read_for_is_told_to_leave_them_out(tmp_path, case, text):
    line = refused(tmp_path, "merge", *saved(tmp_path, case, 2), "--repair", "--out", tmp_path / "out")
    assert text in line


def test_the_data_is_not_overwritten(tmp_path, berts, rows):
    out = tmp_path / "out"
    out.mkdir()
    inside = token_rows(out / "rows.jsonl", 40)
    arguments = ("merge", *berts[:2], "--repair", "--data", inside, "--out", out, "--overwrite")
    assert f"holds {inside}, which is read" in refused(tmp_path, *arguments)
