"""An adapter with a head of its own, such as a classifier's on a language model, moves with that head."""

import re

import pytest
import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file, save_file

import cobasin
from adapter_folders import change, saved
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import outputs
from command_line import edit_json, edit_tensors, refused, run
from tiny_models import model, tolerance

pytestmark = pytest.mark.usefixtures("few_rounds")

LLAMA = ("llama-gqa/LlamaForCausalLM", transformers.LlamaForSequenceClassification, ["q_proj", "down_proj"])
ROBERTA = ("roberta/RobertaForMaskedLM", transformers.RobertaForSequenceClassification, ["query", "value"])
TAGGER = ("bert/BertForMaskedLM", transformers.BertForTokenClassification, ["key", "query"])
LABELS = 3


def bases(folder, case):
    for seed, name in enumerate(("base", "new")):
        model(case, seed).save_pretrained(folder / name)
    return folder / "base", folder / "new"


def classifier(base, cls, targets, name="lora", **options):
    """A random adapter for a class with a head, as PEFT makes one of a base without it."""
    torch.manual_seed(3)
    task = "TOKEN_CLS" if "Token" in cls.__name__ else "SEQ_CLS"
    made = cls.from_pretrained(base, num_labels=LABELS, dtype=torch.float64)
    return saved(made, base.with_name(name), task_type=task, target_modules=targets, **options)


def function(base, cls, adapter):
    """Float64 outputs on probe inputs, as PEFT runs the adapter."""
    made = cls.from_pretrained(base, num_labels=LABELS, dtype=torch.float64)
    made = PeftModel.from_pretrained(made, adapter).base_model.model.eval()
    return outputs(made, probe(made.config, cls.__name__))


@pytest.mark.parametrize(("case", "cls", "targets"), [LLAMA, ROBERTA, TAGGER])
def test_it_moves_with_its_base(tmp_path, case, cls, targets):
    base, new = bases(tmp_path, case)
    adapter, out = classifier(base, cls, targets), tmp_path / "moved"
    assert run("match", base, new, "--out", tmp_path / "matched").code == 0
    done = run("apply", tmp_path / "matched", adapter, "--out", out, "--base", base)
    assert done.code == 0, done.err
    assert "base and adapter" not in done.err
    assert re.search(r"relative difference \d\.\de-(0[6-9]|1\d)", done.out)
    before = function(base, cls, adapter)
    assert change(function(tmp_path / "matched", cls, out), before) < max(tolerance(case), 1e-9)
    assert change(function(tmp_path / "matched", cls, adapter), before) > 1e-3  # control: as it was


@pytest.mark.parametrize(("case", "cls", "targets"), [LLAMA, ROBERTA])
def test_it_is_carried_to_a_base_with_the_same_function(tmp_path, case, cls, targets):
    base, other = bases(tmp_path, case)
    adapter = classifier(base, cls, targets)
    element = cobasin.match(str(base), str(other))
    cobasin.save(cobasin.transform(element, str(base)), tmp_path / "same")
    carried = cobasin.transport_adapter(str(base), adapter, str(tmp_path / "same")).adapter
    cobasin.save_adapter(carried, tmp_path / "carried")
    before = function(base, cls, adapter)
    assert change(function(tmp_path / "same", cls, tmp_path / "carried"), before) < max(tolerance(case), 1e-8)


def test_without_a_head_it_moves_as_before(tmp_path):
    """PEFT saves no head of BART's, which is called otherwise."""
    base, new = bases(tmp_path, "bart/BartForConditionalGeneration")
    adapter = classifier(base, transformers.BartForSequenceClassification, ["q_proj"])
    assert run("match", base, new, "--out", tmp_path / "matched").code == 0
    done = run("apply", tmp_path / "matched", adapter, "--out", tmp_path / "moved", "--base", base)
    assert done.code == 0, done.err
    assert run("transport", base, adapter, new, "--out", tmp_path / "carried").code == 0


def test_a_base_without_the_prefix(tmp_path):
    """As GPT-2's on the hub: what the adapter saved of it is no head."""
    torch.manual_seed(0)
    base, new = bases(tmp_path, "gpt2/GPT2LMHeadModel")
    edit_tensors(
        base, lambda tensors: [tensors.update({n.removeprefix("transformer."): tensors.pop(n)}) for n in [*tensors]]
    )
    cls = transformers.GPT2ForSequenceClassification
    adapter = classifier(base, cls, ["c_fc"], modules_to_save=["score", "wte"])
    assert run("match", base, new, "--out", tmp_path / "matched").code == 0
    done = run("apply", tmp_path / "matched", adapter, "--out", tmp_path / "moved", "--base", base)
    assert done.code == 0, done.err
    assert change(function(tmp_path / "matched", cls, tmp_path / "moved"), function(base, cls, adapter)) < 1e-9
    line = refused(tmp_path, "transport", base, adapter, new, "--out", tmp_path / "out")
    assert "wte.weight is made for the weights of its base" in line


def test_the_command_carries_it(tmp_path):
    case, cls, targets = LLAMA
    base, new = bases(tmp_path, case)
    adapter = classifier(base, cls, targets)
    done = run("transport", base, adapter, new, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert function(new, cls, tmp_path / "out").isfinite().all()


def test_what_is_no_head_is_refused(tmp_path):
    """A pooler that was not saved; a tensor that the base has, too; a task that PEFT does not name."""
    base, new = bases(tmp_path, "bert/BertForMaskedLM")
    pooled = classifier(base, transformers.BertForSequenceClassification, ["query"])
    line = refused(tmp_path, "transport", base, pooled, new, "--out", tmp_path / "out", unread=False)
    assert f"{base} with the head of {pooled} does not fit BertForSequenceClassification: missing tensor pooler" in line
    whole = classifier(base, TAGGER[1], ["query"], "whole", modules_to_save=["classifier", "word_embeddings"])
    line = refused(tmp_path, "transport", base, whole, new, "--out", tmp_path / "out")
    assert "word_embeddings.weight is made for the weights of its base" in line
    tensors = tmp_path / "lora" / "adapter_model.safetensors"
    save_file({n: t[0, 0] if "classifier.weight" in n else t for n, t in load_file(tensors).items()}, tensors)
    assert "classifier.weight" in refused(
        tmp_path, "transport", base, pooled, new, "--out", tmp_path / "out", unread=False
    )
    assert run("match", base, new, "--out", tmp_path / "matched").code == 0
    edit_json(whole / "adapter_config.json", lambda config: config.update(base_model_name_or_path="some/base"))
    line = refused(tmp_path, "apply", tmp_path / "matched", whole, "--out", tmp_path / "out", unread=False)
    assert "a head of the adapter's own needs its base (--base), and a task_type" in line
    for task in (None, ["SEQ_CLS"], "SOMETHING"):
        edit_json(whole / "adapter_config.json", lambda config, task=task: config.update(task_type=task))
        line = refused(tmp_path, "transport", base, whole, new, "--out", tmp_path / "out")
        assert "is made for the weights of its base" in line
