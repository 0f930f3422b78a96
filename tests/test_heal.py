"""The heal: it lowers what it looks at, never gives back something worse, and depends on nothing but its seed."""

import copy
import math

import pytest
import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate
from cobasin.data import Batch
from cobasin.learning.descent import hold_out
from cobasin.merging.heal import Judge, heal
from cobasin.merging.merge import merge
from command_line import near
from merge_cases import CLASSIFIER, saved, token_rows
from model_folders import assert_bitwise
from real_models import shared
from tiny_models import model

MIXTRAL = "mixtral/MixtralForCausalLM"


def near_pair(case=CLASSIFIER):
    """Two models, what lies between them, and batches of random inputs with labels."""
    first = model(case)
    ends = [instantiate(load(one), torch.float32) for one in (first, near(first, noise=0.3))]
    middle = copy.deepcopy(ends[0])
    with torch.no_grad():
        for own, other in zip(middle.parameters(), ends[1].parameters(), strict=True):
            own.lerp_(other, 0.5)
    batches = [Batch(probe(first.config, type(first).__name__, seed), torch.tensor([0, 1])) for seed in range(12)]
    return middle, ends, batches


@pytest.mark.parametrize("against", ["parents", "labels"])
def test_the_held_out_loss_falls(against):
    middle, ends, batches = near_pair()
    if against == "labels":  # that can be told from the inputs
        for batch in batches:
            batch.labels[:] = batch.inputs["input_ids"][:, 0] % 2
    judge = Judge(ends, "classification")
    held, seen = hold_out(batches)
    before = [copy.deepcopy(end.state_dict()) for end in ends]
    start = judge.mean(middle, seen, against)
    losses = heal(middle, judge, held, seen, steps=60, against=against, rate=3e-3).losses
    assert min(losses) <= losses[0]
    assert judge.mean(middle, held, against) == pytest.approx(min(losses), rel=1e-6)
    assert judge.mean(middle, seen, against) < 0.99 * start
    for end, state in zip(ends, before, strict=True):
        assert_bitwise(end.state_dict(), state)


def test_the_loss_is_that_of_the_mean_answer():
    middle, ends, (batch, *_) = near_pair()
    judge = Judge(ends, "classification")
    logits = [one(**batch.inputs).logits for one in (middle, *ends)]
    mean = (logits[1].softmax(-1) + logits[2].softmax(-1)) / 2
    wanted = -(mean * logits[0].log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(judge.loss(middle, batch, "parents"), wanted)
    wanted = torch.nn.functional.cross_entropy(logits[0], batch.labels)
    torch.testing.assert_close(judge.loss(middle, batch, "labels"), wanted)


def test_it_gives_back_what_it_was_given_where_nothing_helps():
    """A rate at which everything is lost at once; the control is that parameters did move."""
    middle, ends, batches = near_pair()
    start, moved = copy.deepcopy(middle.state_dict()), []
    held, seen = hold_out(batches)
    judge = Judge(ends, "classification")

    def watch(step, loss):
        moved.append(any(not torch.equal(x, start[name]) for name, x in middle.state_dict().items()))

    losses = heal(middle, judge, held, seen, steps=20, rate=10.0, progress=watch).losses
    assert_bitwise(middle.state_dict(), start)
    assert moved == [True, True]
    assert min(losses) == losses[0]
    assert all(map(math.isfinite, losses))


def healed(models, seed=0, **options):
    return merge(models, symmetry="none", heal={"steps": 6, "samples": 16, "rate": 1e-3, "seed": seed, **options})


@pytest.mark.parametrize("case", [CLASSIFIER, MIXTRAL])
def test_the_seed_decides(case):
    """Also of experts that Transformers joins in memory."""
    first = model(case, dtype=torch.float32)
    models = [first, near(first, noise=0.3)]
    one, again, other = (healed(models, seed) for seed in (0, 0, 1))
    plain = merge(models, symmetry="none")
    assert plain.after is None
    assert_bitwise(dict(one.checkpoint), dict(again.checkpoint))
    assert one.after == again.after
    assert one.after["losses"]["merge"] != other.after["losses"]["merge"]
    assert one.checkpoint.keys() == plain.checkpoint.keys()
    changed = [name for name, tensor in one.checkpoint.items() if not torch.equal(tensor, plain.checkpoint[name])]
    assert one.after["losses"]["heal"]["parents"] < one.after["losses"]["merge"]["parents"]
    assert any("experts" in name or "intermediate" in name for name in changed)
    instantiate(one.checkpoint, torch.float32)


def test_tied_heads_stay_tied():
    first = model("llama-mqa-tied/LlamaForCausalLM", dtype=torch.float32)
    found = healed([first, near(first, noise=0.3)]).checkpoint
    assert "lm_head.weight" not in found
    assert found.config.tie_word_embeddings


@pytest.mark.parametrize("method", ["slerp", "ties", "ot_wts"])
def test_after_other_methods(method):
    first = model(CLASSIFIER, dtype=torch.float32)
    models = [first, near(first, noise=0.3)]
    options = {"slerp": {"t": 0.4}, "ties": {"base": near(first, noise=0.1), "density": 0.5}, "ot_wts": {}}[method]
    options |= {} if method == "ties" else {"repair": True}
    found = merge(models, method, symmetry="none", heal={"steps": 2, "samples": 16}, **options)
    losses = found.after["losses"]
    assert list(losses) == (["merge", "heal"] if method == "ties" else ["merge", "repair", "heal"])
    assert all(math.isfinite(loss) for stage in losses.values() for loss in stage.values())
    before = losses[list(losses)[-2]]["parents"]
    assert losses["heal"]["parents"] <= before


def test_weights_of_the_merge_are_those_of_the_repair(tmp_path):
    """All weight on one parent: its own statistics are repaired to."""
    models = saved(tmp_path, CLASSIFIER, 2)
    data = {"path": str(token_rows(tmp_path / "rows.jsonl", 16))}
    one = merge(models, symmetry="none", weights=[1, 0], repair={"data": data})
    assert_bitwise(dict(one.checkpoint), dict(merge(models, symmetry="none", weights=[1, 0]).checkpoint))
    half = merge(models, symmetry="none", weights=[1, 1], repair={"data": data})
    plain = merge(models, symmetry="none", weights=[1, 1])
    assert any(not torch.equal(tensor, plain.checkpoint[name]) for name, tensor in half.checkpoint.items())


def test_an_overflow_is_told(monkeypatch):
    monkeypatch.setattr("cobasin.merging.after.RATE", 1e30)
    first = model(CLASSIFIER, dtype=torch.float32)
    found = merge([first, near(first, noise=0.3)], symmetry="none", heal={"steps": 6, "samples": 16})
    assert found.notes == ["healing ended after 1 of 6 steps: the loss overflowed; a lower rate may bring it further"]
    assert found.after["losses"]["heal"] == found.after["losses"]["merge"]


def test_a_trained_pair():
    """Two vision transformers of other seeds: matched and averaged, repaired and healed, on images that are made up."""
    models = [shared("models", f"cifar10-vit-seed{i}") for i in range(2)]
    found = merge(models, repair={"samples": 192}, heal={"steps": 15, "rate": 3e-4})
    losses = [stage["parents"] for stage in found.after["losses"].values()]
    assert losses[0] > losses[1] > losses[2]
    assert found.after["inputs"]["held_out"] == 24
    assert found.notes == []


@pytest.mark.parametrize(
    ("asked", "count", "repaired"),
    [
        ({"repair": True}, 1024, 896),  # one in eight is held out
        ({"heal": 1}, 2048, 0),
        ({"heal": 1, "repair": True}, 2048, 1024),
        ({"heal": {"steps": 1, "samples": 1280}, "repair": True}, 1280, 1152),
    ],
)
def test_how_many_inputs_there_are_where_nothing_is_said(monkeypatch, asked, count, repaired):
    """A repair, which runs the models for every norm, takes fewer than are learned from."""
    monkeypatch.setattr("cobasin.learning.inputs.IMAGES", 2048)
    seen = []
    monkeypatch.setattr("cobasin.merging.after.repair", lambda _, __, batches, *___: seen.extend(batches) or ["norm"])
    ends = [load(model("vit/ViTForImageClassification", seed)) for seed in (0, 1)]
    after = merge(ends, "linear", symmetry="none", **asked).after
    assert after["inputs"]["count"] == count
    assert sum(len(batch.inputs["pixel_values"]) for batch in seen) == repaired
