"""REPAIR: the merged model's norms put out what lies between the parents', and nothing else changes."""

import copy

import pytest
import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate, outputs
from cobasin.checkpoints.typed import Typed
from cobasin.data import Batch
from cobasin.errors import InputError
from cobasin.merging import after
from cobasin.merging.merge import merge, merge_recipe
from cobasin.merging.repair import norms_of, repair
from cobasin.statistics.modules import holders_of
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from command_line import near
from model_folders import assert_bitwise
from tiny_models import checkpoint, model

pytestmark = pytest.mark.usefixtures("few_rounds")

BERT = "bert/BertForMaskedLM"
SHARES = [0.3, 0.7]
CASES = [
    BERT,
    "vit/ViTForImageClassification",
    "gpt2/GPT2LMHeadModel",
    "llama-gqa/LlamaForCausalLM",
    "gemma2/Gemma2ForCausalLM",
    "mixtral/MixtralForCausalLM",
    "t5/T5ForConditionalGeneration",
]


def parents(case):
    """Two models of a case that do not lie far apart, and what lies between them."""
    original = model(case)
    first, second = (instantiate(load(one), torch.float64) for one in (original, near(original, noise=0.1)))
    between = copy.deepcopy(first)
    with torch.no_grad():
        for middle, other in zip(between.parameters(), second.parameters(), strict=True):
            middle.lerp_(other, SHARES[1])
    return between, first, second


def batches_for(one, count=2):
    """Random inputs, padding among them."""
    batches = [Batch(probe(one.config, type(one).__name__, seed), None) for seed in range(count)]
    for batch in batches:
        if "decoder_input_ids" in batch.inputs:  # whose are which tokens is told by their number
            batch.inputs["decoder_input_ids"] = batch.inputs["decoder_input_ids"][:, 3:]
    return batches


def norms(one):
    return norms_of(holders_of(one, Typed.of(load(one))))


@torch.no_grad()
def seen(one, batches):
    """What every norm put out for tokens that are no padding: [tokens, n]."""
    found = {}

    def hook(name, mask):
        def keep(module, _, y):
            y = y[mask.bool()] if mask is not None and y.shape[:2] == mask.shape else y.flatten(0, -2)
            found.setdefault(name, []).append(y)

        return keep

    for batch in batches:
        inputs = batch.to(one.device, one.dtype).inputs
        mask = inputs.get("attention_mask")
        hooks = []
        for name, (module, *_) in norms(one).items():
            side = inputs.get("decoder_attention_mask") if name.startswith("decoder") else mask
            hooks.append(module.register_forward_hook(hook(name, side)))
        one(**inputs)
        for handle in hooks:
            handle.remove()
    return {name: torch.cat(parts) for name, parts in found.items()}


def off(merged, ends, batches):
    """Of every norm, how far its statistics are from what lies between the parents', relative to that."""
    middle, first, second = (seen(one, batches) for one in (merged, *ends))
    found = {}
    for name, (module, *_) in norms(merged).items():
        figures = ["mean", "std"] if getattr(module, "bias", None) is not None else ["rms"]
        found[name] = 0.0
        for figure in figures:
            own, a, b = (_figure(one[name], figure) for one in (middle, first, second))
            wanted = SHARES[0] * a + SHARES[1] * b
            found[name] = max(found[name], float((own - wanted).norm() / wanted.norm()))
    return found


def _figure(x, figure):
    return x.square().mean(0).sqrt() if figure == "rms" else x.mean(0) if figure == "mean" else x.std(0, correction=0)


def repaired(models, batches, **options):
    return repair(models, [norms(one) for one in models], batches, lambda name: SHARES, **options)


@pytest.mark.parametrize("case", CASES)
def test_the_statistics_of_every_norm_are_those_between_the_parents(case):
    merged, *ends = parents(case)
    batches = batches_for(merged)
    before = off(merged, ends, batches)
    plus_one = frozenset(before) if case.startswith("gemma") else frozenset()
    other = {n: p.clone() for n, p in merged.named_parameters()}
    done = repaired([merged, *ends], batches, plus_one=plus_one)
    assert set(done) == set(before)
    after = off(merged, ends, batches)
    assert max(after.values()) < 1e-5 < 1e-3 < min(before.values())
    changed = {n for n, p in merged.named_parameters() if not torch.equal(p, other[n])}
    own = {id(p) for modules in norms(merged).values() for p in modules[0].parameters()}
    assert changed
    assert {id(p) for n, p in merged.named_parameters() if n in changed} <= own


def test_a_correction_counts_for_the_norms_that_follow():
    """In any other order than that of depth, what is set at first is lost."""
    merged, *ends = parents(BERT)
    batches, reported = batches_for(merged), []
    backwards = [dict(reversed(norms(one).items())) for one in (merged, *ends)]
    done = repair([merged, *ends], backwards, batches, lambda name: SHARES, progress=lambda *at: reported.append(at))
    assert done == list(norms(merged))
    assert reported == [(i, len(done)) for i in range(1, len(done) + 1)]
    at_once = parents(BERT)[0]
    for name in norms(at_once):  # each from the statistics of a model that nothing was corrected in
        one = parents(BERT)[0]
        repair([one, *ends], [{name: norms(m)[name]} for m in (one, *ends)], batches, lambda name: SHARES)
        norms(at_once)[name][0].load_state_dict(norms(one)[name][0].state_dict())
    assert max(off(merged, ends, batches).values()) < 1e-9
    assert max(off(at_once, ends, batches).values()) > 1e-3


def test_padding_does_not_count():
    merged, *ends = parents(BERT)
    (batch,) = batches_for(merged, 1)
    padded = dict(batch.inputs)
    padded["input_ids"] = torch.where(padded["attention_mask"].bool(), padded["input_ids"], 7)
    other = copy.deepcopy(merged)
    repaired([merged, *ends], [batch])
    repaired([other, *ends], [Batch(padded, None)])
    assert_bitwise(merged.state_dict(), other.state_dict())
    third = parents(BERT)[0]
    repaired([third, *ends], [Batch({"input_ids": padded["input_ids"]}, None)])
    assert any(not torch.equal(x, y) for x, y in zip(third.parameters(), merged.parameters(), strict=True))


def test_what_does_not_see_tokens_stays():
    """The norm of DeBERTa's table of relative positions, and the norms of single heads."""
    for case, part in (
        ("deberta-v2-separate/DebertaV2ForMaskedLM", "encoder.LayerNorm"),
        ("qwen3/Qwen3ForCausalLM", "q_norm"),
    ):
        merged, *ends = parents(case)
        done = repaired([merged, *ends], batches_for(merged))
        left = norms(merged).keys() - set(done)
        assert left
        assert all(part in name or "k_norm" in name for name in left)


def test_a_channel_that_no_longer_varies_stays():
    merged, *ends = parents(BERT)
    name = next(iter(norms(merged)))
    with torch.no_grad():
        norms(merged)[name][0].weight[3] = 0.0
    repaired([merged, *ends], batches_for(merged))
    assert norms(merged)[name][0].weight[3] == 0
    assert all(parameter.isfinite().all() for parameter in merged.parameters())


def test_a_model_without_norms_is_refused():
    merged, *ends = parents(BERT)
    with pytest.raises(InputError, match="no norm whose gain could take a correction"):
        repair([merged, *ends], [{}, {}, {}], batches_for(merged), lambda name: SHARES)


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_it_runs_where_the_match_says(monkeypatch, device):
    asked = []
    monkeypatch.setattr(after, "device_of", lambda name: asked.append(name) or torch.device("cpu"))
    recipe = {
        "merge_method": "linear",
        "models": [{"model": "a"}, {"model": "b"}],
        "match": {"symmetry": "ffn", "device": device},
        "repair": {"samples": 4},
    }
    merge_recipe(recipe, {"a": checkpoint(BERT), "b": checkpoint(BERT, 1)})
    assert asked == [device]


@pytest.mark.parametrize("case", [BERT, "llama-gqa/LlamaForCausalLM"])
def test_equal_parents_are_left_alone(case):
    """Also where the two are equal only once they are matched; the control is a pair that is not."""
    one = checkpoint(case)
    again = merge([one, one], symmetry="none", repair={"samples": 4})
    assert_bitwise(dict(again.checkpoint), dict(one))
    typed = Typed.of(one)
    moved = typed.derived(Element.sample(form_of(typed.spec), 0).apply(typed))
    copied = merge([one, moved], repair={"samples": 4}).checkpoint
    other = merge([one, checkpoint(case, 1)], repair={"samples": 4}).checkpoint
    plain = merge([one, checkpoint(case, 1)]).checkpoint
    inputs = probe(one.config, one.architecture)
    wanted, found, far, near_ = (outputs(instantiate(x, torch.float64), inputs) for x in (one, copied, other, plain))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert (far - near_).abs().max() > 1e-2
