"""Trained models: planted recovery, and independently trained pairs brought together."""

import json
from pathlib import Path

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch.nn.functional import cross_entropy

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.running import instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.finding import match as api
from cobasin.finding.applying import transform
from cobasin.merging.merge import merge
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import Form
from cobasin.verification import verify
from model_scrambles import general_scramble
from real_models import minilm, shared
from sampling import one_in


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_minilm_scrambled_by_its_full_group_is_recovered(dtype):
    original = Typed.of(load(minilm()))
    rounded = original.derived(original, dtype)
    typed = Typed.of(rounded)
    scrambled = typed.derived(Element.sample(Form(typed.spec), 0).apply(typed))
    report = api.match(scrambled, rounded).report
    # one rounding of every scrambled entry is all that is left
    assert report["distance_after"] < torch.finfo(dtype).eps * report["distance_before"]
    assert report["distance_before"] > 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_minilm_scrambled_by_invertible_maps_is_recovered(dtype):
    original = Typed.of(load(minilm()))
    rounded = original.derived(original, dtype)
    report = api.match(general_scramble(Typed.of(rounded), condition=10.0), rounded, "gl").report
    assert report["distance_before"] > 100
    assert report["distance_after"] < 3 * torch.finfo(dtype).eps * report["distance_before"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["gpt2-shakespeare-{}", "cifar10-vit-seed{}"])
def test_neurons_are_assigned_as_in_float64(name, dtype):
    """Gains are products of float32, of bfloat16 files of bfloat16; the order is that of exact ones."""
    typed = [Typed.of(load(shared("models", name.format(i)))) for i in (1, 0)]
    source, anchor = (Typed.of(one.derived(one, dtype)) for one in typed)
    values = api.match(source.checkpoint, anchor.checkpoint, "ffn").values
    assert len(values) == 4
    for key, value in values.items():
        n = source.spec.sizes[key[0]]
        gains = torch.zeros(n, n, dtype=torch.float64)
        for site in source.spec.sites[key]:
            block = source.spec.entries[site.tensor].layout.blocks[site.block]
            views = (block.view(end[site.tensor].double()) for end in (anchor, source))
            theirs, ours = (view.movedim(site.axis, 0).reshape(n, -1) for view in views)
            gains += theirs @ ours.T
        assert value["perm"].tolist() == linear_sum_assignment(gains, maximize=True)[1].tolist()


def _text_loss(folder: Path, checkpoint) -> float:
    """Nats a character on the test text, in blocks of 128 characters of which the first is not predicted."""
    number = {c: i for i, c in enumerate(json.loads((folder / "chars.json").read_text()))}
    text = shared("data", "lm", "tinyshakespeare", "test.txt").read_text()
    tokens = torch.tensor([number[c] for c in text])
    blocks = tokens[: len(tokens) // 128 * 128].view(-1, 128)
    model, total = instantiate(checkpoint, torch.float32), 0.0
    with torch.no_grad():
        for batch in blocks.split(64):
            logits = model(input_ids=batch).logits[:, :-1]
            total += cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum").item()
    return total / (len(blocks) * 127)


@pytest.mark.parametrize(
    ("name", "tolerance", "raw", "at_most", "distance"),
    one_in(2, [("gpt2-shakespeare", 1e-9, 3.246, 2.3, 30.815), ("llama-shakespeare", 5e-6, 3.508, 2.65, 40.3)]),
)
def test_language_models_from_two_seeds(name, tolerance, raw, at_most, distance):
    anchor, source = shared("models", f"{name}-0"), shared("models", f"{name}-1")
    plain = merge([anchor, source], symmetry="none")
    assert _text_loss(anchor, plain.checkpoint) == pytest.approx(raw, abs=2e-3)
    merged = merge([anchor, source])
    assert _text_loss(anchor, merged.checkpoint) < at_most
    _, element = merged.elements
    assert element is not None
    assert element.report["objective"][-1] < distance  # what an ascent that has settled finds
    moved = transform(element, source, torch.float64)
    assert verify(load(source), moved, tolerance).same
    assert verify(load(source), load(anchor), tolerance).same is False


def test_vision_transformers_from_two_seeds():
    anchor, source = shared("models", "cifar10-vit-seed0"), shared("models", "cifar10-vit-seed1")
    history = {}
    for symmetry in ("paper", "full"):
        element = api.match(source, anchor, symmetry)
        assert verify(load(source), transform(element, source, torch.float64), 1e-9).same
        history[symmetry] = element.report["objective"]
        assert all(b <= a * (1 + 1e-9) for a, b in zip(history[symmetry][1:], history[symmetry][2:], strict=False))
    assert history["full"][-1] < 0.85 * history["paper"][-1]
    assert history["full"][-1] < 38.55  # what an ascent that has settled finds
