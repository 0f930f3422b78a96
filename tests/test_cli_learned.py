"""`cobasin match --method learned`: the command, a killed run that goes on, an anchor that is written, too."""

import errno
import json
import signal

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from cobasin.checkpoints import writer
from cobasin.errors import InputError
from cobasin.learning import descent
from cobasin.symmetry.element import Element
from cobasin.workflows import match as match_workflow
from command_line import WEIGHTS, duplicate, edit_tensors, pair, refused, run, snapshot, stock, tensors_of
from forks import forked
from tiny_models import model

GPT2, VIT = "gpt2-untied/GPT2LMHeadModel", "vit/ViTForImageClassification"
KILLED = """
import os, signal, sys
from cobasin.cli import main
from cobasin.learning import descent
save = descent._Run.save
def killing(self, path):
    save(self, path)
    if self.step == 20:
        os.kill(os.getpid(), signal.SIGKILL)
descent._Run.save = killing
sys.argv = ["cobasin", *{arguments!r}]
main()
"""


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Texts that are quickly made up."""
    monkeypatch.setattr("cobasin.data.writing.LONGEST", 12)
    monkeypatch.setattr("cobasin.finding.search.TEXTS", 24)
    monkeypatch.setattr("cobasin.learning.inputs.WRITTEN", 24)


def unrelated(folder, case):
    """Two models from different seeds as the folders `source` and `anchor`."""
    for seed, name in enumerate(("source", "anchor")):
        model(case, seed, torch.float32).save_pretrained(folder / name)
    return folder / "source", folder / "anchor"


def failing(*_):
    raise InputError("no space")


def killed(arguments):
    """Run a command until it has learned 20 steps."""
    done = forked(KILLED.format(arguments=arguments))
    assert done.returncode == -signal.SIGKILL, done.stderr


def states(folder):
    """What interrupted runs have left of learning."""
    return list(folder.glob(".out.partial-*/.found/learning"))


def texts(folder):
    generator = torch.Generator().manual_seed(0)
    rows = [{"input_ids": torch.randint(5, 30, (6 + i % 3,), generator=generator).tolist()} for i in range(20)]
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.usefixtures("few_rounds")
def test_the_command(tmp_path):
    source, anchor = pair(tmp_path, GPT2)
    out, data, config = tmp_path / "out", texts(tmp_path), tmp_path / "rows.yaml"
    config.write_text(yaml.safe_dump({"path": str(data), "block": 6}))
    arguments = ("match", source, anchor, "--out", out, "--json", "--overwrite", "--method", "learned", "--steps", 2)
    made_up = run(*arguments, "--samples", 16).json
    assert made_up["method"] == "learned"
    assert made_up["verification"]["same"]
    assert "learned on 14 inputs that were made up, to answer as the models do" in (out / "README.md").read_text()
    one, other = (run(*arguments, "--data", path).json["inputs"] for path in (data, config))
    assert one["digest"]
    assert one["digest"] != other["digest"]
    assert one["count"] == 20
    labels = run(*arguments, "--data", data, "--loss", "labels").json
    assert labels["learning"]["loss"] == "labels"
    assert "18 rows of data, on its labels" in (out / "README.md").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["anchor", "out", "rows.jsonl", "rows.yaml", "source"]


def test_what_does_not_fit_is_refused(tmp_path):
    source, anchor = pair(tmp_path, GPT2)
    start = ("match", source, anchor, "--out", tmp_path / "out")
    learn = (*start, "--method", "learned")
    assert "'learnt' is unknown" in refused(tmp_path, *start, "--method", "learnt")
    assert "method weights reads no data" in refused(tmp_path, *start, "--data", tmp_path / "rows.jsonl")
    assert "rows.jsonl" in refused(tmp_path, *learn, "--data", tmp_path / "rows.jsonl")
    assert "--anchor-out goes with --method learned" in refused(tmp_path, *start, "--anchor-out", tmp_path / "other")
    assert "go with method learned" in refused(tmp_path, *start, "--method", "activations", "--loss", "labels")
    assert "inputs that are made up have no labels" in refused(tmp_path, *learn, "--loss", "labels")
    assert "device 'cuda:99' cannot be used here" in refused(tmp_path, *learn, "--device", "cuda:99")
    if not torch.cuda.is_available():
        assert "take cpu, or auto" in refused(tmp_path, *learn, "--device", "cuda")
    for place in ("out", "out/within", "."):
        line = refused(tmp_path, *learn, "--anchor-out", tmp_path / place)
        assert "neither within the other" in line
    assert "lies in the input folder" in refused(tmp_path, *learn, "--anchor-out", anchor / "new")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    read = ("--data", tmp_path / "full" / "file", "--overwrite")
    assert "which is read; choose" in refused(tmp_path, *learn, *read, "--anchor-out", tmp_path / "full")
    assert "is not empty" in refused(tmp_path, *learn, "--anchor-out", tmp_path / "full")
    no_scale = (*learn, "--anchor-out", tmp_path / "other", "--symmetry", "attention")
    assert "no part of the anchor can move" in refused(tmp_path, *no_scale, unread=False)


def test_a_killed_run_goes_on_to_the_same_files(tmp_path):
    source, anchor = pair(tmp_path, VIT)
    whole, out = tmp_path / "whole", tmp_path / "out"
    arguments = ["match", str(source), str(anchor), "--method", "learned", "--samples", "32", "--steps", "40"]
    run(*arguments, "--out", whole)
    killed([*arguments, "--out", str(out)])
    assert states(tmp_path)
    assert not out.exists()
    for other in (["--seed", "1"], ["--steps", "30"], ["--symmetry", "attention"]):
        line = refused(tmp_path, *arguments, *other, "--out", out, "--resume")
        assert f"the state of a run with other {other[0].removeprefix('--')}" in line
    finished = run(*arguments, "--out", out, "--resume", "--json").json
    assert (out / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()
    elements = [Element.load(folder / "cobasin.safetensors") for folder in (out, whole)]
    for key, value in elements[0].values.items():
        assert all(x.equal(elements[1].values[key][part]) for part, x in value.items())
    assert finished["learning"] == json.loads((whole / "cobasin.json").read_text())["learning"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["anchor", "out", "source", "whole"]


def test_a_killed_merge_goes_on_to_the_same_file(tmp_path):
    models = [{"model": str(folder)} for folder in pair(tmp_path, VIT)]
    match = {"method": "learned", "samples": 32, "steps": 40, "anchor": "consensus"}
    recipe, whole, out = tmp_path / "recipe.yaml", tmp_path / "whole", tmp_path / "out"
    recipe.write_text(yaml.safe_dump({"merge_method": "linear", "models": models, "match": match}))
    run("merge", recipe, "--out", whole)
    killed(["merge", str(recipe), "--out", str(out)])
    assert states(tmp_path)
    looks, save = [], descent._Run.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(descent._Run, "save", lambda self, path: (looks.append(self.step), save(self, path)))
        run("merge", recipe, "--out", out, "--resume")
    assert looks == [30, 40]
    assert (out / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()


@pytest.mark.usefixtures("few_rounds")
@pytest.mark.parametrize("options", [(), ("--resume",)])
def test_what_fails_after_learning_keeps_it_to_resume_only(tmp_path, monkeypatch, options):
    source, anchor = pair(tmp_path, VIT)
    monkeypatch.setattr(match_workflow, "write_with_bar", failing)
    arguments = ("match", source, anchor, "--method", "learned", "--samples", 16, "--steps", 10, *options)
    finished = run(*arguments, "--out", tmp_path / "out")
    assert finished.code == 2
    assert bool(states(tmp_path)) is bool(options)


@pytest.mark.usefixtures("few_rounds")
def test_without_resume_an_old_state_is_overwritten(tmp_path, monkeypatch):
    source, anchor = pair(tmp_path, VIT)
    arguments = (
        "match",
        source,
        anchor,
        "--out",
        tmp_path / "out",
        "--method",
        "learned",
        "--steps",
        2,
        "--samples",
        16,
    )
    with monkeypatch.context() as patch:
        patch.setattr(match_workflow, "evidence_of_file", failing)
        assert run(*arguments, "--resume").code == 2
    (state,) = states(tmp_path)
    state.with_name("elements.json").unlink()
    state.write_bytes(b"of another time")
    assert "is damaged" in refused(tmp_path, *arguments, "--resume", unread=False)
    assert refused(tmp_path, *arguments, "--loss", "labels")
    assert states(tmp_path), "a refused command leaves it"
    assert run(*arguments).code == 0
    assert not states(tmp_path)
    assert run(*arguments, "--overwrite", "--resume").code == 0  # nothing to go on from


@pytest.mark.usefixtures("few_rounds")
def test_an_anchor_that_moves_is_written(tmp_path):
    source, anchor = unrelated(tmp_path, VIT)
    out, other = tmp_path / "out", tmp_path / "deep" / "other"
    before = snapshot(anchor)
    options = ("--method", "learned", "--steps", 10, "--samples", 32, "--symmetry", "gl", "--anchor-out", other)
    report = run("match", source, anchor, "--out", out, *options, "--json").json
    assert snapshot(anchor) == before
    assert report["anchor_out"] == str(other)
    assert report["anchor_report"]["verification"]["same"]
    assert report["verification"]["same"]
    assert any(f"average this with {other}" in note for note in report["notes"])
    assert "moved to meet" in (other / "README.md").read_text()
    assert str(other) in (out / "README.md").read_text()
    generator = torch.Generator().manual_seed(0)
    size = stock(anchor).config.image_size
    pixels = torch.randn(4, 3, size, size, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        for moved, original in ((out, source), (other, anchor)):
            found, wanted = (stock(folder).double()(pixels).logits for folder in (moved, original))
            assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max()
        assert any(not x.equal(tensors_of(anchor)[name]) for name, x in tensors_of(other).items())
        # the mean of the two files, as any tool makes it, is the mean that was learned
        averaged, theirs = duplicate(out, "averaged"), tensors_of(other)
        edit_tensors(averaged, lambda own: own.update({name: (x + theirs[name]) / 2 for name, x in own.items()}))
        merged = tmp_path / "merged"
        assert run("merge", out, other, "--match", "none", "--out", merged).code == 0
        found, wanted = (stock(folder).double()(pixels).logits for folder in (averaged, merged))
        assert torch.allclose(found, wanted, atol=1e-4)
    assert Element.load(other / "cobasin.safetensors").report["learning"]["move"] == "all"
    assert load_file(out / WEIGHTS).keys() == load_file(source / WEIGHTS).keys()


@pytest.mark.usefixtures("few_rounds")
def test_a_line_to_an_anchor_that_has_moved(tmp_path):
    source, anchor = unrelated(tmp_path, VIT)
    out, other = tmp_path / "out", tmp_path / "other"
    options = ("--method", "learned", "--steps", 10, "--samples", 32, "--symmetry", "gl", "--anchor-out", other)
    assert run("match", source, anchor, "--out", out, *options).code == 0
    size = stock(anchor).config.image_size
    np.savez(tmp_path / "x.npz", image=np.zeros((4, size, size, 3), np.float32), label=np.arange(4) % 2)
    line = ("--element", out, "--data", tmp_path / "x.npz", "--points", 3, "--out", tmp_path / "line")
    told = refused(tmp_path, "path", anchor, source, *line, unread=False)
    assert told.endswith("; the other model had moved, too: name its folder (--anchor-out)")
    assert "matched (gl, learned)" in run("path", other, source, *line).out


@pytest.mark.usefixtures("few_rounds")
@pytest.mark.parametrize("failing", ["out", "other"])
def test_of_two_folders_both_are_written_or_none(tmp_path, monkeypatch, failing):
    """A disk that is full as either is written."""
    source, anchor = unrelated(tmp_path, VIT)
    before, write_config = snapshot(tmp_path), writer.write_config

    def full(checkpoint, folder):
        if failing in folder.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_config(checkpoint, folder)

    monkeypatch.setattr(writer, "write_config", full)
    options = ("--method", "learned", "--steps", 2, "--samples", 16, "--symmetry", "gl")
    line = refused(
        tmp_path,
        "match",
        source,
        anchor,
        "--out",
        tmp_path / "out",
        *options,
        "--anchor-out",
        tmp_path / "other",
        unread=False,
    )
    assert "No space left on device" in line
    assert snapshot(tmp_path) == before
