"""The gauge of an adapter itself: any invertible map between its factors."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import cobasin
from adapter_folders import ALL, BERT, GPT2, base, change, function, lora
from cobasin.adapters.folder import WEIGHTS_FILE
from cobasin.adapters.layers import type_adapter
from cobasin.adapters.match import products, rank_spec
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.matching.choice import Choice
from cobasin.matching.state import Match
from cobasin.matching.weights import ascend
from cobasin.symmetry.form import form_of
from command_line import refused, run
from model_folders import assert_bitwise


def scrambled(adapter, name, condition):
    """The same adapter with an invertible map between the factors of every layer."""
    folder = adapter.with_name(name)
    shutil.copytree(adapter, folder)
    tensors = load_file(folder / WEIGHTS_FILE)
    generator = torch.Generator().manual_seed(1)
    for down in [key for key in tensors if "_A" in key]:
        r = tensors[down].shape[0]
        u, v = (torch.linalg.qr(torch.randn(r, r, generator=generator, dtype=torch.float64)).Q for _ in "uv")
        matrix = u @ torch.logspace(0, -torch.log10(torch.tensor(condition)), r, dtype=torch.float64).diag() @ v
        up = down.replace("_A", "_B")
        tensors[down] = matrix @ tensors[down]
        tensors[up] = tensors[up] @ torch.linalg.inv(matrix)
    save_file(tensors, folder / WEIGHTS_FILE)
    return folder


def test_any_invertible_map_between_the_factors_is_undone(tmp_path):
    source = base(tmp_path, GPT2)
    adapter = lora(source, target_modules=["c_attn", "wte"], r=5, rank_pattern={"wte": 3})
    other = scrambled(adapter, "scrambled", 1e3)
    report = run("match", other, adapter, "--out", tmp_path / "out", "--json").json
    assert report["distance_before"] > 1
    assert report["distance_after"] < 1e-9 * report["distance_before"]
    found, expected = (load_file(folder / WEIGHTS_FILE) for folder in (tmp_path / "out", adapter))
    assert all((found[name] - expected[name]).abs().max() < 1e-9 for name in expected)
    assert change(function(source, tmp_path / "out"), function(source, adapter)) < 1e-9
    again = "apply", tmp_path / "out", other, "--out", tmp_path / "again"
    assert "an element of adapters moves their ranks and needs no base" in refused(tmp_path, *again, "--base", source)
    moved = run(*again, "--json").json
    assert moved["verification"]["reason"].startswith("relative difference")
    assert_bitwise(load_file(tmp_path / "again" / WEIGHTS_FILE), found)


def test_what_the_page_says_of_three(tmp_path, monkeypatch):
    """Its commands and its Python, on three ways to write one adapter, whose average is that adapter."""
    monkeypatch.chdir(tmp_path)
    source = base(tmp_path, GPT2)
    adapter = lora(source, "lora-3", target_modules=["c_attn"])
    scrambled(adapter, "lora-1", 1e3)
    scrambled(adapter, "lora-2", 10.0)
    page = (Path(__file__).parents[1] / "docs" / "adapters.md").read_text(encoding="utf-8")
    section = page.partition("## Two adapters of one base")[2].partition("\n## ")[0]
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE):
        if kind == "python":
            exec(block, {})
        else:
            assert [run(*line.split()[1:]).code for line in block.splitlines()] == [0, 0]
    assert change(function(source, tmp_path / "lora-merged"), function(source, adapter)) < 1e-9


def test_isometries_do_not_undo_an_invertible_map(tmp_path):
    adapter = lora(base(tmp_path, GPT2), target_modules=["c_attn"])
    ends = [cobasin.load_adapter(folder) for folder in (scrambled(adapter, "scrambled", 1e3), adapter)]
    spec = rank_spec(ends[0])
    assert {key[0] for key in form_of(spec, balanced=True).balanced} == {"rank_0", "rank_1"}
    match = Match.of(form_of(spec), Choice(frozenset({"rank", "scale"})), *ends)
    ascend(match)
    assert match.total > 10 * sum(float(tensor.square().sum()) for tensor in ends[1].values())


def test_matching_two_adapters_keeps_their_products(tmp_path):
    source = base(tmp_path, BERT)
    a, b = (cobasin.load_adapter(lora(source, f"lora-{seed}", seed, **ALL)) for seed in (1, 2))
    element = cobasin.match_adapters(a, b)
    assert element.report["objective"][-1] < element.report["objective"][0]
    moved = cobasin.transform_adapter(element, a)
    before, after = products(a), products(moved)
    assert all((before[name] - after[name]).norm() < 1e-9 * before[name].norm() for name in before)
    assert max(float((moved[name] - a[name]).abs().max()) for name in a) > 0.05


def test_an_untrained_module_comes_back_by_the_inverse(tmp_path):
    """With a B of zeros it has no balanced basis, which the inverse could not find either."""
    source = base(tmp_path, BERT)
    a, b = (lora(source, f"lora-{seed}", seed, target_modules=["query"]) for seed in (1, 2))
    tensors = load_file(a / WEIGHTS_FILE)
    tensors[min(name for name in tensors if "lora_B" in name)].zero_()
    save_file(tensors, a / WEIGHTS_FILE)
    element = cobasin.match_adapters(a, b)
    moved = cobasin.transform_adapter(element, a)
    back = cobasin.transform_adapter(element.inverse(), moved)
    assert all(float((back[name] - tensor).abs().max()) < 1e-12 for name, tensor in tensors.items())


def test_factors_that_their_dtype_does_not_hold_are_refused(tmp_path):
    """In the anchor's basis A is a million times as large, which is beyond float16."""
    source = base(tmp_path, GPT2)
    short = lora(source, "short", 0, target_modules=["c_attn"])
    other = lora(source, "other", 1, target_modules=["c_attn"])
    edit = {"lora_A": 1e6, "lora_B": 1e-6}
    for folder, change_of in (
        (short, lambda name, x: x.half()),
        (other, lambda name, x: x * edit[name.split(".")[-2]]),
    ):
        tensors = load_file(folder / WEIGHTS_FILE)
        save_file({name: change_of(name, tensor) for name, tensor in tensors.items()}, folder / WEIGHTS_FILE)
    line = refused(tmp_path, "match", short, other, "--out", tmp_path / "out", unread=False)
    assert "lora_A.weight, moved, does not fit torch.float16: its largest values become infinite" in line


def test_different_scalings_are_noted(tmp_path):
    source = base(tmp_path, BERT)
    a = lora(source, "lora-1", 1, **ALL)
    b = lora(source, "lora-2", 2, **ALL)
    assert cobasin.match_adapters(a, b).report["notes"] == []
    config = json.loads((b / "adapter_config.json").read_text())
    changes = {"lora_alpha": 32, "use_rslora": True, "alora_invocation_tokens": [5, 6]}
    (b / "adapter_config.json").write_text(json.dumps(config | changes))
    alpha, root, tokens = cobasin.match_adapters(a, b).report["notes"]
    assert alpha.startswith(f"the adapters scale what they add by different lora_alpha, {config['lora_alpha']} and 32")
    assert "use_rslora: None and True" in root
    assert "alora_invocation_tokens: None and [5, 6]" in tokens


@pytest.mark.parametrize("missing", ["A", "B"])
def test_half_a_module_is_refused(tmp_path, missing):
    source = base(tmp_path, BERT)
    a, b = (lora(source, f"lora-{seed}", seed, target_modules=["query"]) for seed in (1, 2))
    for folder in (a, b):
        tensors = load_file(folder / WEIGHTS_FILE)
        tensors.pop(min(name for name in tensors if f"lora_{missing}" in name))
        save_file(tensors, folder / WEIGHTS_FILE)
    line = refused(tmp_path, "match", a, b, "--out", tmp_path / "out")
    assert f"{a}: the lora_{missing} of base_model.model." in line
    assert "layer.0.attention.self.query is missing or no matrix" in line


def test_factors_of_two_ranks_are_refused(tmp_path):
    source = base(tmp_path, BERT)
    adapter = lora(source, "lora", target_modules=["query"], r=2)
    tensors = load_file(adapter / WEIGHTS_FILE)
    short = min(name for name in tensors if "lora_A" in name)
    save_file(tensors | {short: tensors[short][:1].clone()}, adapter / WEIGHTS_FILE)
    line = refused(tmp_path, "match", adapter, adapter, "--out", tmp_path / "out")
    assert f"{adapter}: {short.replace('lora_A', 'lora_B')} has shape (24, 2), but the other factor has rank 1" in line


def test_names_as_they_are_in_memory_are_refused(tmp_path):
    source = base(tmp_path, BERT)
    adapter = lora(source, "lora", target_modules=["query"])
    tensors = load_file(adapter / WEIGHTS_FILE)
    save_file({name.replace(".weight", ".default.weight"): x for name, x in tensors.items()}, adapter / WEIGHTS_FILE)
    line = refused(tmp_path, "match", adapter, adapter, "--out", tmp_path / "out")
    assert "query.lora_A.default.weight is no name that PEFT writes" in line


def test_a_tensor_that_is_there_twice_is_refused(tmp_path):
    source = base(tmp_path, BERT)
    adapter = lora(source, "lora", target_modules=["query"])
    tensors = load_file(adapter / WEIGHTS_FILE)
    name = min(tensors)
    twice = name.removeprefix("base_model.model.")
    save_file(tensors | {twice: tensors[name].clone()}, adapter / WEIGHTS_FILE)
    with pytest.raises(InputError, match="are both for one tensor; remove one of them") as found:
        type_adapter(cobasin.load_adapter(adapter), Typed.of(cobasin.load(source)).spec)
    assert f"{name} and {twice}" in str(found.value)
    save_file(tensors | {name.removesuffix(".weight"): tensors[name].clone()}, adapter / WEIGHTS_FILE)
    assert "query is there twice" in refused(tmp_path, "match", adapter, adapter, "--out", tmp_path / "out")


def test_an_adapter_that_was_not_saved_whole_is_refused(tmp_path):
    source = base(tmp_path, BERT)
    plain, dora = (lora(source, f"dora-{on}", target_modules=["query"], use_dora=on) for on in (False, True))
    tensors = load_file(dora / WEIGHTS_FILE)
    save_file({name: x for name, x in tensors.items() if "magnitude" not in name}, dora / WEIGHTS_FILE)
    with pytest.raises(
        InputError, match=r"dora-True: use_dora is set, but the lora_magnitude_vector of \S+ is missing"
    ):
        type_adapter(cobasin.load_adapter(dora), Typed.of(cobasin.load(source)).spec)
    save_file({}, plain / WEIGHTS_FILE)
    line = refused(tmp_path, "match", plain, plain, "--out", tmp_path / "out")
    assert f"{plain}: adapter_model.safetensors holds no lora_A and lora_B" in line


def test_adapters_that_do_not_fit_together(tmp_path):
    source = base(tmp_path, BERT)
    a, b = lora(source, "a", target_modules=["query"]), lora(source, "b", target_modules=["query"], r=2)
    line = refused(tmp_path, "match", a, b, "--out", tmp_path / "out")
    assert "query.lora_A.weight is (3, 24) in" in line
    assert "and (2, 24) in" in line
    text = "is an adapter, " + str(source) + " is none: match two models, or two adapters of one base"
    assert text in refused(tmp_path, "match", a, source, "--out", tmp_path / "out")
    assert text in refused(tmp_path, "match", source, a, "--out", tmp_path / "out")
    for option in (("--resume",), ("--device", "cpu"), ("--method", "activations"), ("--part", "1/2")):
        line = refused(tmp_path, "match", a, a, "--out", tmp_path / "out", *option)
        assert "only --symmetry, --out, --overwrite and --json go with them" in line
    assert "go with method learned" in refused(tmp_path, "match", a, a, "--out", tmp_path / "out", "--steps", 3)
    for option in (("--symmetry", "ffn"), ("--layers", "0")):
        line = refused(tmp_path, "match", a, a, "--out", tmp_path / "out", *option)
        assert "matched by any invertible map of their ranks" in line
