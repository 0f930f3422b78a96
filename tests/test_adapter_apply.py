"""`cobasin apply`, and the adapters that it refuses."""

import json
import re
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from adapter_folders import BERT, VIT, base, change, function, lora
from cobasin.adapters.folder import ADAPTER_FILE, WEIGHTS_FILE, is_adapter, load_adapter
from cobasin.errors import InputError, NotProbed
from command_line import edit_json, refused, run
from model_folders import assert_bitwise
from tiny_models import model


@pytest.fixture(scope="module")
def matched(tmp_path_factory):
    """A small model, another one, the first matched to the second, and an adapter of the first; float32."""
    folder = tmp_path_factory.mktemp("matched")
    source = base(folder, VIT, torch.float32)
    model(VIT, 1, torch.float32).save_pretrained(folder / "anchor")
    assert run("match", source, folder / "anchor", "--out", folder / "new").code == 0
    lora(source, dtype=torch.float32, target_modules=["q_proj", "o_proj", "fc1"], modules_to_save=["classifier"])
    return folder


@pytest.mark.parametrize("element", ["new", "new/cobasin.safetensors"])
def test_apply_writes_an_adapter_that_peft_loads(matched, tmp_path, element):
    out = tmp_path / "moved"
    (matched / "lora" / "tokenizer.json").write_text("{}")
    report = run("apply", matched / element, matched / "lora", "--out", out, "--json").json
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        ADAPTER_FILE,
        WEIGHTS_FILE,
        "cobasin.json",
        "tokenizer.json",
    ]
    config = json.loads((out / ADAPTER_FILE).read_text())
    assert config["base_model_name_or_path"] == str(matched / "new")
    assert report["base"] == str(matched / "base")
    assert report["verification"]["same"] is True
    assert report["verification"]["relative_float64"] < 1e-9
    assert report["verification"]["noise_float64"] > 1e-9  # of float32, not of the float64 that it is verified in
    assert "rounded" not in report["verification"]
    assert json.loads((out / "cobasin.json").read_text()) == report
    assert "library_name: peft" in (out / "README.md").read_text()
    reference = function(matched / "base", matched / "lora")
    assert change(function(matched / "new", out), reference) < 1e-5
    assert change(function(matched / "new", matched / "lora"), reference) > 0.01
    assert "is not empty" in refused(tmp_path, "apply", matched / element, matched / "lora", "--out", out)
    again = run("apply", matched / element, matched / "lora", "--out", out, "--overwrite")
    assert again.out.startswith(f"moved {matched / 'lora'} by {matched / element}\nnote: ")
    assert again.out.endswith(f"written to {out}\n")


def test_what_the_adapters_dtype_does_not_hold_is_told(matched, tmp_path):
    coarse = load_file(matched / "lora" / WEIGHTS_FILE)
    shutil.copytree(matched / "lora", tmp_path / "coarse")
    save_file({name: tensor.bfloat16() for name, tensor in coarse.items()}, tmp_path / "coarse" / WEIGHTS_FILE)
    finished = run("apply", matched / "new", tmp_path / "coarse", "--out", tmp_path / "moved")
    assert "note: rounded to the dtypes of the file it is not surely the same function" in finished.out
    found = json.loads((tmp_path / "moved" / "cobasin.json").read_text())["verification"]
    assert found["relative_float64"] < 1e-9
    assert found["same"] is None


def test_apply_moves_a_model(matched, tmp_path):
    out = tmp_path / "out"
    report = run("apply", matched / "new", matched / "base", "--out", out, "--json").json
    assert report["verification"]["same"] is True
    assert_bitwise(load_file(out / "model.safetensors"), load_file(matched / "new" / "model.safetensors"))
    line = refused(tmp_path, "apply", matched / "new", matched / "base", "--out", tmp_path / "x", "--base", "y")
    assert "a base goes with an adapter" in line


def test_a_base_that_no_probe_fits(matched, tmp_path, monkeypatch):
    def refuse(*_):
        raise NotProbed("its inputs cannot be made up")

    monkeypatch.setattr("cobasin.verification.probe", refuse)
    report = run("apply", matched / "new", matched / "lora", "--out", tmp_path / "out", "--json").json
    assert report["not_verified"] == "not run on probe inputs: its inputs cannot be made up"
    assert report["verification"] is None


def test_what_is_read_is_not_replaced(matched):
    """The element's file, and the base: as it is given, or as the adapter names it."""
    apply = ("apply", matched / "new" / "cobasin.safetensors", matched / "lora", "--overwrite")
    named = json.loads((matched / "lora" / ADAPTER_FILE).read_text())["base_model_name_or_path"]
    assert named == str(matched / "base")
    for out, more in (("new", ()), ("base", ()), ("anchor", ("--base", matched / "anchor"))):
        line = refused(matched, *apply, "--out", matched / out, *more)
        assert "which is read; choose another folder" in line
    line = refused(matched, "apply", apply[1], matched / "base", "--overwrite", "--out", matched / "new")
    assert f"holds {apply[1]}, which is read" in line


def test_a_base_that_the_matched_model_was_not_made_of(tmp_path):
    """No norm of BERT is folded: its element says nothing of the model that it starts from."""
    source, new = base(tmp_path, BERT, torch.float32), tmp_path / "new"
    for seed, name in enumerate(("anchor", "other"), 1):
        model(BERT, seed, torch.float32).save_pretrained(tmp_path / name)
    assert run("match", source, tmp_path / "anchor", "--out", new).code == 0
    adapter = lora(source, dtype=torch.float32, target_modules=["query", "value"])
    other, out = tmp_path / "other", tmp_path / "out"
    line = refused(tmp_path, "apply", new, adapter, "--base", other, "--out", out, unread=False)
    assert f"{other} is not the model that the element starts from: moved, it is not {new}" in line
    assert run("apply", new, adapter, "--base", source, "--out", out).code == 0


def test_an_adapter_of_another_base(matched, tmp_path):
    changes = {"hidden_size": 28, "intermediate_size": 20}
    config = transformers.ViTConfig(**json.loads((matched / "base" / "config.json").read_text()) | changes)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "wide")
    wide = lora(tmp_path / "wide", target_modules=["q_proj"], dtype=torch.float32)
    line = refused(tmp_path, "apply", matched / "new", wide, "--out", tmp_path / "out", "--base", matched / "base")
    assert f"{wide} does not fit its base, a ViTForImageClassification: base_model.model.vit.layers.0" in line
    assert re.search(r"q_proj.lora_A.weight has shape \(3, 28\), but type 'rank_\d resid' needs \(3, 24\)$", line)
    line = refused(
        tmp_path, "apply", matched / "new", matched / "lora", "--out", tmp_path / "out", "--base", tmp_path / "wide"
    )
    assert f"{tmp_path / 'wide'} is not of the type that the element acts on" in line
    line = refused(
        tmp_path,
        "apply",
        matched / "new",
        matched / "lora",
        "--out",
        tmp_path / "out",
        "--base",
        matched / "anchor",
        unread=False,
    )
    assert f"{matched / 'anchor'} is not the model that the element starts from" in line
    source = base(tmp_path, BERT)
    line = refused(
        tmp_path, "apply", matched / "new", lora(source, "b", target_modules=["query"]), "--out", tmp_path / "out"
    )
    assert f"{source} is not of the type that the element acts on: the architecture of the two differ (bert" in line


CHANGES = [
    ({"peft_type": "IA3"}, "peft_type is 'IA3'; only adapters of type 'LORA' are covered"),
    (
        {"init_lora_weights": "pissa"},
        "init_lora_weights is 'pissa': loading the adapter changes the weights of its base",
    ),
    (
        {"target_parameters": ["x"]},
        "target_parameters is set in adapter_config.json (PEFT sets it where target_modules name experts",
    ),
    ({"layer_replication": [[0, 1]]}, "layer_replication is set"),
    ({"ensure_weight_tying": True}, "ensure_weight_tying is set"),
    ({"lora_alpha": None}, "adapter_config.json: lora_alpha is None; expected a number"),
    ({"lora_alpha": "16"}, "adapter_config.json: lora_alpha is '16'"),
    ({"alpha_pattern": ["q"]}, "adapter_config.json: alpha_pattern is ['q']; expected numbers by module"),
    ({"alpha_pattern": {"q": True}}, "adapter_config.json: q is True; expected a number"),
    ({"alpha_pattern": {"(": 8}}, "adapter_config.json: alpha_pattern has '(': "),
    ({"base_model_name_or_path": {}}, "adapter_config.json: base_model_name_or_path is {}"),
]


@pytest.mark.parametrize(("changes", "text"), CHANGES)
def test_adapters_that_are_not_covered(matched, tmp_path, changes, text):
    adapter = tmp_path / "lora"
    shutil.copytree(matched / "lora", adapter)
    edit_json(adapter / ADAPTER_FILE, lambda config: config.update(changes))
    line = refused(tmp_path, "apply", matched / "new", adapter, "--out", tmp_path / "out")
    assert f"{adapter}: {text}" in line


def without(*words):
    return lambda tensors: [tensors.pop(name) for name in list(tensors) if all(word in name for word in words)]


def spoiled(value):
    return lambda tensors: next(iter(tensors.values())).view(-1).__setitem__(0, value)


EDITS = [
    (
        without("lora_B", "layers.1", "q_proj"),
        "the lora_B of encoder.layer.1.attention.attention.query.weight is missing",
    ),
    (spoiled(float("nan")), "has NaN or infinite values"),
    (lambda tensors: tensors.update({name: t[:0] for name, t in tensors.items() if "lora_A" in name}), "it is empty"),
    (lambda tensors: tensors.update(extra=torch.ones(2)), "extra belongs to no tensor of a ViTForImageClassification"),
    (lambda tensors: tensors.update({name: t.to(torch.int8) for name, t in tensors.items()}), "has dtype torch.int8"),
]


@pytest.mark.parametrize(("edit", "text"), EDITS)
def test_tensors_that_cannot_be_used(matched, tmp_path, edit, text):
    adapter = tmp_path / "lora"
    shutil.copytree(matched / "lora", adapter)
    tensors = load_file(adapter / WEIGHTS_FILE)
    edit(tensors)
    save_file(tensors, adapter / WEIGHTS_FILE)
    assert text in refused(tmp_path, "apply", matched / "new", adapter, "--out", tmp_path / "out", unread=False)


def test_a_base_that_is_not_named(matched, tmp_path):
    adapter = tmp_path / "lora"
    shutil.copytree(matched / "lora", adapter)
    edit_json(adapter / ADAPTER_FILE, lambda config: config.update(base_model_name_or_path=""))
    call = ("apply", matched / "new", adapter, "--base", matched / "base", "--out", tmp_path / "out")
    assert run(*call).code == 0


def test_files_that_cannot_be_used(matched, tmp_path):
    adapter = tmp_path / "lora"
    shutil.copytree(matched / "lora", adapter)
    call = ("apply", matched / "new", adapter, "--out", tmp_path / "out")
    whole = (adapter / WEIGHTS_FILE).read_bytes()
    (adapter / WEIGHTS_FILE).write_bytes(whole[:100])
    assert "truncated, corrupt or not safetensors" in refused(tmp_path, *call)
    (adapter / WEIGHTS_FILE).rename(adapter / "adapter_model.bin")
    assert "adapters are read from safetensors only, never from a pickle" in refused(tmp_path, *call)
    (adapter / ADAPTER_FILE).write_text("[]")
    assert "expected a JSON object" in refused(tmp_path, *call)
    for element in (matched / "base", matched / "base" / "model.safetensors"):
        assert "element" in refused(tmp_path, "apply", element, matched / "lora", "--out", tmp_path / "out")


def test_a_folder_with_a_model_and_an_adapter_is_refused(matched, tmp_path):
    assert is_adapter(matched / "lora")
    line = refused(tmp_path, "inspect", matched / "lora")
    assert "has no config.json; expected the folder of a Hugging Face model, this is that of an adapter" in line
    with pytest.raises(InputError, match=r"has no adapter_config\.json; expected the folder of an adapter, this is"):
        load_adapter(matched / "base")
    shutil.copytree(matched / "lora", tmp_path / "both")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(matched / "base" / name, tmp_path / "both")
    assert not is_adapter(tmp_path / "both")
    line = refused(tmp_path, "merge", tmp_path / "both", matched / "base", "--out", tmp_path / "out")
    assert f"{tmp_path / 'both'}: has the weights of a model and adapter_config.json" in line
    assert not is_adapter("nowhere")
