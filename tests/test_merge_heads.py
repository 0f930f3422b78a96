"""Task heads: one folder a task, each with its own; or the head of one of the models."""

import json
import shutil
from itertools import product

import pytest
import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.finding.applying import transform
from cobasin.fusion.registry import find
from cobasin.merging.merge import merge
from cobasin.symmetry.element import Element
from cobasin.verification import verify
from command_line import duplicate, edit_tensors, near, pair, refused, run, snapshot, stock, tensors_of
from merge_cases import METHODS, PARAMETERS, recipe, saved, token_rows
from model_folders import assert_bitwise, names
from sampling import one_in
from tiny_models import model

BERT = "bert/BertForSequenceClassification"
CASES = [
    BERT,
    "roberta/RobertaForSequenceClassification",  # a head of two layers
    "vit/ViTForImageClassification",
    "gpt2/GPT2ForTokenClassification",
    "t5/T5ForSequenceClassification",
]


def tasks(folder, case, labels=(5, 3), dtype=torch.float32):
    """Near models of one architecture with their own numbers of labels."""
    original = model(case, 0, torch.float32)
    for i, count in enumerate(labels):
        near(original, 0.02 * (i + 1), num_labels=count).to(dtype).save_pretrained(folder / f"task{i}")
    return [folder / f"task{i}" for i in range(len(labels))]


def test_every_folder_has_the_tokenizer_that_is_named_and_no_other(tmp_path):
    first, second = tasks(tmp_path, CASES[0])
    for folder in (first, second):
        (folder / "vocab.txt").write_text("x")
    (second / "added_tokens.json").write_text("{}")
    path = recipe(tmp_path / "recipe.yaml", "linear", [first, second], tokenizer_source=str(first))
    assert run("merge", path, "--keep-heads", "--match", "none", "--out", tmp_path / "out").code == 0
    for name in ("task0", "task1"):
        assert (tmp_path / "out" / name / "vocab.txt").read_text() == "x"
        assert not (tmp_path / "out" / name / "added_tokens.json").exists()


def heads_of(tensors):
    return {name for name in tensors if name.split(".")[0] in ("classifier", "score", "classification_head")}


@pytest.mark.parametrize("symmetry", ["none", "full"])
@pytest.mark.parametrize("case", one_in(3, CASES))
def test_one_folder_a_task(tmp_path, case, symmetry):
    first, second = tasks(tmp_path, case)
    before, out = snapshot(tmp_path), tmp_path / "out"
    report = run("merge", first, second, "--keep-heads", "--match", symmetry, "--out", out, "--json").json
    assert before.items() <= snapshot(tmp_path).items()
    assert names(out) == ["task0", "task1"]
    assert report["heads"] == {"task0": str(first), "task1": str(second)}
    assert report["head"] == "keep"
    moved = [dict(tensors_of(first)), dict(tensors_of(second))]
    if symmetry == "full":
        moved[1] = dict(transform(Element.load(out / "task1" / "cobasin-1.safetensors"), second))
    found = [tensors_of(out / name) for name in ("task0", "task1")]
    heads = heads_of(found[0])
    assert heads
    for tensors, own in zip(found, moved, strict=True):
        assert_bitwise({name: tensors[name] for name in heads}, {name: own[name] for name in heads})
    body = set(found[0]) - heads
    assert_bitwise({name: found[0][name] for name in body}, {name: found[1][name] for name in body})
    for name in body:
        torch.testing.assert_close(found[0][name], (moved[0][name] + moved[1][name]) / 2, rtol=1e-5, atol=1e-6)
    for folder, parent, count in ((out / "task0", first, 5), (out / "task1", second, 3)):
        assert stock(folder).config.num_labels == count
        assert json.loads((folder / "cobasin.json").read_text()) == report
        card = (folder / "README.md").read_text()
        assert f"- `task0`: that of `{first}`\n- `task1`: that of `{second}`\n" in card
        assert f"| `{parent}` | 0.5 | {report['parents'][str(parent)]} |" in card


@pytest.mark.parametrize("case", CASES[:-1])
def test_all_of_the_weight_and_its_own_head_is_the_model(tmp_path, case):
    folders = tasks(tmp_path, case)
    first, second = merge(folders, weights=[0, 1], head="keep").checkpoints
    assert verify(load(folders[1]), second).same
    assert verify(load(folders[0]), first).same is False  # its head on the other's body


@pytest.mark.parametrize("name", one_in(2, [*METHODS]))
def test_every_method_keeps_heads_of_different_sizes(tmp_path, name):
    first, second, base = tasks(tmp_path, BERT, (5, 3, 2))
    rows = token_rows(tmp_path / "rows.jsonl")
    method = find(name)
    models = [first, second] if method.most != 1 else [second]
    merged = merge(
        models,
        name,
        base=(first if method.most == 1 else base) if method.takes_base else None,
        symmetry="ffn,heads",
        head="keep",
        statistics={"data": {"path": str(rows)}} if method.statistics else None,
        **PARAMETERS.get(name, {}),
    )
    counts = {first: 5, second: 3}  # both of them, too, where one is the base that the other is merged with
    for one, folder in zip(merged.checkpoints, counts, strict=True):
        own = tensors_of(folder)
        assert one["classifier.weight"].shape[0] == counts[folder]
        if name not in ("ot_wts", "ot_acts"):  # soft couplings move what reads
            assert float((one["classifier.weight"].norm() - own["classifier.weight"].norm()).abs()) < 1e-4
        assert all(bool(one[tensor].isfinite().all()) for tensor in one)


def test_heads_of_equal_labels_are_kept_too(tmp_path):
    source, anchor = pair(tmp_path, BERT)
    out = tmp_path / "out"
    assert run("merge", anchor, source, "--keep-heads", "--match", "none", "--out", out).code == 0
    slerp = tmp_path / "slerp"
    spherical = "--method", "slerp", "--set", "t=0.3", "--keep-heads", "--match", "none"
    assert run("merge", anchor, source, *spherical, "--out", slerp).code == 0
    assert names(slerp) == names(out) == [anchor.name, source.name]
    for merged, folder in product((out, slerp), (anchor, source)):
        found, own = tensors_of(merged / folder.name), tensors_of(folder)
        assert torch.equal(found["classifier.weight"], own["classifier.weight"])
    assert not torch.equal(*(tensors_of(out / name)["classifier.weight"] for name in ("anchor", "source")))


def test_a_head_that_scores_texts_has_no_labels(tmp_path):
    """Whatever a config says, which may be left from another task: the heads are compared and averaged."""
    first, second = tasks(tmp_path, "bert/BertForMultipleChoice")
    assert run("merge", first, second, "--match", "none", "--out", tmp_path / "out").code == 0
    mean, *ends = (tensors_of(folder)["classifier.weight"] for folder in (tmp_path / "out", first, second))
    assert torch.allclose(mean, (ends[0] + ends[1]) / 2)
    assert "label sets differ" not in run("match", second, first, "--out", tmp_path / "matched").out


def test_folders_of_equal_names_get_numbers(tmp_path):
    first, second = tasks(tmp_path, BERT)
    for folder, place in ((first, "x"), (second, "y")):
        shutil.copytree(folder, tmp_path / place / "checkpoint-100")
    models = tmp_path / "x" / "checkpoint-100", tmp_path / "y" / "checkpoint-100", duplicate(second, "checkpoint-100-1")
    out = tmp_path / "out"
    report = run("merge", *models, "--keep-heads", "--match", "none", "--out", out, "--json").json
    expected = ["checkpoint-100-0", "checkpoint-100-1", "checkpoint-100-1-2"]
    assert names(out) == expected
    assert report["heads"] == dict(zip(expected, map(str, models), strict=True))
    assert stock(out / "checkpoint-100-0").config.num_labels == 5


def test_odd_names(tmp_path, monkeypatch):
    first, second = tasks(tmp_path, BERT)
    first = first.rename(tmp_path / "a b: ü/c".replace("/", "|"))
    monkeypatch.chdir(second)
    out = tmp_path / "out"
    assert run("merge", ".", first, "--keep-heads", "--match", "none", "--out", out).code == 0
    assert names(out) == ["a_b__ü_c", "task1"]


def test_the_base_keeps_no_head_of_its_own(tmp_path):
    first, second, base = tasks(tmp_path, BERT, (5, 3, 2))
    out = tmp_path / "out"
    arguments = "merge", first, second, "--method", "task_arithmetic", "--base", base, "--match", "none"
    assert run(*arguments, "--keep-heads", "--out", out).code == 0
    assert names(out) == ["task0", "task1"]
    assert run(*arguments, "--head-from", base, "--out", tmp_path / "base-head").code == 0
    assert stock(tmp_path / "base-head").config.num_labels == 2
    line = refused(tmp_path, *arguments, "--out", tmp_path / "none")
    assert f"the task heads of {first} and {second} have different labels" in line
    assert "(--head-from MODEL), keep them all (--keep-heads)" in line


def test_a_recipe_may_ask_for_heads_and_the_command_line_for_others(tmp_path):
    first, second = tasks(tmp_path, BERT)
    path = recipe(tmp_path / "recipe.yaml", "linear", [first, second], head="keep")
    assert run("merge", path, "--out", tmp_path / "out").code == 0
    assert names(tmp_path / "out") == ["task0", "task1"]
    assert run("merge", path, "--head-from", f"{second}/", "--out", tmp_path / "one").code == 0
    assert stock(tmp_path / "one").config.num_labels == 3


@pytest.mark.parametrize(
    "case", ["bert/BertForMaskedLM", "bert/BertForQuestionAnswering", "llama-gqa/LlamaForCausalLM"]
)
def test_a_model_without_a_task_head_has_none_to_keep(tmp_path, case):
    folders = saved(tmp_path, case, 2)
    for options, what in ((["--keep-heads"], "keep"), (["--head-from", folders[1]], "take")):
        line = refused(tmp_path, "merge", *folders, *options, "--out", tmp_path / "out")
        assert f"{folders[0]} is a {case.split('/')[1]}: it has no task head to {what} (a head with labels)" in line
        assert "leave --head-from and --keep-heads (in a recipe head) out" in line


def test_one_choice_of_heads(tmp_path):
    folders = tasks(tmp_path, BERT)
    both = "--keep-heads", "--head-from", folders[0]
    assert "--keep-heads and --head-from: one of the two" in refused(
        tmp_path, "merge", *folders, *both, "--out", tmp_path / "out"
    )


def test_an_output_that_is_in_the_way(tmp_path):
    folders = tasks(tmp_path, BERT)
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("x")
    arguments = "merge", *folders, "--keep-heads", "--out", out
    assert f"{out}: is not empty" in refused(tmp_path, *arguments)
    assert run(*arguments, "--overwrite").code == 0
    assert names(out) == ["task0", "task1"]


def test_one_model_with_nan_leaves_no_folder(tmp_path):
    folders = tasks(tmp_path, BERT)
    edit_tensors(folders[1], lambda tensors: tensors["classifier.weight"][0].fill_(float("nan")))
    line = refused(
        tmp_path, "merge", *folders, "--keep-heads", "--match", "none", "--out", tmp_path / "out", unread=False
    )
    assert f"{folders[1]}: classifier.weight has NaN or infinite values" in line


def test_the_base_of_slerp_keeps_its_head_where_it_is_listed(tmp_path):
    first, second = tasks(tmp_path, BERT)
    path = recipe(tmp_path / "recipe.yaml", "slerp", [first, second], parameters={"t": 0.3})
    assert run("merge", path, "--keep-heads", "--match", "none", "--out", tmp_path / "out").code == 0
    for one in (first, second):
        own, merged = tensors_of(one), tensors_of(tmp_path / "out" / one.name)
        assert all(torch.equal(merged[name], own[name]) for name in heads_of(own))


@pytest.mark.parametrize("method", ["linear", "nuslerp"])
def test_weights_of_heads_that_are_kept_do_not_matter(tmp_path, method):
    models = tasks(tmp_path, BERT)
    weight = [{"filter": "classifier", "value": 0}, {"value": 1}]
    path = recipe(tmp_path / "recipe.yaml", method, models, parameters={"weight": weight})
    assert run("merge", path, "--keep-heads", "--match", "none", "--out", tmp_path / "out").code == 0
