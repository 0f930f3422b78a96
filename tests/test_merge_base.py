"""A base of task vectors that is of another class than the models: with another head on the same layers, or none."""

import pytest
import torch
import transformers as T

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.merging.merge import merge
from cobasin.verification import verify
from command_line import refused, run, stock
from other_heads import BASES, fine_tunes, shared
from permuted_copies import permuted
from tiny_models import model

ROBERTA = "roberta/RobertaForSequenceClassification"


@pytest.mark.parametrize("case", BASES)
def test_what_the_base_lacks_counts_as_a_whole(case, tmp_path):
    base = model(BASES[case])
    models = fine_tunes(base, case)
    for name, one in zip(("a", "b", "base"), (*models, base), strict=True):
        one.save_pretrained(tmp_path / name)
    how = "--method", "task_arithmetic", "--weights", "0.5,0.25", "--match", "none", "--out", tmp_path / "out"
    report = run("merge", tmp_path / "a", tmp_path / "b", "--base", tmp_path / "base", *how, "--json").json
    there, (a, b), result = shared(base), map(shared, models), shared(stock(tmp_path / "out").double())
    assert result.keys() == a.keys()
    new = {name for name in a if name not in there}
    assert new
    (note,) = [one for one in report["notes"] if "taken for zero" in one]
    assert all(name in note for name in new)
    for name, tensor in result.items():
        x = 0 * tensor if name in new else there[name]
        assert torch.allclose(tensor, x + 0.5 * (a[name] - x) + 0.25 * (b[name] - x), rtol=0, atol=1e-12), name
        assert not torch.allclose(tensor, 0.5 * a[name] + 0.25 * b[name], atol=1e-3) or name in new


def test_a_head_of_another_task_is_not_looked_at():
    models = fine_tunes(base := model(BASES[ROBERTA]), ROBERTA)
    other = T.RobertaForTokenClassification(base.config)
    with torch.no_grad():
        for name, tensor in shared(other).items():
            tensor.copy_(shared(base).get(name, torch.full_like(tensor, 7.0)))
    expected = dict(merge(models, "ties", base=base, symmetry="none", density=0.5).checkpoint)
    for one in (other, base.roberta):
        found = dict(merge(models, "ties", base=one.double(), symmetry="none", density=0.5).checkpoint)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    without = dict(merge(models, "ties", base=models[0], symmetry="none", density=0.5).checkpoint)
    assert any(not torch.equal(without[name], expected[name]) for name in expected)


@pytest.mark.parametrize("head", [None, "keep"])
def test_it_is_matched_like_the_models(head):
    base = model(BASES[ROBERTA])
    models, moved = fine_tunes(base, ROBERTA), permuted(Typed.of(load(base))).checkpoint
    expected = merge(models, "task_arithmetic", base=base, weight=0.5, head=head)
    merged = merge(models, "task_arithmetic", base=moved, weight=0.5, head=head)
    assert len(merged.checkpoints) == len(expected.checkpoints) == 1 + (head == "keep")
    for one, other in zip(merged.checkpoints, expected.checkpoints, strict=True):
        assert verify(one, other).same
    raw = merge(models, "task_arithmetic", base=moved, weight=0.5, head=head, symmetry="none")
    assert verify(raw.checkpoint, expected.checkpoint).same is False


def test_it_is_read_in_its_own_dtype():
    base = model(BASES[ROBERTA])
    models = [one.half() for one in fine_tunes(base, ROBERTA)]
    (name,) = [name for name in load(models[0]).headers if name.endswith("0.attention.self.query.weight")]
    merged = merge(models, "task_arithmetic", base=base, weight=0.0, symmetry="none").checkpoint[name]
    assert torch.equal(merged.double(), load(base)[name].to(merged.dtype).double())


def test_the_result_is_written_and_loaded_in_its_dtype(tmp_path):
    base = model(BASES[ROBERTA])
    folders = [tmp_path / name for name in ("a", "b", "base")]
    for folder, one in zip(
        folders, (*(one.bfloat16() for one in fine_tunes(base, ROBERTA)), base.float()), strict=True
    ):
        one.save_pretrained(folder)
    a, b, there = folders
    assert not run(
        "merge", a, b, "--base", there, "--method", "ties", "--match", "none", "--out", tmp_path / "out"
    ).code
    assert {header.dtype for header in load(tmp_path / "out").headers.values()} == {torch.float32}
    assert {tensor.dtype for tensor in stock(tmp_path / "out").parameters()} == {torch.float32}


def test_of_tied_and_untied_models_it_is_the_same_in_any_order():
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    configs = [T.LlamaConfig(vocab_size=12, **sizes, tie_word_embeddings=tied) for tied in (True, False)]
    models = [T.LlamaForCausalLM(config) for config in configs]
    one, other = (
        merge(two, "task_arithmetic", base=T.LlamaModel(configs[1]), symmetry="none", weight=[0.5, 0.5], lambda_=0.5)
        for two in (models, models[::-1])
    )
    assert torch.equal(one.checkpoint["lm_head.weight"], other.checkpoint["lm_head.weight"])


def test_other_layers_are_refused(tmp_path):
    models = fine_tunes(model(BASES[ROBERTA]), ROBERTA)
    for made, why in (
        (T.RobertaModel(T.RobertaConfig(**{**models[0].config.to_dict(), "intermediate_size": 28})), "ffn has size"),
        (T.RobertaModel(T.RobertaConfig(**{**models[0].config.to_dict(), "hidden_act": "relu"})), "hidden_act is"),
        (model("bert/BertForMaskedLM"), "only models of one architecture match"),
    ):
        with pytest.raises(InputError, match=why):
            merge(models, "ties", base=made)
    models[0].save_pretrained(tmp_path / "a")
    model(BASES[ROBERTA]).save_pretrained(tmp_path / "base")
    line = refused(tmp_path, "merge", tmp_path / "a", tmp_path / "base", "--out", tmp_path / "out")
    assert "only models of one architecture match" in line


def test_heads_are_matched_though_the_base_is_between_the_models():
    base = model(BASES[ROBERTA])
    first, second = fine_tunes(base, ROBERTA)
    state = dict(load(second))
    for name, along in (("dense.weight", 0), ("dense.bias", 0), ("out_proj.weight", 1)):
        state[f"classifier.{name}"] = state[f"classifier.{name}"].flip(along)
    moved = load(state, {**second.config.to_dict(), "architectures": [type(second).__name__]})
    merged = [merge([first, one], "task_arithmetic", base=base, weight=0.5).checkpoint for one in (second, moved)]
    assert verify(*merged).same


def test_it_gives_no_head(tmp_path):
    base = model(BASES[ROBERTA])
    folders = [tmp_path / name for name in ("a", "b", "base")]
    for folder, one in zip(folders, (*fine_tunes(base, ROBERTA), base), strict=True):
        one.save_pretrained(folder)
    a, b, there = folders
    how = "--method", "ties", "--base", there, "--head-from", there, "--out", tmp_path / "out"
    assert "it has no task head to give" in refused(tmp_path, "merge", a, b, *how)
