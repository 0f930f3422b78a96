"""Recipes, options and models that `cobasin merge` refuses, runs that are stopped: nothing is written."""

import os
import shutil
from contextlib import contextmanager

import pytest
import torch

from cobasin.presenting import progress
from command_line import WEIGHTS, duplicate, edit_tensors, near, refused, run, snapshot, stock, tensors_of
from merge_cases import CLASSIFIER, recipe, saved, token_rows

QUERY = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.fixture
def berts(tmp_path):
    return saved(tmp_path, CLASSIFIER, 3)


# options


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--method", "ties"), "--method goes with models; in {} write it under merge_method"),
        (("--weights", "1,2"), "--weights goes with models; in {} write it under parameters"),
        (("--seed", "3"), "--seed goes with models; in {} write it under seed"),
        (("--set", "normalize=no"), "--set goes with models; in {} write it under parameters"),
        (("--base", "x"), "--base goes with models; in {} write it under base_model"),
        (("--head-from", "x"), "--head-from x: expected one of the models to merge: "),
        (
            ("other",),
            "{} is a recipe: it names all models itself, so give none beside it; the folder to write is --out FOLDER",
        ),
    ],
)
def test_options_that_do_not_go_with_a_recipe(tmp_path, berts, options, text):
    path = recipe(tmp_path / "recipe.yaml", "linear", berts)
    assert text.format(path) in refused(tmp_path, "merge", path, *options, "--out", tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--set", "normalize"), "--set normalize: expected NAME=VALUE, like density=0.5"),
        (("--set", "=1"), "--set =1: expected NAME=VALUE"),
        (("--set", "normalize="), "--set normalize=: expected NAME=VALUE"),
        (("--set", "normalize=[1"), "--set normalize=[1: '[1' is not a value"),
        (("--set", "weight=&a [*a]"), "merge: a list or mapping holds itself, or is nested too deeply"),
        (("--set", "weight=" + "[" * 3000), "[[[[' is not a value"),
        (("--set", "weight=2024-02-30"), "--set weight=2024-02-30: '2024-02-30' is not a value"),
        (("--set", "weight=!!bool abc"), "--set weight=!!bool abc: '!!bool abc' is not a value"),
        (("--set", "normalize=1", "--set", "normalize=0"), "--set normalize=0: normalize is set twice"),
        (("--set", "normalise=1"), "normalise: linear has no such parameter; did you mean 'normalize'?"),
        (("--set", "weight=heavy"), "weight: 'heavy': "),
        (("--weights", ""), "weights '': expected numbers like 0.7,0.3"),
        (("--method", "slurp"), "merge method 'slurp' is unknown; did you mean 'slerp'?"),
        (("--method", "TIES"), "merge method 'TIES' is unknown; did you mean 'ties'?"),
        (("--method", "slerp"), "slerp needs t; write it under parameters, or --set t=VALUE"),
        (("--method", "slerp", "--set", "t=1.5"), "t: 1.5: expected a number up to 1"),
        (("--method", "ties"), "ties merges what the models have learned since their base: name it with --base"),
        (("--method", "ties", "--base", "{2}", "--set", "density=0"), "density: 0: expected a number above 0"),
        (("--method", "dare_ties", "--base", "{2}", "--set", "density=1.2"), "density: 1.2: expected a number up to 1"),
        (("--method", "ties", "--base", "no-such-base"), "no-such-base: no such folder"),
        (("--method", "nuslerp", "--base", "{2}", "--weights", "0,0"), "weight: the weights 0, 0 sum to 0"),
        (("--method", "multislerp", "--base", "{2}", "--weights", "0,0"), "weight: the weights 0, 0 sum to 0"),
        (
            ("--method", "della", "--base", "{2}", "--set", "density=0.9"),
            "word_embeddings.weight: entries would be kept with probabilities of 0.75 to 1.05, density less and plus "
            "epsilon; expected more than 0 and at most 1",
        ),
        (("--base", "{2}"), "is none of the models, and linear has no base"),
        (("--method", "regmean"), "regmean needs data: write a recipe, with statistics: {{data: {{path: FILE}}}}"),
        (("--method", "regmean", "--data", "rows.jsonl"), "FILE}}}}; --data is what --repair and --heal read"),
        (("--anchor", "nobody"), "match.anchor 'nobody': expected medoid, consensus, {0}, {1}"),
        (("--anchor", "consensus", "--match", "none"), "nothing is matched with symmetry none"),
        (("--device", "cuda:99"), "device 'cuda:99' cannot be used here"),
        (("--device", "gpu"), "match.device: 'gpu'"),
        (("--device", "cpu", "--match", "none"), "match.device: models are not matched, repaired or healed here"),
        (("--weights", "1e39,1"), "a weight of 1e+39 is beyond float32"),
    ],
    ids=lambda value: " ".join(value)[:80] if isinstance(value, tuple) else "",
)
def test_options_that_cannot_be_used(tmp_path, berts, options, text):
    options = [option.format(*berts) for option in options]
    line = refused(tmp_path, "merge", *berts[:2], *options, "--out", tmp_path / "out")
    assert text.format(*berts) in line


# recipes that cannot be used


def test_files_that_are_no_recipes(tmp_path, berts):
    a, *_ = berts
    path = tmp_path / "recipe.yaml"
    for text, message in (
        ("models: [", "recipe.yaml, line 1: "),
        ("- a\n- b\n", "holds a list"),
        ("", "is empty"),
        ("merge_method: linear\n", "expected one of models, slices and modules, got none"),
        ("models: [{model: x}]\n", "merge_method is missing"),
        ("merge_method: passthrough\nmodels: [{model: x}, {model: y}]\n", "passthrough stacks layers of models"),
        (f"merge_method: linear\nmodels: [{{modle: {a}}}]\n", "unknown key 'modle'; did you mean 'model'?"),
        (
            f"merge_mehtod: linear\nmodels: [{{model: {a}}}]\n",
            "unknown key 'merge_mehtod'; did you mean 'merge_method'?",
        ),
    ):
        path.write_text(text)
        assert message in refused(tmp_path, "merge", path, "--out", tmp_path / "out")
    path.unlink()
    assert f"{path}: cannot be read: No such file" in refused(tmp_path, "merge", path, "--out", tmp_path / "out")
    path.mkdir()
    assert f"{path}: has no config.json" in refused(tmp_path, "merge", path, a, "--out", tmp_path / "out")
    line = refused(tmp_path, "merge", tmp_path / "recipe", "--out", tmp_path / "out")
    assert "a merge needs two models or more, got 1; a recipe is a file named *.yaml" in line


def test_an_output_that_would_replace_the_recipe(tmp_path, berts):
    work = tmp_path / "work"
    work.mkdir()
    path = recipe(work / "recipe.yaml", "linear", berts)
    line = refused(tmp_path, "merge", path, "--out", work, "--overwrite")
    assert f"{work}: holds {path}, which is read; choose another folder" in line
    rows = token_rows(work / "rows.jsonl")
    statistics, match = {"data": {"path": str(rows)}}, {"method": "activations", "data": {"path": str(rows)}}
    for method, keys in (("regmean", {"statistics": statistics}), ("linear", {"match": match})):
        elsewhere = recipe(tmp_path / "recipe.yaml", method, berts, **keys)
        line = refused(tmp_path, "merge", elsewhere, "--out", work, "--overwrite")
        assert f"{work}: holds {rows}, which is read" in line
    data = work / "rows.yaml"
    data.write_text(f"path: {tmp_path / 'rows.jsonl'}\n")
    token_rows(tmp_path / "rows.jsonl")
    line = refused(tmp_path, "merge", *berts, "--heal", 5, "--data", data, "--out", work, "--overwrite")
    assert f"{work}: holds {data}, which is read" in line
    for where, text in (
        (berts[0], "lies in the input folder"),
        (tmp_path, "holds the input folder"),
        (path, "is a file"),
    ):
        assert text in refused(tmp_path, "merge", path, "--out", where, "--overwrite")


@pytest.mark.parametrize("symmetry", ["none", "full"])
@pytest.mark.parametrize("method", ["slerp", "dare_linear", "dare_ties", "karcher"])
@pytest.mark.parametrize("role", ["model", "base"])
def test_one_nan(tmp_path, berts, method, symmetry, role):
    a, b, _ = berts
    broken = a if role == "base" else b
    edit_tensors(broken, lambda tensors: tensors[QUERY][3].__setitem__(5, float("nan")))
    keys = {"parameters": {"t": 0.5}} if method == "slerp" else {}
    keys |= {} if method == "karcher" else {"base_model": str(a)}
    path = recipe(tmp_path / "recipe.yaml", method, [a, b], match=symmetry, **keys)
    line = refused(tmp_path, "merge", path, "--out", tmp_path / "out", unread=False)
    assert f"{broken}: {QUERY} has NaN or infinite values" in line


def test_values_that_overflow(tmp_path, berts):
    a, b, _ = berts
    stock(a).half().save_pretrained(a)
    path = recipe(tmp_path / "recipe.yaml", "linear", [a, b], parameters={"weight": 1e6, "normalize": False})
    line = refused(tmp_path, "merge", path, "--out", tmp_path / "out", unread=False)
    assert "does not fit torch.float16: its largest values become infinite; convert the models" in line
    path = recipe(
        tmp_path / "named.yaml", "linear", [b, b], dtype="float16", parameters={"weight": 1e6, "normalize": False}
    )
    line = refused(tmp_path, "merge", path, "--out", tmp_path / "out", unread=False)
    assert line.endswith("its largest values become infinite; name a dtype of wider range")


def test_different_vocabularies(tmp_path, berts):
    a, b, _ = berts
    for folder, text in ((a, "x\ny\n"), (b, "y\nx\n")):
        (folder / "vocab.txt").write_text(text)
    line = refused(tmp_path, "merge", recipe(tmp_path / "recipe.yaml", "linear", [a, b]), "--out", tmp_path / "out")
    assert f"the vocabularies differ ({b / 'vocab.txt'} and {a / 'vocab.txt'})" in line
    assert ". A merge brings models to one vocabulary if told to which (--tokenizer-source, or in a recipe); " in line
    larger = tmp_path / "larger"
    near(stock(a), vocab_size=45).save_pretrained(larger)
    line = refused(tmp_path, "merge", a, larger, "--out", tmp_path / "out")
    assert f"vocab has size 45 in {larger} and 40 in {a}. A merge brings models to one vocabulary" in line


def test_tied_and_untied(tmp_path):
    tied = saved(tmp_path, "gpt2/GPT2LMHeadModel", 1)[0]
    untied = duplicate(tied, "untied", tie_word_embeddings=False)
    edit_tensors(untied, lambda tensors: tensors.update({"lm_head.weight": tensors["transformer.wte.weight"] + 1}))
    assert run("merge", tied, untied, "--match", "none", "--out", tmp_path / "out").code == 0
    merged, expected = tensors_of(tmp_path / "out")["lm_head.weight"], tensors_of(tied)["transformer.wte.weight"] + 0.5
    assert torch.allclose(merged, expected, atol=1e-6)


# interrupted, and no place left


def interrupting(monkeypatch, error, after=3):
    """Stop the writing of tensors."""
    written = []

    @contextmanager
    def bar(text, total):
        def progress(size):
            written.append(size)
            if len(written) == after:
                raise error

        yield progress

    monkeypatch.setattr(progress, "bar", bar)


@pytest.mark.parametrize(("heads", "after"), [((), 3), (("--keep-heads",), 3), (("--keep-heads",), 50)])
def test_an_interrupted_run_leaves_nothing(tmp_path, berts, monkeypatch, heads, after):
    """Stopped in the first folder, and in the second."""
    before = snapshot(tmp_path)
    interrupting(monkeypatch, KeyboardInterrupt(), after)
    finished = run("merge", *berts[:2], *heads, "--match", "none", "--out", tmp_path / "out")
    assert finished.code == 130
    assert finished.err == "interrupted; no unfinished output was left behind\n"
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("heads", [(), ("--keep-heads",)])
def test_a_full_disk(tmp_path, berts, monkeypatch, heads):
    interrupting(monkeypatch, OSError(28, os.strerror(28)))
    line = refused(tmp_path, "merge", *berts[:2], *heads, "--match", "none", "--out", tmp_path / "out", unread=False)
    assert "cannot be written: No space left on device; free some space" in line


@pytest.mark.parametrize("match", ["none", "full"])
def test_a_file_beside_the_weights_that_no_model_could_be_loaded_with(tmp_path, berts, match):
    (berts[0] / "generation_config.json").write_text("[]")
    line = f"{berts[0] / 'generation_config.json'}: holds a list; expected a JSON object"
    assert line in refused(tmp_path, "merge", *berts, "--match", match, "--out", tmp_path / "out")
    run("merge", *berts[1:], "--match", match, "--out", tmp_path / "out")


def test_weights_that_are_damaged(tmp_path, berts):
    (berts[1] / WEIGHTS).write_bytes((berts[1] / WEIGHTS).read_bytes()[:-10])
    path = recipe(tmp_path / "recipe.yaml", "linear", berts)
    assert "truncated, corrupt or not safetensors" in refused(tmp_path, "merge", path, "--out", tmp_path / "out")
    shutil.rmtree(berts[1])
    assert f"{berts[1]}: no such folder" in refused(tmp_path, "merge", path, "--out", tmp_path / "out")
