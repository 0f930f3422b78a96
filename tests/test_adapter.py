"""LoRA adapters move with their base's element: base and adapter compute what they did."""

import errno
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel

import cobasin
from adapter_folders import ALL, BERT, GPT2, LLAMA, VIT, base, change, element_of, function, lora
from cobasin.adapters.folder import ADAPTER_FILE, WEIGHTS_FILE, is_adapter
from cobasin.adapters.layers import type_adapter
from cobasin.adapters.merged import merged
from cobasin.adapters.move import move_adapter
from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate, outputs
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from command_line import edit_json
from model_folders import assert_bitwise
from sampling import one_in
from tiny_models import tolerance

CASES = [
    (BERT, "gl", {"target_modules": ["query", "value"]}),
    (BERT, "gl", ALL),
    (BERT, "full", {"target_modules": ["query", "word_embeddings", "position_embeddings"]}),
    (BERT, "full", ALL | {"bias": "all"}),
    (GPT2, "gl", {"target_modules": ["c_attn", "c_fc"]}),
    (GPT2, "gl", {"target_modules": ["c_attn", "c_proj", "lm_head"], "use_rslora": True}),
    (GPT2, "full", {"target_modules": ["c_attn", "wte"], "modules_to_save": ["lm_head"]}),
    (
        GPT2,
        "full",
        {"target_modules": ["c_attn"], "rank_pattern": {"h.0.attn.c_attn": 2}, "alpha_pattern": {"c_attn": 7}},
    ),
    (GPT2, "plain", {"target_modules": ["c_attn"], "bias": "all", "layers_to_transform": [1]}),
    (LLAMA, "gl", ALL),
    (LLAMA, "full", {"target_modules": ["q_proj", "embed_tokens"], "modules_to_save": ["lm_head"]}),
    (LLAMA, "plain", {"target_modules": ["down_proj"], "modules_to_save": ["norm"]}),
    (VIT, "gl", ALL | {"modules_to_save": ["classifier"]}),
    (VIT, "full", {"target_modules": ["projection", "k_proj"], "bias": "all"}),
    (VIT, "gl", {"target_modules": ["k_proj"], "bias": "all", "modules_to_save": ["classifier"]}),
]


@pytest.mark.parametrize(("case", "symmetry", "options"), one_in(2, CASES))
def test_an_adapter_moves_with_its_base(tmp_path, case, symmetry, options):
    source = base(tmp_path, case)
    adapter = cobasin.load_adapter(lora(source, **options))
    element, typed = element_of(case, source, symmetry)
    cobasin.save(typed.derived(element.apply(typed)), tmp_path / "new")
    moved = move_adapter(element, adapter, typed)
    cobasin.save_adapter(moved, tmp_path / "moved")
    reference = function(source, adapter.folder)
    assert change(function(source), reference) > 0.05
    assert change(function(tmp_path / "new", tmp_path / "moved"), reference) < tolerance(case)
    assert change(function(tmp_path / "new", adapter.folder), reference) > 0.05
    one_model = instantiate(merged(typed, adapter), torch.float64)
    inputs = probe(typed.checkpoint.config, typed.checkpoint.architecture)
    assert change(outputs(one_model, inputs), reference) < tolerance(case)


def test_an_adapter_that_acts_behind_some_tokens_moves_as_others_do(tmp_path):
    """aLoRA; PEFT looks for the tokens in what the whole model reads."""
    source, ids = base(tmp_path, GPT2), torch.tensor([[7, 8, 5, 6, 9, 10], [7, 9, 8, 5, 6, 10]])
    options = {"target_modules": ["c_attn", "c_proj", "c_fc"], "task_type": "CAUSAL_LM"}
    adapter = cobasin.load_adapter(lora(source, alora_invocation_tokens=[5, 6], **options))
    element, typed = element_of(GPT2, source)
    cobasin.save(typed.derived(element.apply(typed)), tmp_path / "new")
    cobasin.save_adapter(move_adapter(element, adapter, typed), tmp_path / "moved")

    @torch.no_grad()
    def logits(folder, own=None):
        made = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float64)
        return (made if own is None else PeftModel.from_pretrained(made, own)).eval()(input_ids=ids).logits

    plain, reference = logits(source), logits(source, adapter.folder)
    assert torch.allclose(plain[0, :2], reference[0, :2])
    assert change(plain, reference) > 0.05
    assert change(logits(tmp_path / "new", tmp_path / "moved"), reference) < tolerance(GPT2)


def test_the_element_moves_by_the_base_alone_where_only_its_gauge_is_needed(tmp_path):
    """Llama's adapters need no tensor of the base; those that read a value bias do."""
    source = base(tmp_path, LLAMA)
    element, typed = element_of(LLAMA, source)
    adapter = cobasin.load_adapter(lora(source, **ALL))
    with_base, without = (move_adapter(element, adapter, of) for of in (typed, None))
    assert_bitwise(dict(without), dict(with_base))
    (tmp_path / "bert").mkdir()
    source = base(tmp_path / "bert", BERT)
    element, typed = element_of(BERT, source)
    assert move_adapter(element, cobasin.load_adapter(lora(source, target_modules=["query"])))
    adapter = cobasin.load_adapter(lora(source, "all", **ALL))
    with pytest.raises(InputError, match=r"value.bias of its base is needed: name the base \(--base\)"):
        move_adapter(element, adapter)


def test_an_offset_that_the_new_norm_cannot_carry_becomes_a_bias(tmp_path):
    source = base(tmp_path, GPT2)
    adapter = cobasin.load_adapter(lora(source, target_modules=["c_attn"]))
    element, typed = element_of(GPT2, source)
    assert move_adapter(element, adapter, typed).config["lora_bias"] is False
    zero = {name: torch.zeros_like(t) for name, t in element.target.items() if re.search(r"ln_1\.bias$", name)}
    element = replace(element, target=element.target | zero)
    cobasin.save(typed.derived(element.apply(typed)), tmp_path / "new")
    moved = move_adapter(element, adapter, typed)
    cobasin.save_adapter(moved, tmp_path / "moved")
    reference = function(source, adapter.folder)
    assert moved.config["lora_bias"] is True
    assert change(function(tmp_path / "new", tmp_path / "moved"), reference) < 1e-9
    edit_json(tmp_path / "moved" / ADAPTER_FILE, lambda config: config.update(lora_bias=False))
    assert change(function(tmp_path / "new", tmp_path / "moved"), reference) > 1e-3
    both = cobasin.load_adapter(lora(source, "both", target_modules=["c_attn", "wte"]))
    with pytest.raises(InputError, match=r"c_attn.weight needs a bias of its own .* beside an adapter of an embedding"):
        move_adapter(element, both, typed)


@pytest.mark.parametrize(("dtype", "biased"), [(torch.float64, False), (torch.float32, False), (torch.bfloat16, True)])
def test_an_offset_that_would_drown_the_rest_becomes_a_bias_in_short_floats(tmp_path, dtype, biased):
    """Offsets that nearly cancel over the gains carry only if A gets long, which costs digits."""
    source = base(tmp_path, GPT2)
    folder = lora(source, target_modules=["c_attn"])
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / WEIGHTS_FILE).items()}
    save_file(tensors, folder / WEIGHTS_FILE)
    element, typed = element_of(GPT2, source)
    wave = torch.tensor([1.05, -1.0], dtype=torch.float64).repeat(12)
    target = {f"h.{i}.ln_1.bias": wave * element.target[f"h.{i}.ln_1.weight"] for i in range(2)}
    element = replace(element, target=element.target | target)
    moved = move_adapter(element, cobasin.load_adapter(folder), typed)
    assert moved.config["lora_bias"] is biased
    cobasin.save(typed.derived(element.apply(typed)), tmp_path / "new")
    cobasin.save_adapter(moved, tmp_path / "moved")
    error = change(function(tmp_path / "new", tmp_path / "moved"), function(source, folder))
    assert error < 100 * torch.finfo(dtype).eps * (1 if biased else 100)


DORA = [
    (BERT, "gl", ["intermediate.dense", "layer.0.output.dense", "word_embeddings"], None),
    (BERT, "gl", ["query"], "query.weight cannot move: the rows of its weight are mixed"),
    (BERT, "gl", ["attention.output.dense"], "the input axis of its weight is scaled"),
    (GPT2, "plain", ["c_fc", "wte", "lm_head", "mlp.c_proj"], None),
    (GPT2, "gl", ["c_fc"], "h.0.mlp.c_fc.weight cannot move: the input axis of its weight is scaled"),
    (GPT2, "gl", ["wte"], "the rows of its weight are mixed"),
    (LLAMA, "plain", ["up_proj", "gate_proj", "lm_head"], None),
    (LLAMA, "plain", ["down_proj"], "the input axis of its weight is scaled"),
    (VIT, "plain", ["projection", "classifier"], None),
]


@pytest.mark.parametrize(("case", "symmetry", "modules", "refusal"), DORA)
def test_magnitudes_move_where_the_norms_of_rows_do(tmp_path, case, symmetry, modules, refusal):
    source = base(tmp_path, case)
    adapter = cobasin.load_adapter(lora(source, target_modules=modules, use_dora=True))
    element, typed = element_of(case, source, symmetry)
    if refusal:
        with pytest.raises(InputError, match=refusal):
            move_adapter(element, adapter, typed)
        return
    cobasin.save(typed.derived(element.apply(typed)), tmp_path / "new")
    cobasin.save_adapter(move_adapter(element, adapter, typed), tmp_path / "moved")
    reference = function(source, adapter.folder)
    assert change(function(tmp_path / "new", tmp_path / "moved"), reference) < tolerance(case)
    edited = load_file(tmp_path / "moved" / WEIGHTS_FILE)
    save_file(edited | {n: t for n, t in adapter.items() if "magnitude" in n}, tmp_path / "moved" / WEIGHTS_FILE)
    assert change(function(tmp_path / "new", tmp_path / "moved"), reference) > 1e-3


def test_the_bias_of_a_value_needs_that_of_the_output(tmp_path):
    source = base(tmp_path, BERT)
    adapter = cobasin.load_adapter(lora(source, target_modules=["query", "value"], bias="lora_only"))
    element, typed = element_of(BERT, source)
    text = "value.base_layer.bias is trained, and moving it changes encoder.layer.0.attention.output.dense.bias"
    with pytest.raises(InputError, match=text):
        move_adapter(element, adapter, typed)
    assert move_adapter(element_of(BERT, source, "plain")[0], adapter, typed)


def test_a_trained_norm_that_is_folded_is_refused(tmp_path):
    source = base(tmp_path, GPT2)
    element, typed = element_of(GPT2, source)
    adapter = cobasin.load_adapter(lora(source, target_modules=["c_attn"], modules_to_save=["ln_2"]))
    with pytest.raises(InputError, match=r"ln_2.bias is trained, and moving it changes h.0.mlp.c_fc.bias"):
        move_adapter(element, adapter, typed)


def test_names_of_files_and_names_in_memory(tmp_path):
    """Old adapters call the modules of a ViT as its file does, new ones as the class of today."""
    source = base(tmp_path, VIT)
    new = lora(source, target_modules=["q_proj"])
    old = tmp_path / "old"
    shutil.copytree(new, old)
    tensors = load_file(new / WEIGHTS_FILE)
    assert any("vit.layers.0.attention.q_proj" in name for name in tensors)

    def old_name(name):
        return name.replace("vit.layers", "vit.encoder.layer").replace("q_proj", "attention.query")

    save_file({old_name(name): tensor for name, tensor in tensors.items()}, old / WEIGHTS_FILE)
    element, typed = element_of(VIT, source)
    today, before = (move_adapter(element, cobasin.load_adapter(folder), typed) for folder in (new, old))
    assert_bitwise(dict(before), {old_name(name): tensor for name, tensor in today.items()})
    with pytest.raises(InputError, match=r"q_proj.lora_A.weight belongs to no tensor of a ViTFor.*give the base"):
        move_adapter(element, cobasin.load_adapter(new))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes_are_kept(tmp_path, dtype):
    source = base(tmp_path, LLAMA)
    adapter = lora(source, **ALL)
    save_file({name: t.to(dtype) for name, t in load_file(adapter / WEIGHTS_FILE).items()}, adapter / WEIGHTS_FILE)
    element, typed = element_of(LLAMA, source)
    moved = cobasin.transform_adapter(element, adapter)
    assert {tensor.dtype for tensor in moved.values()} == {dtype}
    cobasin.save(typed.derived(element.apply(typed)), tmp_path / "new")
    cobasin.save_adapter(moved, tmp_path / "moved")
    error = change(function(tmp_path / "new", tmp_path / "moved"), function(source, adapter))
    assert error < 300 * torch.finfo(dtype).eps


def test_values_that_do_not_fit_the_dtype(tmp_path):
    source = base(tmp_path, GPT2)
    adapter = lora(source, target_modules=["c_attn"])
    tensors = {name: (t * 1e4).to(torch.float16) for name, t in load_file(adapter / WEIGHTS_FILE).items()}
    save_file(tensors, adapter / WEIGHTS_FILE)
    element, _ = element_of(GPT2, source)
    small = {name: t * 1e-3 for name, t in element.target.items() if name.endswith("ln_1.weight")}
    with pytest.raises(InputError, match=r"lora_A.weight, moved, does not fit torch.float16"):
        cobasin.transform_adapter(replace(element, target=element.target | small), adapter, source)


def test_the_types_of_factors(tmp_path):
    source = base(tmp_path, GPT2)
    adapter = cobasin.load_adapter(lora(source, target_modules=["c_attn", "c_proj", "wte"]))
    typed = type_adapter(adapter, Typed.of(load(source)).spec)
    types = {name: entry.layout.text for name, entry in typed.spec.added.items()}
    ranks = {layer.weight: types[layer.down].split()[0] for layer in typed.layers}
    attention = ranks["h.0.attn.c_attn.weight"], ranks["h.1.attn.c_proj.weight"]
    assert types["h.0.attn.c_attn.lora_A.weight"] == f"{attention[0]} resid"
    assert types["h.0.attn.c_attn.lora_B.weight"] == f"(head qk + head qk' + head vo) {attention[0]}'"
    assert types["h.1.attn.c_proj.lora_A.weight"] == f"{attention[1]} (head vo')"
    assert types["wte.lora_A.weight"] == f"{ranks['wte.weight']} vocab"
    assert types["wte.lora_B.weight"] == f"resid {ranks['wte.weight']}'"
    assert len(set(ranks.values())) == len(typed.layers) == 7


def test_a_folder_that_may_not_be_read_is_taken_for_a_model(tmp_path, monkeypatch):
    """What is wrong with it is said as it is loaded."""

    def refuse(_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "exists", refuse)
    monkeypatch.setattr(Path, "is_file", refuse)
    assert not is_adapter(tmp_path)
