"""Elements: apply, inverse, compose, save, load."""

import math

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, ViTConfig

from cobasin.architectures import declare
from cobasin.errors import InputError
from cobasin.symmetry.action import act
from cobasin.symmetry.canonical import gauge_of
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of as form
from random_states import BY_NAME, distance, form_of, random_state

every_form = pytest.mark.parametrize(
    ("family", "folded"), [(family, folded) for family in BY_NAME for folded in (True, False)]
)


def between(form, seed, source, target):
    """A random element from the gauge of one model to that of another."""
    sampled = Element.sample(form, seed)
    return Element(form, sampled.values, gauge_of(form, source), gauge_of(form, target), {"seed": seed})


def models(form, count):
    return [random_state(form.spec, seed) for seed in range(count)]


def assert_same(found, expected, tolerance=1e-11):
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=tolerance, atol=tolerance)


@every_form
def test_inverse_takes_the_model_back(family, folded):
    form = form_of(family, folded)
    source, target = models(form, 2)
    element = between(form, 5, source, target)
    there = dict(element.apply(source))
    assert distance(there, source) > 5
    assert_same(element.inverse().apply(there), source)
    assert_same(element.inverse().inverse().apply(source), there)


def test_what_is_only_put_in_another_order_keeps_its_dtype():
    """And its numbers; what is multiplied is what float32 makes of it."""
    form = form_of("bert", folded=False)
    source = {name: tensor.bfloat16() for name, tensor in random_state(form.spec, 0).items()}
    for part, dtypes in (("ffn", {torch.bfloat16}), ("attention", {torch.bfloat16, torch.float32})):
        values = Element.sample(form, 3, part).values
        moved = {name: act(form.spec, values, form.group, name, tensor) for name, tensor in source.items()}
        assert {tensor.dtype for tensor in moved.values()} == dtypes
        assert not all(torch.equal(tensor, source[name]) for name, tensor in moved.items())
        for name, tensor in moved.items():
            assert torch.equal(tensor.float(), act(form.spec, values, form.group, name, source[name].float()))
        applied = Element(form, values).apply(source)
        narrow = {name for name in source if moved[name].dtype == torch.bfloat16}
        assert {name for name in source if applied[name].dtype == torch.bfloat16} == narrow - form.changed != set()


@every_form
def test_composition_acts_in_turn(family, folded):
    form = form_of(family, folded)
    a, b, c, d = models(form, 4)
    f, g, h = between(form, 1, a, b), between(form, 2, b, c), between(form, 3, c, d)
    in_turn = dict(h.apply(dict(g.apply(dict(f.apply(a))))))
    assert_same(f.compose(g).compose(h).apply(a), in_turn)
    assert_same(f.compose(g.compose(h)).apply(a), in_turn)
    assert distance(g.compose(f).apply(a), f.compose(g).apply(a)) > 1  # the control: order matters


@every_form
def test_what_has_no_gauge_composes_with_what_has(family, folded):
    """It leaves the model in the gauge that it meets, on either side of the other."""
    form = form_of(family, folded)
    a, b = models(form, 2)
    with_gauge, without = between(form, 1, a, b), Element.sample(form, 2)
    for f, g in ((with_gauge, without), (without, with_gauge)):
        in_turn = dict(g.apply(dict(f.apply(a))))
        assert_same(f.compose(g).apply(a), in_turn)
        assert_same(f.compose(g).inverse().apply(in_turn), a, 1e-10)


@every_form
def test_composed_with_its_inverse_it_is_the_identity(family, folded):
    form = form_of(family, folded)
    source, target = models(form, 2)
    element = between(form, 5, source, target)
    assert_same(element.compose(element.inverse()).apply(source), source)


@pytest.mark.parametrize("family", [family for family in BY_NAME if family != "mamba2"])  # it has no FFN
def test_partial_elements_compose(family):
    """A space that one of two elements leaves alone, also the base of a fibre that the other moves."""
    form = form_of(family)
    state = random_state(form.spec)
    parts = ["heads", "attention", "ffn", "residual"]
    elements = [Element.sample(form, seed, part) for seed, part in enumerate(parts)]
    in_turn, composed = state, Element(form, {})
    for element in elements:
        in_turn, composed = dict(element.apply(in_turn)), composed.compose(element)
    assert_same(composed.apply(state), in_turn)
    largest = max(float(tensor.abs().max()) for tensor in in_turn.values())  # what carries an offset may be long
    assert_same(composed.inverse().apply(in_turn), state, 1e-12 * largest)


def test_the_empty_element_does_nothing():
    form = form_of("gpt2", folded=False)
    state = random_state(form.spec)
    assert_same(Element(form, {}).apply(state), state, 1e-12)


def test_tensors_by_other_names_are_refused():
    element = Element.sample(form_of("gpt2"))
    with pytest.raises(InputError, match=r"take cobasin\.transform"):
        element.apply({"bert.embeddings.word_embeddings.weight": torch.zeros(2, 2)})


def test_elements_of_different_forms_do_not_compose():
    first = Element.sample(form_of("gpt2"))
    for other in (form_of("gpt2", folded=False), form_of("vit")):
        with pytest.raises(InputError, match="cannot compose"):
            first.compose(Element.sample(other))


def test_a_sample_of_one_part_is_of_that_part():
    form = form_of("llama")
    spaces = {part: {key[0] for key in Element.sample(form, 0, part).values} for part in ("heads", "ffn", "residual")}
    assert spaces == {"heads": {"kv", "rep"}, "ffn": {"ffn"}, "residual": {"resid"}}
    assert len(Element.sample(form).values) == len(form.spec.sites)


@every_form
def test_files_come_back_equal(family, folded, tmp_path):
    form = form_of(family, folded)
    source, target = models(form, 2)
    element = between(form, 5, source, target)
    element.save(tmp_path / "element")
    found = Element.load(tmp_path / "element")
    assert found.form == form
    assert found.report == {"seed": 5}
    for mine, theirs in [
        *((element.values[key], found.values[key]) for key in element.values),
        (element.source, found.source or {}),  # a form without gauges has none
        (element.target, found.target or {}),
    ]:
        assert mine.keys() == theirs.keys()
        assert all(mine[part].dtype == theirs[part].dtype and mine[part].equal(theirs[part]) for part in mine)
    assert found.values.keys() == element.values.keys()
    for name, tensor in found.apply(source).items():
        assert torch.equal(tensor, element.apply(source)[name])


def test_a_file_with_general_maps_of_heads_of_usual_size_comes_back(tmp_path):
    """The shapes of its bases are told without data, which no device can be brought."""
    config = ViTConfig(
        hidden_size=128, num_attention_heads=2, num_hidden_layers=1, intermediate_size=4, image_size=4, patch_size=4
    )
    spec = declare(config, "ViTForImageClassification")
    element = between(form(spec, balanced=True), 0, *(random_state(spec, seed) for seed in (1, 2)))
    element.save(tmp_path / "element")
    found = Element.load(tmp_path / "element")
    assert found.form.balanced
    assert found.target.keys() == element.target.keys()


def test_files_are_safetensors_that_say_what_they_are(tmp_path):
    Element.sample(form_of("vit")).save(tmp_path / "element")
    with safe_open(tmp_path / "element", framework="pt") as file:
        assert file.metadata()["architecture"] == "ViTForImageClassification"


def resave(path, change):
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    change(tensors, metadata)
    save_file(tensors, path, metadata)


DAMAGE = {
    "other format": lambda tensors, metadata: metadata.update(cobasin="0"),
    "no format": lambda tensors, metadata: metadata.pop("cobasin"),
    "no form": lambda tensors, metadata: metadata.pop("form"),
    "form cut off": lambda tensors, metadata: metadata.update(form=metadata["form"][:-9]),
    "form of something else": lambda tensors, metadata: metadata.update(form="[1]"),
    "no report": lambda tensors, metadata: metadata.pop("report"),
    "unknown tensor": lambda tensors, metadata: tensors.update(extra=torch.zeros(1)),
    "unknown kind": lambda tensors, metadata: tensors.update({"colour/x": torch.zeros(1)}),
    "bad key": lambda tensors, metadata: tensors.update({"value/ffn.x/perm": torch.zeros(1)}),
    "unknown space": lambda tensors, metadata: tensors.update({"value/oops.0/perm": torch.zeros(1)}),
    "half an element": lambda tensors, metadata: tensors.pop("value/qk.0/matrix"),
    "wrong shape": lambda tensors, metadata: tensors.update({"value/qk.0/matrix": torch.zeros(3, 2, 2)}),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_files_are_refused(damage, tmp_path):
    path = tmp_path / "element"
    Element.sample(form_of("vit")).save(path)
    resave(path, damage)
    with pytest.raises(InputError) as refused:
        Element.load(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    "broken",
    [None, lambda gain: gain[1:], lambda gain: gain.long(), lambda gain: gain * math.nan],
    ids=["absent", "short", "whole numbers", "not finite"],
)
def test_gauges_that_no_model_has_are_refused(broken, tmp_path):
    path, form = tmp_path / "element", form_of("vit")
    element = between(form, 0, *models(form, 2))
    element.save(path)
    Element.load(path)
    name = form.norms[0].weight

    def change(tensors, metadata):
        gain = tensors.pop(f"target/{name}")
        tensors.update({f"target/{name}": broken(gain).clone()} if broken else {})

    resave(path, change)
    with pytest.raises(InputError, match=f"damaged element file.*{name}"):
        Element.load(path)


@pytest.mark.parametrize("keep", [0, 7, 300, -20])
def test_truncated_files_are_refused(keep, tmp_path):
    path = tmp_path / "element"
    Element.sample(form_of("vit")).save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match="element"):
        Element.load(path)


def test_what_is_no_element_file_is_refused(tmp_path):
    save_file({"x": torch.zeros(1)}, tmp_path / "model")
    for path in (tmp_path / "absent", tmp_path, tmp_path / "model"):
        with pytest.raises(InputError, match=path.name):
            Element.load(path)


def test_deviation_is_told_by_space():
    element = Element.sample(form_of("llama"))
    assert set(element.deviation()) == {"kv", "rep", "pair", "vo", "ffn", "resid"}
    assert max(element.deviation().values()) < 1e-12


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("value", [0.1, math.nan, math.inf])
def test_deviation_of_a_broken_element(layer, value):
    element = Element.sample(form_of("vit"))
    element.values["vo", layer]["matrix"][2, 1, 0] += value
    deviation = element.deviation()
    assert not deviation.pop("vo") < 0.05
    assert max(deviation.values()) < 1e-12


def test_a_tied_head_must_be_untied_before_its_norm_is_folded():
    """Folded, the head takes the final norm's gain, which the embedding must not."""
    spec = declare(GPT2Config(n_embd=8, n_layer=1, n_head=2), "GPT2LMHeadModel")
    with pytest.raises(ValueError, match="reads is folded"):
        Element.sample(form(spec, folded=True))
    assert Element.sample(form(spec)).values
