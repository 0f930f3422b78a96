"""Matching by activations, and what it has in common with learning: inputs that are made up, data, refusals."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.data.synthetic import dead_leaves
from cobasin.data.writing import written
from cobasin.errors import InputError
from cobasin.finding import match as api
from cobasin.finding.applying import transform
from cobasin.finding.common_form import APART
from cobasin.finding.search import Search
from cobasin.matching.activations import ActivationPair, with_activations
from cobasin.matching.choice import Choice
from cobasin.matching.state import Match
from cobasin.merging.merge import merge_recipe
from cobasin.recipe import Recipe
from cobasin.statistics.joint import joint_activations
from cobasin.statistics.modules import holders_of, input_axis, linear_maps
from cobasin.symmetry.action import act
from cobasin.symmetry.canonical import canonical
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from cobasin.verification import verify
from command_line import near
from data_sets.data_models import bert
from made_up import synthetic_inputs
from sampling import one_in
from tiny_models import checkpoint, model, tolerance

GPT2 = "gpt2-untied/GPT2LMHeadModel"
VIT = "vit/ViTForImageClassification"
BERT = "bert/BertForSequenceClassification"
CHOICE = "bert/BertForMultipleChoice"
CASES = ["bert/BertForMaskedLM", GPT2, "llama-gqa/LlamaForCausalLM", "qwen3/Qwen3ForCausalLM", VIT]
FEW = {"activations": {"samples": 16}, "learned": {"samples": 16, "steps": 3}}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Texts that are quickly made up, and matches of unrelated models that end before they have settled."""
    monkeypatch.setattr("cobasin.matching.weights.MAX_ROUNDS", 15)
    monkeypatch.setattr("cobasin.data.writing.LONGEST", 12)
    monkeypatch.setattr("cobasin.finding.search.TEXTS", 24)
    monkeypatch.setattr("cobasin.learning.inputs.WRITTEN", 24)


@cache
def unrelated(case):
    return checkpoint(case), checkpoint(case, seed=1)


def rows(count=20, text=False, labels=False):
    """Rows of data of token ids, or of words."""
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(5, 30, (6 + i % 3,), generator=generator).tolist() for i in range(count)]
    return [{"text": "a b"} if text else {"input_ids": row} | ({"label": 0} if labels else {}) for row in ids]


@pytest.mark.parametrize("case", CASES)
def test_activations_move_as_their_types_say(case):
    """A planted element carries the activations of the source onto those of the target; another does not."""
    typed = Typed.of(checkpoint(case))
    form = form_of(typed.spec, folded=bool(typed.spec.norms), free_biases=True)
    element, other = (Element.sample(form, seed) for seed in (1, 2))
    moved = Typed.of(typed.derived(element.apply(typed)))
    match = Match(form, Choice.parse("full"), canonical(form, typed), canonical(form, moved))
    models = [instantiate(typed.derived(state), torch.float64) for state in (match.source, match.anchor)]
    maps = [linear_maps(holders_of(one, typed)) for one in models]
    found = {}
    for name, sides in joint_activations(models, maps, [synthetic_inputs(models, 4)]).items():
        weight, side = name.split(":")
        into = input_axis(maps[0][weight])
        found[name] = ActivationPair(into if side == "in" else 1 - into, side == "in", sides)
    joint = with_activations(match, found)
    assert len(found) > 4
    differ = 0
    for name in found:
        x, y = joint.source[name], joint.anchor[name]
        assert act(joint.spec, element.values, form.group, name, x).sub(y).norm() < 1e-6 * y.norm(), name
        differ += bool(act(joint.spec, other.values, form.group, name, x).sub(y).norm() > 0.1 * y.norm())
    assert differ > len(found) / 2


def test_joint_activations_keep_inner_products_and_skip_padding():
    """As many rows as both have independent columns, with the inner products of the centred tokens that count."""
    models = [model(BERT, seed) for seed in (0, 1)]
    weight = "encoder.layer.0.attention.self.query.weight"
    typed = Typed.of(load(models[0]))
    maps = [{weight: linear_maps(holders_of(one, typed))[weight]} for one in models]
    generator = torch.Generator().manual_seed(0)
    width = typed[weight].shape[1]
    ids, mask = torch.randint(5, 30, (40, 8), generator=generator), torch.ones(40, 8, dtype=torch.int64)
    mask[:20, 5:] = 0
    batches = [{"input_ids": i, "attention_mask": m} for i, m in zip(ids.split(10), mask.split(10), strict=True)]
    kept = torch.cat(joint_activations(models, maps, batches)[f"{weight}:in"], 1)
    assert kept.shape == (2 * (width - 1), 2 * width)  # what a layer norm puts out has one dimension less
    with torch.no_grad():
        states = [one(ids, mask, output_hidden_states=True).hidden_states[0] for one in models]
    both = torch.cat(states, -1)
    for counted, same in ((mask.bool(), True), (torch.ones_like(mask).bool(), False)):
        centred = both[counted] - both[counted].mean(0)
        assert torch.allclose(kept.mT @ kept, centred.mT @ centred, rtol=1e-8, atol=1e-8) is same


def test_joint_activations_far_from_zero_have_their_variances():
    """In float32, where squares of the mean round away what a column varies by; one column does not vary at all."""
    maps = [{"w": nn.Linear(3, 2)} for _ in range(2)]
    models = [lambda pixel_values, own=own["w"]: own(pixel_values) for own in maps]
    generator = torch.Generator().manual_seed(0)
    x = 1e4 + torch.randn(64, 5, 3, generator=generator) * torch.tensor([1.0, 0.1, 0.0])
    source, anchor = joint_activations(models, maps, [{"pixel_values": x}])["w:in"]
    centred = x.double().flatten(0, 1) - x.double().mean((0, 1))
    assert torch.allclose(source, anchor, atol=1e-6)
    assert len(source) == 2
    assert torch.allclose((source.mT @ anchor).double(), centred.mT @ centred, rtol=1e-4, atol=1e-4)


def test_a_model_runs_on_few_rows_at_a_time_and_never_on_one():
    models = [model(VIT, seed) for seed in (0, 1)]
    typed = Typed.of(load(models[0]))
    maps = [linear_maps(holders_of(one, typed)) for one in models]
    seen = []
    models[0].register_forward_pre_hook(lambda _, __, given: seen.append(len(given["pixel_values"])), with_kwargs=True)
    inputs = synthetic_inputs(models, 33)
    whole = joint_activations(models, maps, [inputs])
    assert seen == [11, 11, 11]
    parts = joint_activations(models, maps, [{"pixel_values": x} for x in inputs["pixel_values"].split(16)[:2]])
    assert whole.keys() == parts.keys()
    assert seen[3:] == [16, 16]


def test_layers_that_say_less_than_others_of_their_kind():
    """The first of two groups of layers of an ALBERT runs twice as often as the second."""
    options = {"num_hidden_groups": 2, "num_hidden_layers": 3}
    ends = [load(near(model("albert/AlbertModel", seed), 0.0, **options)) for seed in (0, 1)]
    element = api.match(*ends, method="activations", samples=2)
    assert verify(ends[0], transform(element, ends[0], torch.float64)).same


@pytest.mark.parametrize(
    ("case", "method", "data", "count"),
    [
        (VIT, "activations", None, 256),
        (VIT, "learned", None, 32768),
        (GPT2, "activations", None, 24),  # TEXTS, above
        (GPT2, "learned", None, 24),
        (GPT2, "activations", 300, 256),
        (GPT2, "learned", 1100, 1100),
    ],
)
def test_how_many_inputs_there_are_where_nothing_is_said(case, method, data, count):
    search = Search(method, data=data and rows(data)).prepared([Typed.of(checkpoint(case))])
    assert search.inputs.count == count


@pytest.mark.parametrize("method", ["activations", "learned"])
@pytest.mark.parametrize("case", one_in(3, CASES, 1))
def test_the_function_is_kept_and_what_was_found_depends_on_inputs_alone(case, method):
    source, anchor = unrelated(case)
    element = api.match(source, anchor, method=method, **FEW[method])
    assert verify(source, transform(element, source, torch.float64), tolerance(case)).same
    assert verify(source, anchor, tolerance(case)).same is False
    assert max(element.deviation().values()) < 1e-9
    assert element.report["method"] == method
    if method == "activations":
        assert element.report["distance_after"] != api.match(source, anchor).report["distance_after"]
    else:
        assert len(element.report["learning"]["held_out"]) == 2  # at the start, and after the last step


@pytest.mark.parametrize("method", ["activations", "learned"])
@pytest.mark.parametrize("case", one_in(3, CASES))
def test_a_planted_element_stays_exact(case, method):
    source = unrelated(case)[0]
    typed = Typed.of(source)
    scrambled = typed.derived(Element.sample(form_of(typed.spec), 2).apply(typed))
    by_weights, found = (api.match(scrambled, source, method=m).report for m in ("weights", method))
    assert found["distance_after"] == by_weights["distance_after"] < 1e-4 * found["distance_before"]
    assert found["notes"] == [f"the weights agree: nothing was left for method {method}"]


def disagreement(case, ends):
    """Cross-entropy of the midpoint to what the ends answer on average, on inputs that no match has seen."""
    models = [instantiate(end, torch.float64) for end in ends]
    inputs = {name: x.double() if x.is_floating_point() else x for name, x in synthetic_inputs(models, 32, 99).items()}
    middle = instantiate(ends[0], torch.float64)
    with torch.no_grad():
        for target, *own in zip(*(one.parameters() for one in (middle, *models)), strict=True):
            target.copy_(sum(own) / 2)
        wanted = sum(one(**inputs).logits.softmax(-1) for one in models) / 2
        return -float((wanted * middle(**inputs).logits.log_softmax(-1)).sum(-1).mean())


@pytest.mark.parametrize("method", ["activations", "learned"])
@pytest.mark.parametrize("case", [GPT2, VIT])
def test_near_copies_stay_where_they_are(case, method):
    """Two small changes of one model: the element is close to the identity, and the midpoint no worse."""
    base = model(case)
    first, second = load(base), load(near(base, noise=0.01))
    element = api.match(second, first, method=method, **FEW[method] | {"samples": 64})
    for key, value in element.values.items():
        if "perm" in value:
            assert (value["perm"] == torch.arange(value["perm"].shape[-1])).all(), key
        if "matrix" in value:
            assert (value["matrix"] - torch.eye(value["matrix"].shape[-1])).abs().max() < 0.1, key
    raw, matched = disagreement(case, [first, second]), disagreement(case, [first, transform(element, second)])
    assert matched < raw + 1e-3


def test_synthetic_inputs_are_the_same_for_the_same_seed():
    for case in CASES:
        made = instantiate(checkpoint(case), torch.float32)
        one, two, other = (synthetic_inputs([made, made], 3, seed) for seed in (0, 0, 1))
        for name, x in one.items():
            assert x.equal(two[name])
            assert not x.equal(other[name])
            assert len(x) == 3
        made(**one)


@pytest.mark.parametrize("data", [None, "files"])
def test_a_vit_mae_hides_the_same_patches_of_all_models(data, tmp_path):
    """Left alone it draws them anew in every run, so that two models would see different ones."""
    ends = [checkpoint("vit-mae/ViTMAEModel", seed, torch.float32) for seed in (0, 1)]
    if data:
        np.savez(tmp_path / "x.npz", image=np.random.default_rng(0).random((4, 8, 8, 3), np.float32))
        data = {"path": tmp_path / "x.npz", "mean": [0], "std": [1]}
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        found.append(api.match(*ends, method="activations", samples=4, data=data).report["objective"])
    assert found[0] == found[1]


def test_dead_leaves_have_edges_and_large_shapes():
    images = dead_leaves(20, 3, 32, 32, torch.Generator().manual_seed(0))
    steps = images.diff(dim=-1)
    assert (steps == 0).double().mean() > 0.6
    assert images.mean((-2, -1)).std() > 0.2
    assert images.abs().max() <= 2


def test_images_are_the_same_whatever_the_default_dtype():
    plain = dead_leaves(2, 3, 16, 16, torch.Generator().manual_seed(0))
    torch.set_default_dtype(torch.float64)
    try:
        assert dead_leaves(2, 3, 16, 16, torch.Generator().manual_seed(0)).equal(plain)
    finally:
        torch.set_default_dtype(torch.float32)


def test_data_takes_the_place_of_what_is_made_up():
    source, anchor = unrelated(GPT2)
    reports = [
        api.match(source, anchor, method="activations", data=data, samples=8).report for data in (rows(), rows(9), None)
    ]
    assert [report["inputs"]["count"] for report in reports] == [8, 8, 8]
    assert len({report["distance_after"] for report in reports}) == 3
    assert reports[0]["inputs"]["digest"] != reports[1]["inputs"]["digest"]
    assert reports[2]["inputs"]["digest"] is None


@pytest.mark.parametrize("data", [None, [{"text": "what a bad day it was"}] * 4])
def test_one_tokenizer_among_the_models_is_enough(data):
    """Whichever of them has it: the anchor here."""
    source, anchor = bert("ForMaskedLM"), bert("ForMaskedLM")
    read = anchor.read
    anchor.read = lambda name: read(name) + 0.1 * torch.sin(torch.arange(read(name).numel())).view_as(read(name))
    options = {"method": "activations", "samples": 4, "data": data}
    expected = api.match(source, anchor, **options).report["inputs"]
    source.folder = None
    assert api.match(source, anchor, **options).report["inputs"] == expected
    assert "random" not in expected["kind"]
    anchor.folder = None
    if data is None:
        assert "random tokens" in api.match(source, anchor, **options).report["inputs"]["kind"]
    else:
        with pytest.raises(InputError, match="has no tokenizer, which text needs"):
            api.match(source, anchor, **options)


@pytest.mark.parametrize("method", ["activations", "learned"])
def test_inputs_on_which_models_overflow_are_refused(method):
    pixels = torch.full((8, 8, 3), torch.finfo(torch.float32).max)
    data = [{"image": pixels.numpy(), "label": 0}] * 4
    with pytest.raises(InputError, match="overflow on"):
        api.match(*unrelated(VIT), method=method, data=data)


def test_many_models():
    models = [checkpoint(GPT2, seed) for seed in range(3)]
    matched = api.match_all(models, method="activations", anchor="medoid", samples=8)
    assert [element.report["method"] for element in matched.elements if element] == ["activations"] * 2
    for original, element in zip(models, matched.elements, strict=True):
        if element is not None:
            assert verify(original, transform(element, original, torch.float64), 1e-9).same
    with pytest.raises(InputError, match="anchor consensus: not found by method activations"):
        api.match_all(models, method="activations", anchor="consensus")


@pytest.mark.parametrize(
    ("case", "options", "message"),
    [
        (GPT2, {"method": "psychic"}, "'psychic' is unknown; expected one of weights, activations, learned"),
        (GPT2, {"data": []}, "method weights reads no data"),
        (GPT2, {"method": "learned", "steps": 0}, "steps 0: expected a whole number from 1"),
        (GPT2, {"method": "activations", "samples": 0}, "samples 0: expected a whole number from 1"),
        (GPT2, {"method": "activations", "seed": 1 << 63}, r"expected a whole number from 0 to 2\^63 - 1"),
        (
            GPT2,
            {"method": "activations", "seed": 1 << 63, "data": rows()},
            r"expected a whole number from 0 to 2\^63 - 1",
        ),
        (GPT2, {"method": "learned", "symmetry": "ffn"}, "symmetry 'ffn' frees only orders here"),
        (GPT2, {"method": "learned", "data": rows(1)}, "1 is too few"),
        (VIT, {"method": "learned", "samples": 1}, "1 is too few"),
        (GPT2, {"method": "learned", "data": rows(text=True)}, "tokenizer"),
        ("t5/T5Model", {"method": "activations"}, "no inputs can be made up for T5Model; give it data"),
        (
            "mbart/MBartForConditionalGeneration",
            {"method": "activations"},
            "for MBartForConditionalGeneration; give it",
        ),
        (CHOICE, {"method": "activations"}, "which chooses among several texts; match and merge it by weights"),
        (CHOICE, {"method": "learned", "data": rows()}, "no data is read or made up for a BertForMultipleChoice"),
        ("tapas/TapasForMaskedLM", {"method": "activations"}, "which reads tables; match and merge it by weights"),
        ("luke/LukeForEntityClassification", {"method": "activations"}, "which reads entities; match and merge it by"),
        ("xmod/XmodModel", {"method": "activations"}, "which names no default_language; match and merge it by weights"),
        (
            "nystromformer/NystromformerModel",
            {"method": "activations"},
            "reads texts of 24 tokens only; match and merge",
        ),
        ("markuplm/MarkupLMModel", {"method": "activations"}, "which reads pages; match and merge it by weights"),
        ("tapas/TapasModel", {"method": "learned", "data": rows()}, "no data is read or made up for a TapasModel"),
        ("wav2vec2/Wav2Vec2ForCTC", {"method": "activations"}, "for Wav2Vec2ForCTC, nor read; match by weights"),
        ("videomae/VideoMAEForVideoClassification", {"method": "activations"}, "nor read; match by weights"),
        ("vilt/ViltForMaskedLM", {"method": "activations"}, "nor read; match by weights"),
        ("wav2vec2-bert/Wav2Vec2BertForCTC", {"method": "activations"}, "nor read; match by weights"),
        (
            "speech-to-text/Speech2TextForConditionalGeneration",
            {"method": "activations"},
            "for Speech2TextForConditionalGeneration, nor read; match by weights",
        ),
        (
            "blip/BlipForConditionalGeneration",
            {"method": "activations"},
            "read or made up for a BlipForConditionalGeneration; match and merge it by weights",
        ),
        (GPT2, {"method": "activations", "device": "cuda:99"}, "device 'cuda:99' cannot be used here"),
    ],
)
def test_what_cannot_be_done_is_refused(case, options, message):
    source, anchor = unrelated(case)
    with pytest.raises(InputError, match=message):
        api.match(source, anchor, **options)


def test_a_decoder_that_overflows_writes_nothing():
    end = model(GPT2, 0)
    with torch.no_grad():
        end.transformer.wte.weight.fill_(torch.nan)
    with pytest.raises(InputError, match="what it writes is not finite"):
        written(end, 2, 4, torch.Generator())


def test_classifiers_that_cannot_tell_padding_and_different_labels_are_refused():
    ends = [model("gpt2/GPT2ForSequenceClassification", seed) for seed in (0, 1)]
    for end in ends:
        end.config.pad_token_id = None
    with pytest.raises(InputError, match="no pad_token_id"):
        api.match(*map(load, ends), method="activations")
    ends = [model(BERT, seed) for seed in (0, 1)]
    ends[0].config.id2label = {0: "yes", 1: "no"}
    ends[0].config.label2id = {"yes": 0, "no": 1}
    with pytest.raises(InputError, match="the task heads have different labels"):
        api.match(*map(load, ends), method="learned")
    assert api.match(*map(load, ends), method="activations", samples=8).report["method"] == "activations"


@pytest.mark.parametrize(("samples", "compared"), [(None, 256), (8, 8), (300, 300)])
def test_as_many_inputs_are_compared_as_are_asked_for(samples, compared):
    report = api.match(*unrelated(VIT), method="activations", samples=samples).report
    assert f"by activations on {compared} inputs that were made up" in report["notes"][0]


@pytest.mark.parametrize(("method", "told"), [("weights", True), ("activations", True), ("learned", False)])
def test_models_that_stay_far_apart_are_told(method, told):
    """Unless their losses were brought together. A scrambled copy with noise is near, once it is matched."""
    source, anchor = unrelated(VIT)
    few = FEW.get(method, {})
    assert (APART in api.match(source, anchor, method=method, **few).report["notes"]) is told
    typed = Typed.of(anchor)
    noisy = {name: typed[name] + 0.3 * noise for name, noise in Typed.of(source).items()}
    moved = typed.derived(Element.sample(form_of(typed.spec), 2).apply(noisy))
    assert APART not in api.match(moved, anchor, method=method, **few).report["notes"]


def test_a_recipe():
    """What it says of matching is what `match` is given."""
    ends = dict(zip("ab", unrelated(VIT), strict=True))
    content = {"merge_method": "linear", "models": [{"model": "a"}, {"model": "b"}]}
    recipe = Recipe.of(content | {"match": {"method": "activations", "samples": 8, "seed": 3}})
    (element,) = filter(None, merge_recipe(recipe, ends).elements)
    same = api.match(ends["b"], ends["a"], method="activations", samples=8, seed=3)
    assert element.report["distance_after"] == same.report["distance_after"]
    assert element.report["inputs"] == {
        "kind": "inputs that were made up",
        "count": 8,
        "digest": None,
        "seed": 3,
    }


@pytest.mark.parametrize("case", ["clip/CLIPModel", "siglip/SiglipModel"])
def test_embeddings_of_two_towers_are_noted(case):
    """Their logits stay; what is stored of their embeddings is of no use afterwards, unless the stream stays."""
    models = [model(case, seed) for seed in (0, 1)]
    inputs = probe(models[0].config, type(models[0]).__name__)
    inputs = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}

    def embedded(symmetry):
        element = api.match(*models, symmetry)
        ends = (load(models[0]), transform(element, models[0], torch.float64))
        with torch.no_grad():
            a, b = (instantiate(end, torch.float64)(**inputs).text_embeds for end in ends)
        return any("text_embeds" in note for note in element.report["notes"]), float((a - b).abs().max())

    noted, change = embedded("full")
    assert noted
    assert change > 0.1
    noted, change = embedded("ffn,heads,attention,scale")
    assert not noted
    assert change < 1e-6


def test_embeddings_that_are_taken_from_a_model_with_a_head_are_noted(tmp_path):
    folders = [tmp_path / str(seed) for seed in (0, 1)]
    for seed, folder in enumerate(folders):
        model("qwen3/Qwen3ForCausalLM", seed).save_pretrained(folder)
    assert not any("Sentence Transformers" in note for note in api.match(*folders).report["notes"])
    for folder in folders:
        (folder / "modules.json").write_text("[]")
    assert any("Sentence Transformers" in note for note in api.match(*folders).report["notes"])
    assert not any("Sentence Transformers" in note for note in api.match(*folders, "ffn").report["notes"])
    for folder in folders:  # rerankers: what the head puts out is what they are for
        (folder / "sentence_bert_config.json").write_text('{"transformer_task": "text-generation"}')
    assert not any("Sentence Transformers" in note for note in api.match(*folders).report["notes"])
