"""`cobasin path`: the line as a merge would be, the plane, what is written, what is refused."""

import json
import re
import shutil
from itertools import product

import pytest
import torch
from matplotlib.figure import Figure

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.running import instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.writer import save
from cobasin.errors import InputError
from cobasin.evaluation.blend import Blend
from cobasin.evaluation.plane import LossPlane, loss_plane
from cobasin.evaluation.plots import plot_plane
from cobasin.evaluation.tasks import Score
from cobasin.merging.merge import merge
from cobasin.presenting.measuring import path_report
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from cobasin.workflows import path as path_workflow
from command_line import duplicate, edit_json, near, refused, run, snapshot
from tiny_models import model

TIED = "gpt2/GPT2LMHeadModel"
BERT = "bert/BertForSequenceClassification"


def folders(root, *models):
    """Models as folders a, b, c ..."""
    paths = [root / name for name in "abc"[: len(models)]]
    for path, made in zip(paths, models, strict=True):
        save(load(made), path)
    return paths


def texts(root, labels=None, count=6):
    """Rows of token ids, with labels where there are any."""
    generator = torch.Generator().manual_seed(0)
    path = root / "data.jsonl"
    lines = []
    for i in range(count):
        row = {"input_ids": torch.randint(5, 30, (6 + i % 3,), generator=generator).tolist()}
        lines.append(json.dumps(row if labels is None else {**row, "label": i % labels}))
    path.write_text("\n".join(lines))
    return path


def scrambled(made, seed=0):
    """An equivalent model, in another basis and another order."""
    typed = Typed.of(load(made))
    typed = typed.untied() if typed.spec.unties else typed
    return typed.derived(Element.sample(form_of(typed.spec, folded=bool(typed.spec.norms)), seed).apply(typed))


@pytest.fixture
def pair(tmp_path):
    """Two classifiers and data for them."""
    first = model(BERT, 0, torch.float32)
    first.config.pad_token_id = 0
    return *folders(tmp_path, first, near(first)), texts(tmp_path, labels=2)


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures take most of the time: without them."""
    monkeypatch.setattr(path_workflow, "plot_paths", lambda _, out, *__: out.write_bytes(b""))


def test_a_scrambled_copy_of_a_tied_model(tmp_path):
    original = model(TIED, 0, torch.float32)
    a, b = folders(tmp_path, original, scrambled(original))
    out = tmp_path / "out"
    arguments = ("path", a, b, "--data", texts(tmp_path), "--out", out, "--points", 5, "--json")
    report = run(*arguments).json
    raw, matched = report["paths"]["raw"], report["paths"]["matched"]
    assert report == json.loads((out / "path.json").read_text())
    assert raw["alphas"] == matched["alphas"] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert (report["task"], report["metric"], report["data"]["rows"]) == ("causal_lm", "token accuracy", 6)
    # the models are the same function, so matched there is no line at all
    assert matched["loss"] == pytest.approx([raw["loss"][0]] * 5, rel=1e-4)
    assert raw["loss"][-1] == pytest.approx(raw["loss"][0], rel=1e-4)
    assert raw["midpoint"]["loss"] != pytest.approx(raw["loss"][0], rel=1e-2)
    assert sorted(path.name for path in out.iterdir()) == ["path.html", "path.json", "path.png"]


@pytest.mark.parametrize(("case", "match"), [(TIED, "full"), (TIED, "ffn,heads"), (BERT, "paper")])
def test_the_midpoint_is_the_merged_model(tmp_path, undrawn, case, match):
    models = [model(case, seed, torch.float32) for seed in (0, 1)]
    for made in models:
        made.config.pad_token_id = 0
    a, b = folders(tmp_path, *models)
    data = texts(tmp_path, labels=None if case == TIED else 2)
    options = ("--data", data, "--match", match, "--points", 3, "--json")
    paths = run("path", a, b, *options, "--out", tmp_path / "out").json["paths"]
    for kind, symmetry in (("raw", "none"), ("matched", match)):
        middle = tmp_path / kind
        save(merge([a, b], symmetry=symmetry).checkpoint, middle)
        again = run("path", middle, middle, *options, "--out", tmp_path / f"{kind}-out").json["paths"]["raw"]
        assert paths[kind]["midpoint"]["loss"] == pytest.approx(again["loss"][0], rel=1e-5)
    assert paths["raw"]["midpoint"]["loss"] != pytest.approx(paths["matched"]["midpoint"]["loss"], rel=1e-3)


def test_a_match_that_was_found_before(tmp_path, undrawn):
    a, b, c = folders(tmp_path, *(model(TIED, seed, torch.float32) for seed in range(3)))
    data = texts(tmp_path)
    assert run("match", b, a, "--out", tmp_path / "matched").code == 0  # the heads are untied
    options = ("--data", data, "--points", 3, "--out", tmp_path / "out", "--overwrite")
    found = run("path", a, b, *options, "--json").json
    for element in (tmp_path / "matched", tmp_path / "matched" / "cobasin.safetensors"):
        again = run("path", a, b, *options, "--element", element, "--json").json
        assert again["paths"] == found["paths"]
    element = ("--element", tmp_path / "matched")
    line = refused(tmp_path, "path", a, b, *options[:-2], tmp_path / "x", *element, "--match", "paper", unread=False)
    assert "symmetry paper: the element was found with its own" in line
    line = refused(tmp_path, "path", a, c, *options[:-2], tmp_path / "x", *element, unread=False)
    assert "the element was not found between" in line
    line = refused(tmp_path, "path", a, b, *options[:-2], tmp_path / "x", *element, "--plane", c)
    assert "all models are matched by weights for it; leave --element out" in line
    line = refused(tmp_path, "path", a, b, *options[:4], "--out", tmp_path / "matched", "--overwrite", *element)
    assert f"lies in the input folder {tmp_path / 'matched'}" in line


def test_a_line_of_what_was_learned_says_so(pair, undrawn, tmp_path):
    a, b, data = pair
    learn = ("--method", "activations", "--data", data, "--out", tmp_path / "matched")
    assert run("match", b, a, *learn).code == 0
    shown = run("path", a, b, "--data", data, "--points", 3, "--element", tmp_path / "matched", "--out", tmp_path / "o")
    assert "matched (full, activations)" in shown.out


def test_names_that_a_picture_takes_for_formulas(pair, tmp_path):
    a, b, data = pair
    ends = a.rename(a.with_name("run$x_1_2")), b.rename(b.with_name("run$y"))
    assert run("path", *ends, "--data", data, "--out", tmp_path / "out", "--points", 3).code == 0
    assert run("compare", *ends, "--out", tmp_path / "compared").code == 0


def test_the_page_needs_nothing_beside_it(pair, tmp_path):
    a, b, data = pair
    odd = b.rename(b.with_name("<b> & co"))
    out = tmp_path / "out"
    report = run("path", a, odd, "--data", data, "--out", out, "--points", 3, "--json").json
    page = (out / "path.html").read_text("utf-8")
    assert "<script" not in page
    assert re.findall(r'(?:src|href)="(?!data:image/png;base64,)', page) == []
    assert page.count("<img ") == 1
    assert "&lt;b&gt; &amp; co" in page
    assert "<b>" not in page
    for path in report["paths"].values():
        for number in (*path["loss"], *path["metric"], path["barrier"]):
            assert f"<td>{number:.4f}</td>" in page
    assert (out / "path.png").read_bytes().startswith(b"\x89PNG")


def test_the_table(pair, tmp_path):
    a, b, data = pair
    shown = run("path", a, b, "--data", data, "--out", tmp_path / "out", "--points", 3)
    assert shown.code == 0
    assert "A: loss " in shown.out
    assert "matched (full)" in shown.out
    assert f"written to {tmp_path / 'out'}" in shown.out


def test_options_reach_the_data(pair, undrawn, tmp_path):
    a, b, data = pair
    described = tmp_path / "data.yaml"
    described.write_text(f"path: {data}\nlabels: {{0: 1, 1: 0}}\n")
    found = []
    for i, options in enumerate(
        [(data,), (described,), (data, "--samples", 3), (data, "--samples", 3, "--seed", 1), (data, "--batch-size", 1)]
    ):
        arguments = ("path", a, b, "--points", 3, "--json", "--out", tmp_path / f"out-{i}", "--data", *options)
        found.append(run(*arguments).json)
    plain, swapped, few, others, single = found
    assert swapped["paths"]["raw"]["metric"][0] == pytest.approx(1 - plain["paths"]["raw"]["metric"][0])
    assert (few["data"]["rows"], plain["data"]["rows"]) == (3, 6)
    assert few["data"]["digest"] != others["data"]["digest"]
    assert single["paths"]["raw"]["loss"] == pytest.approx(plain["paths"]["raw"]["loss"], rel=1e-5)


def test_a_device_that_is_named_matches_too(pair, undrawn, tmp_path, monkeypatch):
    a, b, data = pair
    found = []
    matching = path_workflow.match_all
    monkeypatch.setattr(path_workflow, "match_all", lambda *args, **how: found.append(how) or matching(*args, **how))
    arguments = ("path", a, b, "--points", 3, "--data", data, "--device", "cpu", "--out", tmp_path / "out")
    assert run(*arguments).code == 0
    assert [how["device"] for how in found] == ["cpu"]


def test_a_plane_is_drawn(pair, tmp_path, capsys):
    a, b, data = pair
    save(load(near(model(BERT, 0, torch.float32), noise=0.1, pad_token_id=0)), tmp_path / "c")
    out = tmp_path / "out"
    arguments = ("path", a, b, "--plane", tmp_path / "c", "--grid", 4, "--data", data, "--points", 3, "--out", out)
    report = run(*arguments, "--json").json
    plane, line = report["plane"], report["paths"]["matched"]
    assert [len(row) for row in plane["loss"]] == [4] * 4
    assert [plane["models"][i]["loss"] for i in (0, 1)] == pytest.approx([line["loss"][i] for i in (0, -1)], rel=1e-5)
    assert plane["models"][1]["y"] == 0
    assert (out / "plane.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "path.html").read_text("utf-8").count("<img ") == 2
    path_report(report | {"plane": plane | {"loss": [[9.0] * 4] * 4}})  # a grid that meets none of the models
    assert f": lowest loss {min(one['loss'] for one in plane['models']):.4f}\n" in capsys.readouterr().out


def test_labels_of_a_plane_tell_close_losses_apart(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    ends = [(1.9476, 0.5), (1.951, 0.5), (1.9523, 0.5)]
    table = [[1.94 + 0.001 * (3 * row + column) for column in range(3)] for row in range(3)]
    corners = [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)]
    plane = LossPlane([0.0, 0.5, 1.0], [0.0, 0.5, 1.0], table, [[0.5] * 3] * 3, corners, ends)
    plot_plane(plane, tmp_path / "plane.png", "abc", "accuracy")
    (loss, accuracy, bar) = drawn[0].axes
    assert [text.get_text() for text in loss.texts] == ["A 1.948", "B 1.951", "C 1.952"]
    assert [text.get_text() for text in accuracy.texts] == ["A 0.5", "B 0.5", "C 0.5"]
    ticks = [text.get_text() for text in bar.get_yticklabels()]
    assert len(set(ticks)) == len(ticks) > 3


def vector(made):
    return torch.cat([tensor.flatten() for tensor in made.state_dict().values() if tensor.is_floating_point()]).double()


def test_distances_on_the_plane_are_those_of_the_weights():
    models = [load(model(BERT, seed, torch.float32)) for seed in range(3)]
    origin, *others = (vector(instantiate(one, torch.float32)) for one in models)
    found = loss_plane(models, lambda made: (float((vector(made) - origin).norm()), float(made.training)), grid=3)
    for (i, y), (j, x) in product(enumerate(found.y), enumerate(found.x)):
        assert found.loss[i][j] == pytest.approx((x * x + y * y) ** 0.5, rel=1e-4)
        assert found.metric[i][j] == 0.0
    assert found.ends[0] == (pytest.approx(0, abs=1e-4), 0.0)
    for other, corner, end in zip(others, found.corners[1:], found.ends[1:], strict=True):
        assert end[0] == pytest.approx(float((other - origin).norm()), rel=1e-4)
        assert (corner[0] ** 2 + corner[1] ** 2) ** 0.5 == pytest.approx(end[0], rel=1e-4)
    assert all(found.x[0] < x < found.x[-1] and found.y[0] < y < found.y[-1] for x, y in found.corners)


def test_a_blend_of_tied_models_counts_tied_tensors_once():
    tied = [load(model(TIED, seed, torch.float32)) for seed in (0, 1)]
    blend = Blend(tied)
    squared = sum(float((tied[0][name] - tied[1][name]).double().square().sum()) for name in tied[0])
    assert blend.inner([1, -1], [1, -1]) == pytest.approx(squared, rel=1e-5)
    assert torch.equal(blend.at([0, 1]).lm_head.weight, blend.at([0, 1]).transformer.wte.weight)


@pytest.mark.parametrize("third", [0, 1, 0.5])
def test_models_on_one_line_have_no_plane(third):
    ends = [load(model(BERT, seed, torch.float32)) for seed in (0, 1)]
    first, second = (Typed.of(end) for end in ends)
    between = first.derived({name: torch.lerp(first[name], second[name], third) for name in first})
    with pytest.raises(InputError, match="lie on one line"):
        loss_plane([*ends, between], lambda _: (0.0, 0.0), grid=3)
    with pytest.raises(InputError, match="lie on one line"):
        loss_plane([ends[0], ends[0], ends[1]], lambda _: (0.0, 0.0), grid=3)


def test_a_third_model_that_the_arithmetic_of_a_match_puts_beside_the_line():
    ends = [load(model(BERT, seed, torch.float32)) for seed in (0, 1)]
    first = Typed.of(ends[0])
    moved = first.derived({name: first[name] * (1 + 5e-6) for name in first})
    with pytest.raises(InputError, match="lie on one line"):
        loss_plane([*ends, moved], lambda _: (0.0, 0.0), grid=3)


def test_a_third_model_that_rounding_puts_beside_the_line():
    ends = [load(model(BERT, 0, torch.float32)), load(near(model(BERT, 0, torch.float32), 0.02))]
    first, second = (Typed.of(end) for end in ends)
    mean = first.derived({name: ((first[name] + second[name]) / 2).bfloat16() for name in first}, torch.bfloat16)
    with pytest.raises(InputError, match="lie on one line"):
        loss_plane([*ends, mean], lambda _: (0.0, 0.0), grid=3)
    other = Typed.of(load(model(BERT, 1, torch.float32)))
    third = first.derived({name: (first[name] + 0.03 * other[name]).bfloat16() for name in first}, torch.bfloat16)
    loss_plane([*ends, third], lambda _: (0.0, 0.0), grid=3)


def test_a_plane_that_is_none_is_refused_before_the_lines(pair, tmp_path, monkeypatch):
    a, b, data = pair
    monkeypatch.setattr(path_workflow, "loss_path", lambda *_: pytest.fail("a line was evaluated"))
    arguments = ("path", a, b, "--plane", a, "--match", "full", "--data", data, "--out", tmp_path / "out")
    assert "lie on one line in weights" in refused(tmp_path, *arguments, unread=False)


def test_a_loss_that_is_not_finite_is_said(pair, tmp_path, monkeypatch):
    a, b, data = pair
    monkeypatch.setattr(path_workflow, "evaluate", lambda *_: Score(float("nan"), 0.5, "accuracy"))
    arguments = ("path", a, b, "--data", data, "--points", 3, "--out", tmp_path / "out")
    assert run(*arguments, "--json").json["paths"]["raw"]["loss"] == [None] * 3
    save(load(near(model(BERT, 0, torch.float32), noise=0.1, pad_token_id=0)), tmp_path / "c")
    plane = run(*arguments, "--plane", tmp_path / "c", "--grid", 3, "--overwrite", "--json").json["plane"]
    assert plane["loss"] == [[None] * 3] * 3
    assert "not finite" in run(*arguments, "--overwrite").out
    assert "not finite" in (tmp_path / "out" / "path.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--points", 4), "4 points on the path: expected an odd number"),
        (("--points", 1), "1 points on the path: expected an odd number"),
        (("--plane", "nowhere", "--grid", 2), "2 points a side of the plane: expected a whole number from 3"),
        (("--plane", "nowhere", "--grid", 10**11), "100000000000 points a side of the plane: expected a whole number"),
        (("--points", 10**23 - 1), "99999999999999999999999 points on the path: expected an odd number from 3 to"),
        (("--grid", 4), "--grid 4: is that of the plane through three models; name the third by --plane"),
        (("--match", "none"), "'none' is unknown; expected full, gl, paper"),
        (("--samples", 0), "expected whole numbers from 1 on"),
        (("--batch-size", 0), "expected whole numbers from 1 on"),
        (("--seed", 1 << 63), "a seed from 0 to 2^63 - 1"),
        (("--device", "toaster"), "device 'toaster' cannot be used here"),
        (("--device", "meta"), "device 'meta' cannot be used here"),
        (("--data", "x" * 300), "error: " + "x" * 300 + ": cannot be looked at: File name too long"),
        (("--split", "test"), "is one file, without a split 'test'"),
        (("--data", "nowhere.jsonl"), "nowhere.jsonl: no such file or folder"),
        (("--data", "nowhere.yaml"), "nowhere.yaml: cannot be read"),
        (("--plane", "nowhere"), "nowhere: no such folder"),
    ],
)
def test_options_that_cannot_be(pair, options, text):
    a, b, data = pair
    assert text in refused(a.parent, "path", a, b, "--data", data, "--out", a.with_name("out"), *options)


def test_data_that_cannot_be(pair):
    a, b, data = pair

    def line(content, name="other.yaml"):
        (other := data.with_name(name)).write_text(content)
        return refused(a.parent, "path", a, b, "--data", other, "--out", a.with_name("out"))

    assert "unknown key 'pathh'" in line(f"pathh: {data}")
    assert "path" in line("split: test")
    assert (
        "the rows have no labels, without which there is no loss: "
        f"{data.with_name('unlabelled.jsonl')}: line 1: no column 'label' (there are: input_ids); say which one it is"
    ) in line(json.dumps({"input_ids": [5, 6, 7]}), "unlabelled.jsonl")
    assert "holds a list; expected keys like path: and columns:" in line("[a.jsonl]", "list.YML")
    assert "label 7 is none of the model's" in line(json.dumps({"input_ids": [5, 6], "label": 7}), "wrong.jsonl")


def test_models_that_cannot_be(pair, tmp_path):
    a, b, data = pair
    out = ("--data", data, "--out", tmp_path / "out")
    renamed = duplicate(b, "renamed", id2label={"0": "x", "1": "y"}, label2id={"x": 0, "y": 1})
    assert "the task heads of" in refused(tmp_path, "path", a, renamed, *out)
    assert "have different labels: no line between them" in refused(tmp_path, "path", a, b, "--plane", renamed, *out)
    other = tmp_path / "other"
    save(load(model("gpt2/GPT2LMHeadModel", 0, torch.float32)), other)
    assert "only models of one architecture match" in refused(tmp_path, "path", a, other, *out)
    bare = tmp_path / "bare"
    save(load(model("bert/BertModel", 0, torch.float32)), bare)
    assert f"{bare}: no loss is known of this bert" in refused(tmp_path, "path", bare, bare, *out)
    edit_json(a / "config.json", lambda config: config.update(problem_type="regression"))
    assert refused(tmp_path, "path", a, a, *out).startswith(f"error: {a}: a regression of 2 numbers")
    edit_json(a / "config.json", lambda config: config.update(problem_type=None, pad_token_id=None))
    assert "has no pad_token_id" in refused(tmp_path, "path", a, b, *out)


def test_the_output_folder(pair):
    a, b, data = pair
    out = a.with_name("out")
    out.mkdir()
    (out / "mine.txt").write_text("x")
    options = ("--data", data, "--points", 3, "--out")
    assert f"{out}: is not empty" in refused(a.parent, "path", a, b, *options, out)
    assert "lies in the input folder" in refused(a.parent, "path", a, b, *options, a / "out")
    shutil.copyfile(data, out / data.name)
    line = refused(a.parent, "path", a, b, "--data", out / data.name, "--out", out, "--overwrite")
    assert f"holds {out / data.name}, which is read" in line
    before = snapshot(a)
    assert run("path", a, b, *options, out, "--overwrite").code == 0
    assert not (out / "mine.txt").exists()
    assert snapshot(a) == before
