"""The verbs as a user runs them: what they write, print and return."""

import json
import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import cobasin.demo
from cobasin.architectures import known
from cobasin.errors import NotProbed
from cobasin.finding.applying import transform
from cobasin.presenting.moving import distances
from cobasin.symmetry.element import Element
from cobasin.workflows import inspection
from command_line import COMMAND, duplicate, edit_json, edit_tensors, pair, refused, run, snapshot, stock, tensors_of
from model_folders import assert_bitwise, names

BERT = "bert/BertForMaskedLM"
FAMILIES = {
    BERT: "qk",
    "vit/ViTForImageClassification": "qk",
    "gpt2/GPT2LMHeadModel": "qk",
    "llama-gqa/LlamaForCausalLM": "pair",
}


def logits(folder):
    """Float64 logits of a language model."""
    tokens = torch.arange(5, 25)[None]
    with torch.no_grad():
        return stock(folder, dtype=torch.float64)(tokens).logits


def test_a_model_that_no_probe_fits_is_written_and_said_so(tmp_path, monkeypatch):
    def refuse(*_):
        raise NotProbed("it reads input_values, which no probe has")

    monkeypatch.setattr("cobasin.verification.probe", refuse)
    source, anchor = pair(tmp_path, BERT)
    why = "not run on probe inputs: it reads input_values, which no probe has"
    matched = run("match", source, anchor, "--out", tmp_path / "matched")
    assert f"function: {why}\n" in matched.out
    moved = run("apply", tmp_path / "matched", source, "--out", tmp_path / "moved")
    assert f"function: {why}\n" in moved.out
    for folder in ("matched", "moved"):
        assert f"- function, in float64: {why}\n" in (tmp_path / folder / "README.md").read_text()
    assert_bitwise(
        load_file(tmp_path / "moved" / "model.safetensors"), load_file(tmp_path / "matched" / "model.safetensors")
    )


@pytest.mark.parametrize(
    ("dtype", "shard", "files"),
    [
        (torch.float32, "1GB", 1),
        (torch.float32, "20KB", 3),  # two shards and their index
        (torch.bfloat16, "1GB", 1),
        (torch.bfloat16, "10KB", 3),
    ],
)
def test_match_writes_a_model_folder(tmp_path, dtype, shard, files):
    source, anchor = pair(tmp_path, BERT, dtype, shard)
    carried = {"tokenizer.json": '{"model": {"vocab": {}}}', "vocab.txt": "a", "generation_config.json": "{}"}
    for name, text in (carried | {"README.md": "The card of the source."}).items():
        (source / name).write_text(text)
    before = snapshot(anchor)
    out = tmp_path / "out"
    report = run("match", source, anchor, "--out", out, "--json").json
    assert snapshot(anchor) == before

    shards = sorted(path.name for path in source.glob("model*"))
    assert len(shards) == files
    assert names(out) == sorted([*shards, *carried, "config.json", "README.md", "cobasin.safetensors", "cobasin.json"])
    for name in (name for name in shards if name.endswith(".safetensors")):
        found, expected = load_file(out / name), load_file(source / name)
        assert found.keys() == expected.keys()
        assert {(tensor.dtype, tensor.shape) for tensor in found.values()} == {
            (dtype, tensor.shape) for tensor in expected.values()
        }
    for name, text in carried.items():
        assert (out / name).read_text() == text
    assert json.loads((out / "config.json").read_text()) == json.loads((source / "config.json").read_text())
    assert json.loads((out / "cobasin.json").read_text()) == report

    rounding = torch.finfo(dtype).eps * 30
    assert (logits(out) - logits(source)).abs().max() < rounding * logits(source).abs().max()
    element = Element.load(out / "cobasin.safetensors")
    assert_bitwise(dict(transform(element, source)), tensors_of(out))
    assert element.report["distance_after"] == report["distance_after"] < report["distance_before"]


@pytest.mark.parametrize(("case", "space"), FAMILIES.items())
def test_match_moves_the_weights_and_keeps_the_function(tmp_path, case, space):
    source, anchor = pair(tmp_path, case)
    out = tmp_path / "out"
    finished = run("match", source, anchor, "--out", out)
    assert finished.code == 0
    assert f"matched {source} to {anchor} (full)\n" in finished.out
    assert re.search(rf"^│ {space} +│ [\d.]+ +│ [\d.]+ +│$", finished.out, re.MULTILINE)
    assert re.search(r"^function in float64: relative difference \S+e-", finished.out, re.MULTILINE)
    assert finished.out.endswith(f"written to {out}\n")
    assert finished.err == ""
    stock(out)
    found, expected = tensors_of(out), tensors_of(source)
    assert any(not torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert run("verify", source, out).code == 0
    assert run("verify", anchor, out).code == 1


@pytest.mark.parametrize("case", ["gpt2/GPT2LMHeadModel", "llama-mqa-tied/LlamaForCausalLM"])
def test_match_unties_a_tied_head(tmp_path, case):
    source, anchor = pair(tmp_path, case)
    out = tmp_path / "out"
    report = run("match", source, anchor, "--out", out, "--json").json
    assert report["notes"][0] == "the output head is untied from the embedding"
    assert report["notes"][-1].startswith("to average it with an anchor whose head is tied, use cobasin merge")
    merged = run("merge", source, anchor, "--out", tmp_path / "merged", "--json").json
    assert not any("to average it" in note for match in merged["matches"] for note in match["notes"])
    configs = [json.loads((folder / "config.json").read_text()) for folder in (source, out)]
    assert [config["tie_word_embeddings"] for config in configs] == [True, False]
    model = stock(out)
    head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    assert not torch.allclose(head, embedding, atol=0.01)
    assert torch.equal(tensors_of(out)["lm_head.weight"], head)
    assert "lm_head.weight" not in tensors_of(source)
    assert (logits(out) - logits(source)).abs().max() < 1e-5 * logits(source).abs().max()
    assert run("match", source, anchor, "--out", tmp_path / "tied", "--symmetry", "ffn,heads,attention").code == 0
    assert json.loads((tmp_path / "tied" / "config.json").read_text())["tie_word_embeddings"] is True


def test_match_only_some_symmetries_and_layers(tmp_path):
    source, anchor = pair(tmp_path, BERT)
    paper = run("match", source, anchor, "--out", tmp_path / "paper", "--symmetry", "paper", "--json").json
    assert {key.split(".")[0] for key in paper["spaces"]} == {"qk", "vo", "ffn"}
    out = tmp_path / "out"
    some = run("match", source, anchor, "--out", out, "--symmetry", "attention,heads", "--layers", "1", "--json").json
    assert set(some["spaces"]) == {"head.1", "qk.1", "vo.1"}
    assert (paper["layers"], some["layers"]) == (None, "1")
    assert "(`--symmetry attention,heads --layers 1`)" in (out / "README.md").read_text()
    found, expected = tensors_of(out), tensors_of(source)
    moved = {name for name in found if not torch.equal(found[name], expected[name])}
    assert moved
    assert all("encoder.layer.1.attention" in name for name in moved)


def test_a_matched_model_that_its_dtype_does_not_hold_is_told_or_refused(tmp_path):
    """Offsets that are large in the anchor's norms, and not in the source's, are moved into what reads them."""
    source, anchor = pair(tmp_path, "gpt2/GPT2LMHeadModel", torch.bfloat16)

    def outlying(size):
        def edit(tensors):
            for name, tensor in tensors.items():
                if "ln_" in name and name.endswith("bias"):
                    tensor[3] = size

        return edit

    finished = run("match", source, anchor, "--out", tmp_path / "near")
    assert "rounded to the dtypes" not in finished.out
    edit_tensors(anchor, outlying(30.0))
    finished = run("match", source, anchor, "--out", tmp_path / "far")
    assert finished.code == 0
    report = json.loads((tmp_path / "far" / "cobasin.json").read_text())["verification"]
    assert report["same"] is None
    assert report["relative_float64"] < 1e-9
    assert "note: rounded to the dtypes of the file it is not surely the same function: " in finished.out
    assert "; rounded to the dtypes of the file, " in (tmp_path / "far" / "README.md").read_text()
    assert run("verify", source, tmp_path / "far").code == 2
    edit_tensors(anchor, outlying(1000.0))
    line = refused(tmp_path, "match", source, anchor, "--out", tmp_path / "farther", unread=False)
    assert "moved and rounded to the dtypes of its file, computes another function (relative difference" in line
    assert run("match", source, anchor, "--out", tmp_path / "near-again", "--symmetry", "residual-order").code == 0
    wide = pair(tmp_path / "wide", "gpt2/GPT2LMHeadModel", torch.float64)
    edit_tensors(wide[1], outlying(1000.0))
    assert run("match", *wide, "--out", tmp_path / "held").code == 0
    line = refused(tmp_path, "apply", tmp_path / "held", source, "--out", tmp_path / "farther", unread=False)
    assert "moved and rounded to the dtypes of its file, computes another function" in line


def test_a_model_that_float64_does_not_hold_beside_its_anchor_is_refused(tmp_path):
    """No defect: gains a million times as large move offsets that no number has the digits for."""
    source, anchor = pair(tmp_path, "gpt2/GPT2LMHeadModel", torch.float64)

    def outgrown(tensors):
        for name, tensor in tensors.items():
            if "ln_" in name and name.endswith("weight"):
                tensor *= 1e6

    edit_tensors(anchor, outgrown)
    line = refused(tmp_path, "match", source, anchor, "--out", tmp_path / "out", unread=False)
    assert "moved to an anchor whose tensors are larger by far, its function is lost to rounding in float64" in line
    fewer = "--symmetry", "ffn,heads,residual-order"
    report = run("match", source, anchor, *fewer, "--out", tmp_path / "out", "--json").json
    assert report["verification"]["relative_float64"] < 1e-9


def test_outputs_that_say_nothing_are_told_once(tmp_path):
    source, anchor = pair(tmp_path, "bert/BertForSequenceClassification")
    edit_tensors(source, lambda tensors: [tensors[f"classifier.{name}"].zero_() for name in ("weight", "bias")])
    found = run("match", source, anchor, "--out", tmp_path / "out", "--json").json["verification"]
    assert found["same"] is None
    assert found["reason"].endswith("are all 0")
    assert "rounded" not in found


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(("where", "code", "text"), [(">/dev/full", 2, "output cannot be written"), (">&-", 0, "")])
def test_output_that_nobody_can_read(tmp_path, where, code, text):
    source, _ = pair(tmp_path, BERT)
    command = [sys.executable, "-c", "from cobasin.cli import main; main()", "inspect", str(source), "--json"]
    done = subprocess.run(f"{shlex.join(command)} {where}", shell=True, check=False, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert len(done.stderr.splitlines()) <= 1


def test_verify(tmp_path):
    source, anchor = pair(tmp_path, BERT)
    same, different = run("verify", source, source), run("verify", source, anchor)
    assert (same.code, different.code) == (0, 1)
    assert same.out.startswith("same function: relative difference 0.0e+00")
    assert different.out.startswith("different functions: relative difference ")
    edit_tensors(anchor, lambda tensors: [tensor.zero_() for tensor in tensors.values()])
    undecided = run("verify", source, anchor)
    assert undecided.code == 2
    assert undecided.out == f"cannot tell: the outputs of {anchor} are all 0\n"
    name = "bert.embeddings.LayerNorm.bias"
    edit_tensors(anchor, lambda tensors: tensors[name].fill_(float("nan")))
    broken = run("verify", source, anchor)
    assert broken.code == 2
    assert broken.err.startswith(f"error: {anchor}: {name} has NaN or infinite values")


def test_verify_with_a_tolerance(tmp_path):
    source, anchor = pair(tmp_path, BERT)
    report = run("verify", source, anchor, "--json").json
    difference = report["relative_float64"]
    assert run("verify", source, anchor, "--tolerance", difference * 1.01).code == 0
    assert run("verify", source, anchor, "--tolerance", difference * 0.99).code == 1
    assert run("verify", source, source, "--tolerance", 0).code == 0


def test_inspect(tmp_path):
    source, _ = pair(tmp_path, "gpt2/GPT2LMHeadModel")
    finished = run("inspect", source)
    assert finished.code == 0
    parameters = sum(tensor.numel() for tensor in tensors_of(source).values())
    assert finished.out.startswith(f"{source}: GPT2LMHeadModel, {parameters:,} parameters, float32\n")
    assert "dimension of the symmetry group: " in finished.out
    assert "O(24) fixing 1" in finished.out
    spaces = {row["space"]: row for row in run("inspect", source, "--json").json["spaces"]}
    assert spaces["resid"]["dimension"] == 23 * 22 // 2
    assert spaces["qk"]["dimension"] == 8 * (6 * 5 // 2 + 1)  # two layers of four heads: a rotation and a scale
    assert not finished.reads


def test_inspect_list(monkeypatch):
    said = []
    monkeypatch.setattr("cobasin.presenting.progress.status", lambda text: said.append(text) or nullcontext())
    monkeypatch.setattr(inspection, "known_architectures", cache(inspection.known_architectures))
    finished = run("inspect", "--list")
    assert len(said) == 1  # it takes seconds
    assert finished.code == 0
    assert max(map(len, finished.out.splitlines())) <= 100
    rows = run("inspect", "--list", "--json").json["architectures"]
    listed = {row["architecture"]: row for row in rows}
    assert {name: row["model_type"] for name, row in listed.items()} == known()
    assert all(row["family"] + row["head"] == name for name, row in listed.items())
    assert all(row["family"][:12] in finished.out and row["head"][:27] in finished.out for row in rows)
    assert f"{len(rows)} classes" in finished.out
    assert listed["LlamaForCausalLM"]["groups"]["resid"] == "O(4096)"
    assert listed["LlamaForCausalLM"]["groups"]["vocab"] == "fixed"
    noted = {row["model_type"] for row in rows if row["note"] or not row["groups"]}
    assert noted == {
        "dbrx",
        "dots1",
        "lfm2_moe",
        "llama4",
        "t5gemma",
        "voxtral",
    }  # whose defaults no declaration covers
    assert all(row["lines"] > 1 for row in rows)
    assert "qk, vo: O(64) with scale" in finished.out


@pytest.fixture
def quick_demo(monkeypatch):
    monkeypatch.setattr(cobasin.demo, "run", lambda out, **options: {"out": str(out)})


def test_json_is_all_there_is_on_standard_output(tmp_path, quick_demo):
    source, anchor = pair(tmp_path, BERT)
    commands = {
        "match": (source, anchor, "--out", tmp_path / "matched"),
        "merge": (source, anchor, "--out", tmp_path / "merged"),
        "verify": (source, anchor),
        "inspect": (source,),
        "demo": ("--out", tmp_path / "demo"),
    }
    for verb, arguments in commands.items():
        finished = run(verb, *arguments, "--json")
        (line,) = finished.out.splitlines()
        assert isinstance(json.loads(line), dict)
        assert finished.err == ""


@pytest.mark.parametrize("verb", COMMAND.commands)
def test_help(verb):
    finished = run(verb, "--help")
    assert (finished.code, finished.err) == (0, "")
    assert f"Example: cobasin {verb} " in finished.out
    assert "--json" in finished.out
    assert verb in run("--help").out
    command = COMMAND.commands[verb]
    known = {option for parameter in command.params for option in parameter.opts}
    for example in re.findall(r"^Example: (.*)$", command.help, re.MULTILINE):
        assert example.startswith(f"cobasin {verb} ")
        assert set(re.findall(r"--[a-z][\w-]*", example)) <= known


@pytest.mark.parametrize(("rounds", "said"), [(1, "; 1 round, 2.0 s"), (3, "; 3 rounds, 2.0 s")])
def test_rounds_are_counted(rounds, said, capsys):
    figures = {"spaces": {}, "objective": [2, 1], "distance_before": 2, "distance_after": 1, "rounds": rounds}
    distances(figures | {"seconds": 2, "notes": [], "verification": None, "not_verified": "too large"})
    assert said in capsys.readouterr().out


def test_the_version():
    assert run("--version").out == f"cobasin {cobasin.__version__}\n"


def test_a_model_that_transformers_cannot_build_is_refused(tmp_path):
    folders = pair(tmp_path, BERT)
    for folder in folders:
        edit_json(folder / "config.json", lambda config: config.update(pad_token_id=1000))
    line = refused(tmp_path, "match", *folders, "--out", tmp_path / "out", unread=False)
    assert "BertForMaskedLM cannot be built by transformers from this config" in line


def test_names_that_look_like_markup(tmp_path):
    source, anchor = pair(tmp_path, BERT)
    odd = tmp_path / "[bold]é" / "x[" / "b]:smile: {y} %s"
    odd.parent.mkdir(parents=True)
    source = source.rename(odd)
    finished = run("match", source, anchor, "--out", tmp_path / "out [" / "b]")
    assert finished.code == 0
    assert finished.out.startswith(f"matched {source} to {anchor} (full)\n")
    assert f"`{source}`" in (tmp_path / "out [" / "b]" / "README.md").read_text()
    assert run("verify", source, tmp_path / "out [" / "b]").code == 0


def test_file_names_of_old_checkpoints(tmp_path):
    """BERT files of 2018: gamma and beta, no prefix, a buffer of positions."""
    source, anchor = pair(tmp_path, BERT)
    old = duplicate(source, "old")

    def rename(tensors):
        for name in list(tensors):
            new = re.sub(r"LayerNorm\.weight$", "LayerNorm.gamma", name)
            tensors[re.sub(r"LayerNorm\.bias$", "LayerNorm.beta", new)] = tensors.pop(name)
        tensors["bert.embeddings.position_ids"] = torch.arange(32)[None]

    edit_tensors(old, rename)
    edit_json(old / "config.json", lambda config: config.pop("dtype"))
    out = tmp_path / "out"
    assert run("match", old, anchor, "--out", out).code == 0
    assert tensors_of(out).keys() == tensors_of(old).keys()
    assert torch.equal(tensors_of(out)["bert.embeddings.position_ids"], torch.arange(32)[None])
    assert run("verify", source, out).code == 0


def test_heads_of_pre_training_in_the_file_of_a_bare_deberta(tmp_path):
    """The files of DeBERTa v3: what a bare model does not read reads its stream, which is fixed."""
    source, anchor = pair(tmp_path, "deberta-v2-shared/DebertaV2Model")
    unread = {"lm_predictions.lm_head.bias": torch.randn(40), "mask_predictions.dense.weight": torch.randn(24, 24)}
    edit_tensors(source, lambda tensors: tensors.update(unread))
    assert run("match", source, anchor, "--out", tmp_path / "out").code == 0
    found = tensors_of(tmp_path / "out")
    assert all(torch.equal(found[name], tensor) for name, tensor in unread.items())


def test_a_defect_ends_with_a_code_of_its_own(monkeypatch):
    """With 1, Python's own, verify says that functions differ."""

    def fails(*given, **more):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("cobasin.verification.verify", fails)
    finished = run("verify", "a", "b")
    assert finished.code == 70
    assert finished.err.startswith("Traceback")
    assert finished.err.endswith("ZeroDivisionError: a defect\n")


def test_a_large_model_is_not_run(tmp_path, monkeypatch):
    """Where one is large; the report, the card and what is printed say what can be done."""
    monkeypatch.setattr("cobasin.workflows.shared.VERIFIED_PARAMETERS", 10)
    source, anchor = pair(tmp_path, "bert/BertForMaskedLM")
    said = "not run on probe inputs (large model); check with cobasin verify"
    assert said in run("match", source, anchor, "--out", tmp_path / "out").out
    assert said in (tmp_path / "out" / "README.md").read_text()
    assert json.loads((tmp_path / "out" / "cobasin.json").read_text())["not_verified"] == said
