"""Models that a merge names as a base with an adapter, ``BASE+ADAPTER``."""

import copy
import json

import pytest
import torch
import transformers
from peft import PeftModel
from transformers import AutoModelForCausalLM, LlamaForSequenceClassification

from adapter_folders import ALL, LLAMA, base, change, function, lora, saved
from cobasin.adapters.folder import ADAPTER_FILE, load_adapter
from cobasin.checkpoints.checkpoint import load
from cobasin.merging.merge import merge, merge_recipe
from command_line import edit_json, refused, run, stock, tensors_of
from merge_cases import recipe

HOW = "--method", "linear", "--match", "none"


@pytest.fixture
def named(tmp_path):
    """A base, and two adapters of it as a merge names them."""
    start = base(tmp_path, LLAMA)
    return start, *(f"{start}+{lora(start, name, seed, **ALL)}" for seed, name in enumerate(("first", "second")))


def merged_by_peft(name):
    start, adapter = name.split("+")
    with_adapter = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(start), adapter)
    return with_adapter.merge_and_unload().state_dict()


def test_the_average_of_two_adapted_models(named, tmp_path):
    start, *pair = named
    assert run("merge", *pair, *HOW, "--out", tmp_path / "out").code == 0
    found, own = stock(tmp_path / "out").double().state_dict(), tensors_of(start)
    a, b = map(merged_by_peft, pair)
    assert found.keys() == a.keys()
    moved = 0
    for name, tensor in found.items():
        assert torch.allclose(tensor, (a[name] + b[name]) / 2, rtol=0, atol=1e-12), name
        moved += name in own and not torch.allclose(tensor, own[name], atol=1e-3)
    assert moved > 10


def test_task_vectors_of_adapters(named, tmp_path):
    start, *pair = named
    found = merge_recipe(recipe(tmp_path / "r.yaml", "task_arithmetic", pair, base_model=str(start)))
    called = merge(pair, "task_arithmetic", base=start, symmetry="none").checkpoint
    a, b = map(merged_by_peft, pair)
    for name, tensor in tensors_of(start).items():
        assert torch.allclose(found.checkpoint[name], a[name] + b[name] - tensor, rtol=0, atol=1e-12), name
        assert torch.equal(called[name], found.checkpoint[name])


def test_they_are_matched_like_any_model(named, tmp_path):
    _, *pair = named
    report = run("merge", *pair, "--out", tmp_path / "out", "--json").json
    (match,) = report["matches"]
    assert match["verification"]["same"]
    assert match["source"] in pair
    assert report["parents"].keys() == {*pair}


def test_bases_and_adapters_of_the_hub(named, tmp_path, monkeypatch):
    start, one, other = named
    folders = {"org/base": start, "org/one": one.split("+")[1], "org/other": other.split("+")[1]}
    asked = set()

    def snapshot_download(hub_id, revision, allow_patterns, ignore_patterns):
        assert "*.bin" not in allow_patterns  # an adapter is not asked for a pickled model
        asked.add((hub_id, revision))
        return str(folders[hub_id])

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    on_hub = "org/base@v1+org/one@v2", "org/base@v1+org/other"
    found = merge(on_hub, symmetry="none").checkpoint
    assert asked == {("org/base", "v1"), ("org/one", "v2"), ("org/other", None)}
    for name, tensor in merge([one, other], symmetry="none").checkpoint.items():
        assert torch.equal(found[name], tensor), name
    line = refused(tmp_path, "merge", "org/one", on_hub[1], *HOW, "--out", tmp_path / "out")
    assert line.endswith("org/one: is an adapter; name it with the base that it is for, as BASE+org/one")


def test_what_is_missing_or_in_the_way_is_refused(named, tmp_path):
    start, first, second = named
    out = "--out", tmp_path / "out"
    assert f"{tmp_path / 'none'}" in refused(tmp_path, "merge", f"{start}+{tmp_path / 'none'}", start, *HOW, *out)
    both = f"{first}+{second.split('+')[1]}"
    assert f"{both}: two adapters, or one whose name has a plus" in refused(tmp_path, "merge", both, start, *HOW, *out)
    assert "this is that of a model" in refused(tmp_path, "merge", f"{start}+{start}", start, *HOW, *out)
    folder = first.split("+")[1]
    line = refused(tmp_path, "merge", folder, second.split("+")[1], *HOW, *out)
    assert f"{folder}: is an adapter; name it with the base that it is for, as BASE+{folder}" in line
    line = refused(tmp_path, "merge", first, second, *HOW, "--out", folder, "--overwrite")
    assert f"{folder}: holds {folder}, which is read" in line


def test_an_adapter_that_acts_on_some_tokens_only_is_refused(named, tmp_path):
    """No weights compute what base and adapter do."""
    start, first, _ = named
    edit_json(tmp_path / "first" / ADAPTER_FILE, lambda config: config.update(alora_invocation_tokens=[5, 6]))
    line = refused(tmp_path, "merge", first, start, *HOW, "--out", tmp_path / "out")
    assert f"{tmp_path / 'first'}: acts behind its alora_invocation_tokens only" in line


def test_an_adapter_that_changed_is_of_another_run(named, tmp_path):
    _, first, second = named
    command = "merge", first, second, *HOW, "--out", tmp_path / "out"
    assert run(*command, "--part", "1/2").code == 0
    config = tmp_path / "second" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"lora_alpha": 9}))
    assert "other file" in refused(tmp_path, *command, "--part", "2/2")


def test_an_adapter_brings_its_head(tmp_path):
    """Of a base that has none, which is the base of the task vectors, too."""
    start = base(tmp_path, LLAMA)
    classifier = LlamaForSequenceClassification.from_pretrained(start, dtype=torch.float64, num_labels=3)
    pair = [
        saved(copy.deepcopy(classifier), tmp_path / name, task_type="SEQ_CLS", **ALL) for name in ("first", "second")
    ]
    named = [f"{start}+{adapter}" for adapter in pair]
    found = dict(merge(named, "task_arithmetic", base=start, symmetry="none", weight=0.5).checkpoint)
    scores = [load_adapter(adapter)["base_model.model.score.weight"] for adapter in pair]
    assert torch.allclose(found["score.weight"], (scores[0] + scores[1]) / 2)
    assert not torch.allclose(*scores)
    assert found.keys() == load(classifier).headers.keys()
    run("merge", *named, *HOW, "--out", tmp_path / "out")
    assert torch.equal(stock(tmp_path / "out", dtype=torch.float64).score.weight, found["score.weight"])


def test_one_of_two_tensors_that_are_always_tied(tmp_path):
    """BART's head has no weight of its own."""
    start = base(tmp_path, "bart/BartForConditionalGeneration")
    name = f"{start}+{lora(start, target_modules=['lm_head'])}"
    line = refused(tmp_path, "merge", name, start, *HOW, "--out", tmp_path / "out")
    assert f"{tmp_path / 'lora'} adapts lm_head.weight alone, which is tied to another tensor of its base" in line


def test_an_adapter_that_has_added_tokens(tmp_path):
    start = base(tmp_path, LLAMA)
    model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float64)
    model.resize_token_embeddings(model.config.vocab_size + 3)
    options = {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}
    adapter = saved(copy.deepcopy(model), tmp_path / "lora", **options)
    line = refused(tmp_path, "merge", f"{start}+{adapter}", start, *HOW, "--out", tmp_path / "out")
    assert line.endswith("where it has added tokens, save its base resized to them first (resize_token_embeddings)")
    model.save_pretrained(tmp_path / "resized")
    assert (
        run("merge", f"{tmp_path / 'resized'}+{adapter}", tmp_path / "resized", *HOW, "--out", tmp_path / "out").code
        == 0
    )


@pytest.mark.parametrize(
    ("case", "target", "tied"),
    [
        ("bart/BartForConditionalGeneration", "q_proj", True),  # which cannot be untied
        ("gpt2/GPT2LMHeadModel", "c_attn", True),
        ("gpt2/GPT2LMHeadModel", "wte", False),
    ],
)
def test_tied_embeddings_that_were_resized(tmp_path, case, target, tied):
    """PEFT writes them with any adapter whose base it finds with fewer rows."""
    start = base(tmp_path, case)
    model = getattr(transformers, case.split("/")[1]).from_pretrained(start, dtype=torch.float64)
    model.resize_token_embeddings(model.config.vocab_size + 3)
    model.save_pretrained(tmp_path / "resized")
    adapter = saved(model, tmp_path / "lora", target_modules=[target])
    assert "base_model.model.lm_head.weight" in load_adapter(adapter).headers
    name = f"{tmp_path / 'resized'}+{adapter}"
    assert run("merge", name, name, *HOW, "--out", tmp_path / "out").code == 0
    assert ("lm_head.weight" not in tensors_of(tmp_path / "out")) == tied
    assert change(function(tmp_path / "out"), function(tmp_path / "resized", adapter)) < 1e-9
