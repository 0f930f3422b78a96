"""General invertible maps of Q-K and V-O: matching in the balanced basis."""

import dataclasses

import pytest
import torch

from cobasin.checkpoints.typed import Typed
from cobasin.finding import match as api
from cobasin.finding.applying import transform
from cobasin.symmetry.balance import balancing_frames
from cobasin.symmetry.canonical import canonical, gauge_of
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from model_scrambles import general_scramble
from random_states import CONFIGS, random_state, spec_of
from random_states import checkpoint as checkpoint_of
from sampling import one_in
from tiny_models import checkpoint


@pytest.mark.parametrize("condition", [10.0, 1e3])
@pytest.mark.parametrize(
    "case",
    one_in(
        4,
        [
            "bert/BertForMaskedLM",
            "deberta/DebertaForMaskedLM",
            "deberta-v2-separate/DebertaV2ForMaskedLM",
            "vit/ViTForImageClassification",
            "gpt2-untied/GPT2LMHeadModel",
            "llama-gqa/LlamaForCausalLM",
        ],
        1,
    ),
)
def test_a_scrambled_copy_is_brought_back(case, condition):
    base = checkpoint(case)
    scrambled = general_scramble(Typed.of(base), condition)
    norm = sum(float(tensor.square().sum()) for tensor in Typed.of(base).values()) ** 0.5
    report = api.match(scrambled, base, "gl").report
    assert report["distance_before"] > 0.1 * norm
    assert report["distance_after"] < 1e-4 * norm
    assert all(0.5 * condition < worst < 1e6 for worst in report["condition"].values())
    orthogonal = api.match(scrambled, base, "full").report
    assert orthogonal["distance_after"] > 0.01 * norm  # the control: isometries and scales cannot


@pytest.mark.parametrize("family", CONFIGS)
def test_both_sides_are_balanced(family):
    """In the balanced basis both sides of a product have one Gram; balancing it again changes nothing."""
    form = form_of(spec_of(family), folded=True, free_biases=True, balanced=True)
    state = canonical(form, random_state(form.spec))
    assert form.balanced
    for key, frame in balancing_frames(form, state).items():
        identity = torch.eye(frame["matrix"].shape[-1], dtype=torch.float64).expand_as(frame["matrix"])
        torch.testing.assert_close(frame["matrix"], identity, rtol=1e-10, atol=1e-10, msg=str(key))
        torch.testing.assert_close(frame["dual"], identity, rtol=1e-10, atol=1e-10, msg=str(key))


@pytest.mark.parametrize("case", ["bert/BertForMaskedLM", "gpt2/GPT2LMHeadModel", "llama-gqa/LlamaForCausalLM"])
def test_only_what_is_chosen_changes(case):
    """Layers that are not matched keep their bases."""
    source, anchor = Typed.of(checkpoint(case, 1)), Typed.of(checkpoint(case, 2))
    moved = transform(api.match(source.checkpoint, anchor.checkpoint, "gl", "1"), source.checkpoint)
    changed = {name for name in source.checkpoint if not torch.equal(moved[name], source.checkpoint[name])}
    assert changed
    assert all(".1." in name for name in changed)


@pytest.mark.parametrize("side", ["query", "key"])
def test_a_head_without_a_frame_keeps_its_basis(side):
    """A head whose queries or keys are zero cannot be balanced: it is left as it is, and the function is kept."""
    form = form_of(spec_of("bert"), balanced=True)
    state = random_state(form.spec)
    name = f"encoder.layer.0.attention.self.{side}"
    state[f"{name}.weight"][:4] = 0
    state[f"{name}.bias"][:4] = 0
    frame = balancing_frames(form, state)["qk", 0]
    for part in ("matrix", "dual"):
        assert torch.equal(frame[part][0], torch.eye(4, dtype=torch.float64))
    assert not torch.equal(frame["matrix"][1], torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize("dead", [1, 3])
def test_general_maps_are_no_less_than_isometries_where_a_head_has_no_frame(dead):
    """Directions of zeros on one side, as padded heads have: a scale is found all the same."""
    form = form_of(spec_of("bert"), free_biases=True)
    anchor = random_state(form.spec)
    for part in ("weight", "bias"):
        anchor[f"encoder.layer.0.attention.self.query.{part}"][:dead] = 0
    values = Element.sample(form, 3).values
    values = {key: value for key, value in values.items() if key[0] in ("qk", "vo")}
    source = checkpoint_of("bert", dict(Element(form, values).apply(anchor)))
    for symmetry in ("full", "gl"):
        report = api.match(source, checkpoint_of("bert", anchor), symmetry).report
        assert report["distance_after"] < 1e-6 * report["distance_before"], symmetry


def test_an_element_is_saved_with_its_frames(tmp_path):
    form = form_of(spec_of("bert"), free_biases=True, balanced=True)
    state, other = random_state(form.spec, 0), random_state(form.spec, 1)
    element = dataclasses.replace(Element.sample(form, 2), source=gauge_of(form, state), target=gauge_of(form, other))
    element.save(tmp_path / "element.safetensors")
    loaded = Element.load(tmp_path / "element.safetensors")
    moved = element.apply(state)
    back = element.inverse().apply(moved)
    for name in state:
        assert torch.equal(loaded.apply(state)[name], moved[name])
        torch.testing.assert_close(back[name], state[name], rtol=1e-9, atol=1e-9)
