"""`cobasin merge --dry-run`: what a merge would do, with the right numbers, and without reading a tensor."""

import re
import shutil

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cobasin.checkpoints.checkpoint import load
from cobasin.finding.common_form import APART
from cobasin.fusion.registry import find
from command_line import refused, run, snapshot, tensors_of
from merge_cases import CLASSIFIER, METHODS, recipe, roles, saved, token_rows
from tiny_models import model

LLAMA = "llama-gqa/LlamaForCausalLM"


def plan(folder, *arguments):
    """The plan as JSON; nothing is read or written."""
    before = snapshot(folder)
    finished = run("merge", *arguments, "--dry-run", "--json")
    assert finished.err == ""
    assert finished.reads == []
    assert snapshot(folder) == before
    return finished.json


def size(folder):
    return sum(tensor.nbytes for tensor in tensors_of(folder).values())


@pytest.mark.parametrize("symmetry", ["none", "residual-order", "full"])
@pytest.mark.parametrize(
    "case", [CLASSIFIER, "gpt2/GPT2LMHeadModel", "llama-mqa-tied/LlamaForCausalLM", "mixtral/MixtralForCausalLM"]
)
def test_the_numbers_are_those_of_the_merge(tmp_path, case, symmetry):
    folders = saved(tmp_path, case, 2)
    found = plan(tmp_path, *folders, "--match", symmetry)
    assert run("merge", *folders, "--match", symmetry, "--out", tmp_path / "out").code == 0
    written = tensors_of(tmp_path / "out")
    assert found["tensors"] == len(written) == sum(group["tensors"] for group in found["groups"])
    assert found["parameters"] == sum(tensor.numel() for tensor in written.values())
    assert found["bytes_written"] == size(tmp_path / "out")
    assert found["bytes_read"] == sum(map(size, folders))
    untied = "tied" in case or "gpt2" in case
    notes = ["the output head is untied from the embedding"] if untied and symmetry == "full" else []
    assert found["notes"] == notes
    assert ("matching" in found["memory"]) == (symmetry != "none")


def test_memory_is_that_of_what_is_moved(tmp_path):
    """An FFN's tensors are smaller than the embedding here, and so are its tables than those of the stream."""
    *folders, third = saved(tmp_path, CLASSIFIER, 3)
    largest = max(tensor.numel() for tensor in tensors_of(folders[0]).values())
    plain, ffn, full = (plan(tmp_path, *folders, "--match", symmetry)["memory"] for symmetry in ("none", "ffn", "full"))
    assert plain == {"fusing": 2 * 4 * largest}
    assert plain["fusing"] < ffn["fusing"] < full["fusing"] == 4 * 4 * largest
    assert plain["fusing"] < ffn["matching"] < full["matching"] < 1e7
    assert plan(tmp_path, *folders, "--method", "karcher", "--match", "none")["memory"] == plain
    three = plan(tmp_path, *folders, third, "--match", "full")["memory"]
    assert three["fusing"] == 5 * 4 * largest


def test_what_streams_have_moved_is_held_while_heads_are_matched(tmp_path, monkeypatch):
    """Tensors of attention, the largest thing here, and no more of them than may be held."""
    wide = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 96}
    config = model(LLAMA).config
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        LlamaForCausalLM(LlamaConfig(**{**config.to_dict(), **wide})).save_pretrained(folder)
    first = re.compile(r"model\.layers\.0\.self_attn\.[qkvo]_proj\.weight")
    attention = sum(4 * tensor.numel() for name, tensor in tensors_of(folders[0]).items() if first.fullmatch(name))

    def matching(symmetry, held):
        monkeypatch.setattr("cobasin.merging.plan.HELD", held)
        return plan(tmp_path, *folders, "--match", symmetry)["memory"]["matching"]

    none, some, whole = (matching("full", held) for held in (0, 1000, 1 << 28))
    assert (some - none, whole - none) == (1000, attention)
    without = "ffn,heads,attention,scale"
    assert matching(without, 1 << 28) == matching(without, 0)


def test_experts_are_held_one_by_one_where_nothing_moves_them(tmp_path):
    folders = saved(tmp_path, "mixtral/MixtralForCausalLM", 2)
    tensors = tensors_of(folders[0])
    expert = max(tensor.numel() for name, tensor in tensors.items() if "experts" in name)
    plain, ffn = (plan(tmp_path, *folders, "--match", symmetry)["memory"] for symmetry in ("none", "ffn"))
    assert plain == {"fusing": 2 * 4 * max(tensor.numel() for tensor in tensors.values())}
    assert ffn["fusing"] >= 4 * 4 * expert * 2


def test_the_numbers_of_another_dtype_and_of_several_heads(tmp_path):
    folders = saved(tmp_path, CLASSIFIER, 2)
    model(CLASSIFIER, 2, torch.float32).half().save_pretrained(folders[1])
    whole = size(folders[0])
    for keys, expected in (
        ({}, whole),
        ({"dtype": "bfloat16"}, whole // 2),
        ({"dtype": "float16", "out_dtype": "float64"}, whole * 2),
        ({"head": str(folders[1])}, whole // 2),  # in the place of the second
        ({"head": "keep"}, whole * 3 // 2),
        ({"head": "keep", "out_dtype": "float32"}, whole * 2),
    ):
        path = recipe(tmp_path / "recipe.yaml", "linear", folders, **keys)
        found = plan(tmp_path, path)
        assert found["bytes_written"] == expected
        assert found["bytes_read"] == whole * 3 // 2
        out = tmp_path / "out"
        assert run("merge", path, "--out", out, "--overwrite").code == 0
        heads = [out / name for name in ("0", "1")] if keys.get("head") == "keep" else [out]
        assert sum(map(size, heads)) == expected


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_plan(tmp_path, name):
    method = find(name)
    models, base = roles(method, saved(tmp_path, CLASSIFIER, 3))
    rows = token_rows(tmp_path / "rows.jsonl")
    keys = {} if base is None else {"base_model": str(base)}
    keys |= {"statistics": {"data": {"path": str(rows)}, "samples": 5, "cache": "kept"}} if method.statistics else {}
    keys |= {"parameters": {"t": 0.25}} if name in ("slerp", "nearswap") else {}
    path = recipe(tmp_path / "recipe.yaml", name, models, **keys, match="full")
    found = plan(tmp_path, path)
    assert found["method"] == name
    assert found["base"] == keys.get("base_model")
    assert found["models"] == [*map(str, models), *([] if base is None else [str(base)])]
    (group,) = found["groups"]
    assert group["first"] == "bert.embeddings.word_embeddings.weight"
    assert group["parameters"].keys() == method.parameters.keys()
    text = run("merge", path, "--dry-run").out
    assert text.startswith(
        f"{name} of {len(found['models'])} models (BertForSequenceClassification), matched (full, by"
    )
    assert f"{group['tensors']} tensors, 9,474 parameters; read " in text
    if method.statistics:
        assert found["statistics"] == {
            "kind": method.statistics,
            "rows": {str(model): 5 for model in models},
            "cache": None if name == "regmean++" else "kept",
        }
        kept = "" if name == "regmean++" else "; kept in kept"
        assert f"first collected on data: 5 rows for {models[0]}, 5 rows for {models[1]}{kept}\n" in text
        assert found["memory"]["statistics"] > 9474 * 4
    else:
        assert found["statistics"] is None
        assert "collected" not in text


def test_parameters_are_shown_by_tensor(tmp_path):
    folders = saved(tmp_path, LLAMA, 2)
    weight = [{"filter": "mlp", "value": [0.1, 0.3]}, {"value": 20258}]
    path = recipe(tmp_path / "recipe.yaml", "linear", folders, [{"weight": weight}, {}], match="full")
    found = plan(tmp_path, path)
    values = {group["first"]: (group["tensors"], group["parameters"]["weight"]) for group in found["groups"]}
    assert values == {
        "model.embed_tokens.weight": (15, [20258.0, 1.0]),
        "model.layers.0.mlp.gate_proj.weight": (3, [0.1, 1.0]),
        "model.layers.1.mlp.gate_proj.weight": (3, [0.3, 1.0]),
    }
    lines = run("merge", path, "--dry-run").out.splitlines()
    assert lines[0].endswith(", matched (full, by weights) to their medoid")
    assert any("model.layers.1.mlp.gate_proj.weight" in line and "0.3, 1" in line for line in lines)
    assert any("model.embed_tokens.weight" in line and "20258, 1" in line and "true" in line for line in lines)


def test_many_combinations_are_cut(tmp_path):
    folders = saved(tmp_path, CLASSIFIER, 2)
    weight = [{"filter": name, "value": i + 1} for i, name in enumerate(tensors_of(folders[0]))]
    path = recipe(tmp_path / "recipe.yaml", "linear", folders, [{"weight": weight}, {}])
    assert len(plan(tmp_path, path)["groups"]) == 41
    assert "and 21 more combinations of parameters (--json has them all)\n" in run("merge", path, "--dry-run").out


def test_notes_and_heads_are_shown(tmp_path):
    folders = saved(tmp_path, CLASSIFIER, 2)
    keys = {"parameters": {"int8_mask": True}, "statistics": {"data": {"path": "x"}}}
    path = recipe(tmp_path / "recipe.yaml", "linear", folders, **keys)
    text = run("merge", path, "--dry-run", "--keep-heads").out
    assert "task head: one folder for that of every model\n" in text
    assert "note: int8_mask has no effect\n" in text
    assert "note: statistics have no effect: linear needs none\n" in text
    assert f"task head: {folders[1]}\n" in run("merge", path, "--dry-run", "--head-from", folders[1]).out


@pytest.mark.parametrize("symmetry", ["none", "ffn"])
def test_notes_are_those_of_the_merge(tmp_path, symmetry):
    """On a base without the head, a model that is given twice, and dtypes that are finer than those of the result."""
    a, b = saved(tmp_path, CLASSIFIER, 2)
    again, base = shutil.copytree(a, tmp_path / "again"), tmp_path / "base"
    model("bert/BertModel", 0, torch.bfloat16).save_pretrained(base)
    rest = ("--base", base, "--method", "task_arithmetic", "--match", symmetry)
    planned = plan(tmp_path, a, b, again, *rest)["notes"]
    for text in ("are the same model", "coarser than those of", "taken for zero"):
        assert len([note for note in planned if text in note]) == 1
    report = run("merge", a, b, again, *rest, "--out", tmp_path / "out", "--json").json
    found = {APART} if symmetry == "ffn" else set()  # by matching, which a plan does not do
    assert {*planned} | found == {*report["notes"]}.union(*(match["notes"] for match in report["matches"]))


def test_what_headers_tell_is_refused(tmp_path):
    folders = saved(tmp_path, CLASSIFIER, 2)
    other = tmp_path / "other"
    model(LLAMA).save_pretrained(other)
    for arguments, text in (
        ((*folders, tmp_path / "missing"), "missing: no such folder"),
        ((folders[0], other), "only models of one architecture match"),
        ((*folders, "--weights", "1,-1"), "the weights 1, -1 sum to 0"),
        ((*folders, "--match", "fool"), "'fool' is unknown"),
    ):
        assert text in refused(tmp_path, "merge", *arguments, "--dry-run")


def test_what_the_run_refuses_is_refused_before(tmp_path):
    """Nothing free, work that is not shared, a head that matching unties and no weight is positive for, a cache."""
    folders = saved(tmp_path, LLAMA, 2)
    rows = token_rows(tmp_path / "rows.jsonl")
    alone = [{"filter": "lm_head", "value": -1.0}, {"value": 1.0}]
    tied = saved(tmp_path / "tied", "gpt2/GPT2LMHeadModel", 2)
    for models, keys, arguments, text in (
        (folders, {"match": {"symmetry": "experts"}}, (), "leaves nothing free"),
        (folders, {"match": {"symmetry": "residual", "layers": "0"}}, (), "leaves nothing free"),
        (folders, {"match": {"method": "learned"}}, ("--part", "1/2"), "method learned runs models, which is not"),
        (tied, {"match": "full"}, (), "lm_head.weight: the weights -1, 1 sum to 0"),
        (folders, {"statistics": {"data": {"path": str(rows)}, "cache": str(rows)}}, (), f"{rows} is a file"),
    ):
        own = [{"weight": alone}, {"weight": 1.0}] if models is tied else None
        path = recipe(tmp_path / "recipe.yaml", "fisher" if "statistics" in keys else "linear", models, own, **keys)
        assert text in refused(tmp_path, "merge", path, "--dry-run", *arguments)
        assert text in refused(tmp_path, "merge", path, "--out", tmp_path / "out", *arguments, unread=False)


def test_a_tied_model_that_is_given_twice_stays_tied(tmp_path):
    (folder,) = saved(tmp_path, "gpt2/GPT2LMHeadModel", 1)
    planned = run("merge", folder, folder, "--dry-run", "--json").json
    assert run("merge", folder, folder, "--out", tmp_path / "out").code == 0
    assert planned["tensors"] == len(load(tmp_path / "out").headers)
    assert not any("untied" in note for note in planned["notes"])


def test_how_the_models_are_matched(tmp_path):
    folders = saved(tmp_path, CLASSIFIER, 2)
    rows = token_rows(tmp_path / "rows.jsonl")
    match = {"symmetry": "ffn,heads", "layers": "0-1", "method": "activations", "data": {"path": str(rows)}}
    path = recipe(tmp_path / "recipe.yaml", "linear", folders, match=match | {"anchor": str(folders[1])})
    how = f", matched (ffn,heads, by activations, layers 0-1) to {folders[1]}\n"
    assert how in run("merge", path, "--dry-run").out
    for change, text in (
        ({"layers": "2"}, "layer 2 does not exist: the model has layers 0 to 1"),
        ({"data": {"path": "missing.jsonl"}}, "missing.jsonl: no such file or folder"),
        ({"method": "learned", "samples": 1}, "1 is too few"),
        ({"method": "learned"}, "symmetry 'ffn,heads' frees only orders here"),
    ):
        path = recipe(tmp_path / "recipe.yaml", "linear", folders, match=match | change)
        assert text in refused(tmp_path, "merge", path, "--dry-run")
        assert text in refused(tmp_path, "merge", path, "--out", tmp_path / "out")
    # learning moves a stream whose norms fold, and only that: what it can do is decided by all forms
    vits = saved(tmp_path / "vits", "vit/ViTForImageClassification", 2)
    path = recipe(tmp_path / "recipe.yaml", "linear", vits, match={"symmetry": "residual", "method": "learned"})
    assert run("merge", path, "--dry-run").code == 0


def test_an_output_is_not_asked_for(tmp_path):
    folders = saved(tmp_path, CLASSIFIER, 2)
    out = tmp_path / "out"
    plan(tmp_path, *folders, "--out", out)
    assert not out.exists()
    (folders[0].parent / "full").mkdir()
    (folders[0].parent / "full" / "file").touch()
    for options, text in (
        (("--out", folders[0]), "lies in the input folder"),
        (("--out", folders[0].parent / "full"), "is not empty"),
        (("--engine", "bogus"), "expected local or ray"),
        (("--part", "9/2"), "9/2"),
        (("--address", "head:6379"), "is that of a Ray cluster; it goes with --engine ray"),
        (
            ("--engine", "ray", "--keep-heads"),
            "several folders, which is not shared: leave out --part and --engine ray",
        ),
        (("--repair", "--resume"), "repair and heal keep no state"),
    ):
        assert text in refused(tmp_path, "merge", *folders, *options, "--dry-run")
    assert "--out is missing: name the folder to write, or ask for the plan with --dry-run" in refused(
        tmp_path, "merge", *folders
    )
