"""Statistics of a model, moved with its element, are those of the matched model."""

from dataclasses import replace

import pytest
import torch

from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import OUTPUT_NAMES, cast_floats, instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.finding.applying import typed_for
from cobasin.finding.match import match
from cobasin.fusion.regmean import regmean
from cobasin.statistics.collect import collector
from cobasin.statistics.moving import gram_obstacle, movable, move_fishers, move_grams
from cobasin.symmetry.canonical import gauge_of
from cobasin.symmetry.dual import act_dual
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from cobasin.symmetry.gauges import ValueBias
from direct_grams import direct_grams, names_by_value, read, value_of
from sampling import one_in
from tiny_models import ONE_A_DECLARATION, checkpoint, tolerance


def pair(case, folded=False):
    """Two random models of a case, as an element with these norms acts on them."""
    typed, other = (Typed.of(checkpoint(case, seed)) for seed in (0, 7))
    if folded and typed.spec.unties:
        return typed.untied(), other.untied()
    return typed, other


def applied(element, typed):
    return Typed.of(typed.derived(element.apply(typed), torch.float64))


def gap(a, b):
    """The largest difference of two Grams, relative to the largest entry."""
    assert a.keys() == b.keys()
    return max(float((a[name].matrix - b[name].matrix).abs().max() / b[name].matrix.abs().max()) for name in b)


@pytest.mark.parametrize(
    ("case", "folded"),
    one_in(
        4, [*((case, True) for case in ONE_A_DECLARATION[::4]), *((case, False) for case in ONE_A_DECLARATION[1::16])]
    ),
)
def test_grams_move_with_every_kind_of_element(case, folded):
    typed, other = pair(case, folded)
    form = form_of(typed.spec, folded, free_biases=True, balanced=True)
    element = replace(Element.sample(form, 3), target=gauge_of(form, other))
    grams = direct_grams(typed)
    fresh = direct_grams(applied(element, typed))
    assert gap(move_grams(element, typed, grams), fresh) < max(1e-9, tolerance(case))
    backwards = replace(element.inverse(), target=element.target)
    assert gap(grams, fresh) > 0.1
    assert gap(move_grams(backwards, typed, grams), fresh) > 0.1


@pytest.mark.parametrize("case", ["llama-gqa/LlamaForCausalLM", "opt/OPTForCausalLM", "t5/T5ForSequenceClassification"])
def test_grams_stay_in_the_models_own_gauge_without_a_target(case):
    typed, _ = pair(case, folded=True)
    element = Element.sample(form_of(typed.spec, folded=True, free_biases=True, balanced=True), 5)
    grams, fresh = direct_grams(typed), direct_grams(applied(element, typed))
    assert gap(move_grams(element, typed, grams), fresh) < max(1e-9, tolerance(case))
    assert gap(grams, fresh) > 0.1


@pytest.mark.parametrize("case", ["llama-gqa/LlamaForCausalLM", "bart/BartForConditionalGeneration"])
def test_maps_that_read_one_tensor_go_on_sharing_a_gram(case):
    """As they are collected."""
    typed, other = pair(case, folded=True)
    form = form_of(typed.spec, folded=True, free_biases=True)
    element = replace(Element.sample(form, 3), target=gauge_of(form, other))
    batch = probe(typed.checkpoint.config, typed.spec.architecture)
    inputs = {name: cast_floats(x, torch.float64) for name, x in batch.items()}
    ends = []
    for model in (typed, applied(element, typed)):
        sums = collector("grams", model, torch.device("cpu"))
        sums.add(inputs, None, 0)
        ends.append(sums.result(0))
    moved = move_grams(element, typed, ends[0])
    assert gap(moved, ends[1]) < max(1e-9, tolerance(case))
    assert gap(ends[0], ends[1]) > 0.1
    shared = [len({id(gram.matrix) for gram in grams.values()}) for grams in (ends[0], moved)]
    assert shared[0] == shared[1] < len(moved)


def test_what_no_group_acts_on_stays():
    typed, _ = pair("bert/BertForMaskedLM")
    element = Element.sample(form_of(typed.spec), 0, part="ffn")
    grams = direct_grams(typed)
    moved = move_grams(element, typed, grams)
    same = [name for name in grams if torch.equal(moved[name].matrix, grams[name].matrix)]
    assert set(grams) - set(same) == {f"encoder.layer.{i}.output.dense.weight" for i in range(2)}


@pytest.mark.parametrize(
    ("case", "symmetry"),
    [("bert/BertForMaskedLM", "gl"), ("gpt2/GPT2LMHeadModel", "full"), ("llama-gqa/LlamaForCausalLM", "full")],
)
def test_regmean_of_moved_grams_is_that_of_fresh_ones(case, symmetry):
    typed, other = pair(case)
    there = Element.sample(form_of(typed.spec), 1).apply(typed)
    anchor = Typed.of(typed.derived({name: there[name] + 0.01 * other[name] for name in typed}))
    element = match(typed.checkpoint, anchor.checkpoint, symmetry)
    source = typed_for(element, typed.checkpoint)
    new, own, target = applied(element, source), direct_grams(source), direct_grams(anchor)
    fresh, moved = direct_grams(new), move_grams(element, source, own)

    def fused(name, grams):
        return regmean((new[name], anchor[name]), (grams[name], target[name]), weight=(1.0, 1.0))

    names, stale = target.keys() & own.keys(), 0
    assert len(names) >= 8
    for name in names:
        expected = fused(name, fresh)
        near = 1e-5 * float(expected.abs().max())
        assert torch.allclose(fused(name, moved), expected, rtol=0, atol=near)
        stale += not torch.allclose(fused(name, own), expected, rtol=0, atol=10 * near)
    assert stale > len(names) / 2


def test_a_norm_without_a_gain_cannot_be_undone():
    typed, other = pair("opt/OPTForCausalLM", folded=True)
    name = "decoder.layers.0.self_attn_layer_norm.weight"
    form = form_of(typed.spec, folded=True)
    element = replace(Element.sample(form), target=gauge_of(form, other))
    assert gram_obstacle(element, typed) is None
    damaged = Typed.of(typed.derived(dict(typed) | {name: typed[name].clone().index_fill_(0, torch.tensor([3]), 0)}))
    assert gram_obstacle(element, damaged) == f"{name} has a gain of zero (entry 3)"
    with pytest.raises(InputError, match=r"gain of zero \(entry 3\).*collect them on the matched model"):
        move_grams(element, damaged, {})
    assert gram_obstacle(Element.sample(form_of(typed.spec)), damaged) is None  # not folded: nothing to undo


def direct_fishers(typed):
    """Mean squares, over rows, of the gradients of a random number that the outputs make; parameters by value."""
    model = instantiate(typed.checkpoint, torch.float64)
    batch = read(typed)
    rows, sums = len(next(iter(batch.values()))), {}
    for row in range(rows):
        result = model(**{name: cast_floats(x[row : row + 1], torch.float64) for name, x in batch.items()})
        generator = torch.Generator().manual_seed(row)
        outputs = next(found for names in OUTPUT_NAMES if (found := [result[name] for name in names if name in result]))
        loss = torch.cat([(x * torch.randn(x.shape, generator=generator)).flatten() for x in outputs]).sum()
        model.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                sums[parameter] = sums.get(parameter, 0) + parameter.grad.square() / rows
    names = names_by_value(typed)
    return {names[value]: square for p, square in sums.items() if (value := value_of(p)) in names}


def fisher_gap(a, b):
    """As `gap`; gradients that a softmax cancels are zero up to rounding, and count as zero."""
    assert a.keys() == b.keys()
    smallest = 1e-16 * max(float(x.max()) for x in b.values())
    return max(float((a[name] - b[name]).abs().max()) / max(smallest, float(b[name].max())) for name in b)


def monomial(form, seed):
    """A random element of permutations, signs and scales."""
    element = Element.sample(form, seed)
    for key, value in element.values.items():
        identity = form.group(key).identity(form.spec.batch(key[0]), form.spec.sizes[key[0]])
        value.update({part: identity[part] for part in value.keys() & {"matrix", "angle"}})
    return element


def fisher_form(typed):
    form = form_of(typed.spec, free_biases=True)
    return replace(form, biases=tuple(gauge for gauge in form.biases if not isinstance(gauge, ValueBias)))


@pytest.mark.usefixtures("float64_throughout")
@pytest.mark.parametrize("case", one_in(2, ONE_A_DECLARATION[::6]))
def test_fishers_move_under_permutations_signs_and_scales(case):
    typed, other = pair(case)
    form = fisher_form(typed)
    element = replace(monomial(form, 3), target=gauge_of(form, other))
    assert movable(element)
    fishers, fresh = direct_fishers(typed), direct_fishers(applied(element, typed))
    assert fisher_gap(move_fishers(element, typed, fishers), fresh) < 1e-8
    assert fisher_gap(fishers, fresh) > 0.1
    assert fisher_gap(move_fishers(element.inverse(), typed, fishers), fresh) > 0.1


@pytest.mark.parametrize("case", ["bert/BertForMaskedLM", "llama-gqa/LlamaForCausalLM"])
def test_fishers_do_not_move_under_a_rotation(case):
    typed, _ = pair(case)
    element = Element.sample(form_of(typed.spec), 3, part="attention")
    assert not movable(element)
    with pytest.raises(InputError, match="collect them on the matched model"):
        move_fishers(element, typed, {})
    fishers, fresh = direct_fishers(typed), direct_fishers(applied(element, typed))
    forced = {name: act_dual(element.form, element.values, name, x.sqrt()).square() for name, x in fishers.items()}
    assert fisher_gap(forced, fresh) > 0.1


@pytest.mark.parametrize("freedom", [{"folded": True}, {"free_biases": True}, {"balanced": True}], ids=str)
def test_fishers_do_not_move_where_a_gauge_changes(freedom):
    """Though nothing else acts."""
    typed, other = pair("gptneox/GPTNeoXForCausalLM")
    form = form_of(typed.spec, **freedom)
    element = Element(form, {}, target=gauge_of(form, other))
    assert not movable(element)
    assert movable(Element(form_of(typed.spec), {}))
    assert fisher_gap(direct_fishers(typed), direct_fishers(applied(element, typed))) > 0.1
