"""The canonical form and its inverse, the gauge."""

import pytest
import torch

from cobasin.checkpoints.typed import Typed
from cobasin.symmetry.canonical import canonical, gauge_of, in_gauge, obstacles
from cobasin.symmetry.form import form_of as form_for
from random_states import CONFIGS, distance, form_of, random_state
from tiny_models import checkpoint

PRE_NORM = ["vit", "gpt2", "llama", "llama with biases"]


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("family", CONFIGS)
def test_a_model_in_its_own_gauge_is_itself(family, folded):
    form = form_of(family, folded)
    state = random_state(form.spec)
    back = in_gauge(form, canonical(form, state), gauge_of(form, state))
    assert list(back) == list(state)
    for name, tensor in state.items():
        torch.testing.assert_close(back[name], tensor, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("family", [*CONFIGS, "mamba2"])
def test_the_canonical_form_is_its_own(family):
    """Folding twice is folding once; in another model's gauge, a model has the canonical form it had."""
    form = form_of(family)
    state, other = random_state(form.spec, 0), random_state(form.spec, 1)
    start = dict(canonical(form, state))
    again = canonical(form, start)
    written = in_gauge(form, start, gauge_of(form, other))
    foreign = canonical(form, dict(written))
    assert distance(written, state) > 1
    for name, tensor in start.items():
        torch.testing.assert_close(again[name], tensor, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(foreign[name], tensor, rtol=1e-11, atol=1e-11)
    for name in form.norm_parameters:
        torch.testing.assert_close(written[name], other[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("family", PRE_NORM)
def test_what_is_folded(family):
    """Gains are one; under LayerNorm nothing writes or reads the mean; the free biases are zero."""
    form = form_of(family)
    state = random_state(form.spec)
    start = canonical(form, state)
    assert form.norms
    for norm in form.norms:
        assert torch.equal(start[norm.weight], torch.ones_like(start[norm.weight]))
    for bias in form.biases:
        view = form.spec.entries[bias.bias].layout.blocks[bias.block].view(start[bias.bias])
        assert torch.equal(view, torch.zeros_like(view))
    if form.norms[0].centred:
        uncentred = {name for name in form.readers if form.carries_offset(name)}
        assert form.centred_writers
        for name in {*form.centred_writers, *form.readers} - uncentred:
            assert start[name].mean(form.view(name, "resid", state[name])[1]).abs().max() < 1e-12
    else:
        assert not form.centred_writers


def normed(x, centred):
    x = x - x.mean(-1, keepdim=True) if centred else x
    return x / x.square().mean(-1, keepdim=True).sqrt()


@pytest.mark.parametrize("family", PRE_NORM)
def test_what_readers_see_is_unchanged(family):
    """Reader after norm, on random streams: the same numbers in the canonical form and in a foreign gauge.

    A key bias is left out: the softmax cancels it, and the canonical form has none.
    """
    form = form_of(family)
    state, other = random_state(form.spec, 0), random_state(form.spec, 1)
    start = canonical(form, state)
    written = in_gauge(form, start, gauge_of(form, other))
    free = {gauge.bias for gauge in form.biases}
    x = torch.randn(5, state[form.norms[0].weight].numel(), dtype=torch.float64)

    def seen(model, name, norm):
        stream = normed(x, norm.centred) * model[norm.weight] + (model[norm.bias] if norm.bias else 0)
        weight = model[name] if form.view(name, "resid", state[name])[1] == 1 else model[name].T
        bias = form.bias_of(name)
        return stream @ weight.T + (model[bias] if bias and bias not in free else 0)

    compared = 0
    for name, norm in form.readers.items():
        if form.bias_of(name) in free and norm.bias:
            continue
        compared += 1
        expected = seen(state, name, norm)
        torch.testing.assert_close(seen(start, name, norm), expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(seen(written, name, norm), expected, rtol=1e-9, atol=1e-9)
        assert not torch.allclose(written[name], state[name], atol=1e-2)
    assert compared >= 2


def test_value_bias_moves_through_the_output():
    form = form_of("llama with biases")
    state = random_state(form.spec)
    own = "layers.1.self_attn"
    start = canonical(form, state)
    value = state[f"{own}.v_proj.bias"].view(2, 1, 6).expand(2, 2, 6).reshape(-1)  # shared by a group's two heads
    expected = state[f"{own}.o_proj.bias"] + state[f"{own}.o_proj.weight"] @ value
    torch.testing.assert_close(start[f"{own}.o_proj.bias"], expected)
    assert not torch.allclose(expected, state[f"{own}.o_proj.bias"], atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_computed_in_float32(dtype):
    form = form_of("vit")
    state = {name: tensor.to(dtype) for name, tensor in random_state(form.spec).items()}
    start = canonical(form, state)
    assert {start[name].dtype for name in start} == {torch.float32}
    back = in_gauge(form, start, gauge_of(form, state))
    assert all((back[name] - state[name].float()).abs().max() < 1e-5 for name in state)


def test_nothing_stands_in_the_way_of_generic_models():
    for family in CONFIGS:
        form = form_of(family)
        assert obstacles(form, random_state(form.spec, 0), random_state(form.spec, 1)) == []


@pytest.mark.parametrize(
    ("family", "name"), [("vit", "encoder.layer.1.layernorm_after.weight"), ("llama", "norm.weight")]
)
@pytest.mark.parametrize("value", [0.0, 1e-9])
def test_a_gain_of_zero_is_named(family, name, value):
    form = form_of(family)
    source, anchor = random_state(form.spec, 0), random_state(form.spec, 1)
    source[name][3] = value
    assert obstacles(form, source, anchor) == []  # the source's gains are folded away, none is divided by
    source, anchor = anchor, source
    (found,) = obstacles(form, source, anchor)
    assert name in found
    assert "entry 3" in found


def test_offsets_that_sum_to_zero_are_named():
    """GPT-2's head has no bias: the final offset stays in the norm, along the ones vector."""
    form = form_of("gpt2")
    source, anchor = random_state(form.spec, 0), random_state(form.spec, 1)
    ratio = anchor["ln_f.bias"] / anchor["ln_f.weight"]
    anchor["ln_f.bias"] = (ratio - ratio.mean()) * anchor["ln_f.weight"]
    (found,) = obstacles(form, source, anchor)
    assert "ln_f.bias" in found
    anchor["h.0.ln_1.bias"] *= 0  # its readers have biases: no obstacle
    assert len(obstacles(form, source, anchor)) == 1


def test_an_offset_stays_if_only_some_of_its_readers_have_biases():
    """GPT-J's FFN has them; its attention, which reads the same norm, does not."""
    source, anchor = (Typed.of(checkpoint("gptj/GPTJForCausalLM", seed)) for seed in (0, 1))
    folded, anchor = form_for(source.spec, folded=True), dict(anchor)
    assert obstacles(folded, source, anchor) == []
    gain, offset = "h.1.ln_1.weight", "h.1.ln_1.bias"
    ratio = anchor[offset] / anchor[gain]
    anchor[offset] = (ratio - ratio.mean()) * anchor[gain]
    (found,) = obstacles(folded, source, anchor)
    assert offset in found


def test_models_without_offsets_have_no_obstacle():
    form = form_of("gpt2")
    source, anchor = random_state(form.spec, 0), random_state(form.spec, 1)
    anchor["ln_f.bias"] *= 0
    (found,) = obstacles(form, source, anchor)  # the source's offset has nowhere to go
    assert "ln_f.bias" in found
    source["ln_f.bias"] *= 0
    assert obstacles(form, source, anchor) == []
    written = in_gauge(form, canonical(form, source), gauge_of(form, source))
    torch.testing.assert_close(written["lm_head.weight"], source["lm_head.weight"], rtol=1e-12, atol=1e-12)
