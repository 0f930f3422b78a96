"""Elements applied to models other than the one that was matched, and undone."""

import copy
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.finding import match as api
from cobasin.finding.applying import transform
from cobasin.merging.merge import merge
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from command_line import run
from tiny_models import checkpoint, model

pytestmark = pytest.mark.usefixtures("few_rounds")


def changed(case, seed, **settings):
    """The model of a case with another configuration of the same shapes."""
    made = model(case, seed)
    for key, value in settings.items():
        setattr(made.config, key, value)
    return load(type(made)(made.config).double())


@pytest.mark.parametrize(
    ("case", "settings", "said"),
    [
        ("bert/BertForMaskedLM", {"hidden_act": "relu"}, "spaces of the two differ; expected"),
        ("llama-gqa/LlamaForCausalLM", {"attention_bias": True}, "templates of the two differ; expected"),
        ("bert/BertForMaskedLM", {"intermediate_size": 28}, r"sizes of the two differ \(\{'ffn': 28\} against"),
    ],
)
def test_a_model_of_another_type_is_refused(case, settings, said):
    element = api.match(checkpoint(case, 1), checkpoint(case, 2))
    assert transform(element, checkpoint(case, 3))
    with pytest.raises(InputError, match=f"not of the type that the element acts on: the {said}"):
        transform(element, changed(case, 3, **settings))


def offset(case, seed, value):
    """The model of a case whose last norm has this offset."""
    made = model(case, seed)
    with torch.no_grad():
        made.transformer.ln_f.bias.copy_(torch.as_tensor(value, dtype=torch.float64).expand(24))
    return load(made)


def test_an_offset_that_the_target_cannot_carry():
    """The head of an untied GPT-2 has no bias: the anchor's offset must carry what the source's norm adds."""
    case = "gpt2-untied/GPT2LMHeadModel"
    element = api.match(offset(case, 1, 0.0), offset(case, 2, 0.0))
    with pytest.raises(InputError, match=r"ln_f\.bias of the anchor sums to next to nothing over its gains"):
        transform(element, offset(case, 3, 0.5))["lm_head.weight"]
    alternating = torch.tensor([1.0, -1.0]).repeat(12)
    source = model(case, 1)
    with torch.no_grad():
        source.transformer.ln_f.weight.fill_(1.0)
        source.transformer.ln_f.bias.copy_(alternating)
    element = api.match(load(source), checkpoint(case, 2))
    moved = transform(element, load(source))
    with pytest.raises(InputError, match="sums to next to nothing"):
        transform(element.inverse(), moved)["lm_head.weight"]


def test_a_gain_of_zero_cannot_be_written_back():
    case = "gpt2-untied/GPT2LMHeadModel"
    source = model(case, 1)
    with torch.no_grad():
        source.transformer.ln_f.weight[3] = 0.0
    element = api.match(load(source), checkpoint(case, 2))
    moved = transform(element, load(source))
    with pytest.raises(InputError, match=r"ln_f\.weight of the anchor has a gain of zero"):
        transform(element.inverse(), moved)


def test_in_its_own_gauge_a_model_with_a_gain_of_zero_cannot_be_written_either():
    source = model("gpt2-untied/GPT2LMHeadModel", 1)
    with torch.no_grad():
        source.transformer.ln_f.weight[3] = 0.0
    element = Element.sample(form_of(Typed.of(load(source)).spec, folded=True))
    with pytest.raises(InputError, match=r"ln_f\.weight of the model has a gain of zero \(entry 3\)"):
        transform(element, load(source))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrower_dtype_is_rounded_to_once(dtype):
    source, anchor = (checkpoint("llama-gqa/LlamaForCausalLM", seed, torch.float32) for seed in (1, 2))
    element = api.match(source, anchor)
    wide, narrow = transform(element, source), transform(element, source, dtype)
    assert all(torch.equal(narrow[name], wide[name].to(dtype)) for name in wide.headers)


def test_a_head_without_a_frame_keeps_its_basis_and_comes_back():
    """Queries of zero have no balanced basis: under gl the head stays in its own."""
    case = "bert/BertForMaskedLM"
    source = model(case, 1)
    query = source.bert.encoder.layer[0].attention.self.query
    with torch.no_grad():
        query.weight[:6] = 0
        query.bias[:6] = 0
    original = Typed.of(load(source))
    element = api.match(load(source), checkpoint(case, 2), "gl")
    moved = element.apply(original)
    back = element.inverse().apply(moved)
    for name in original:
        torch.testing.assert_close(back[name], original[name], rtol=1e-8, atol=1e-8)
    # no more than turned, as the singular values of its keys tell; the others take their sizes from the anchor's
    key = "encoder.layer.0.attention.self.key.weight"
    sizes = [torch.linalg.svdvals(state[key].view(4, 6, -1)) for state in (original, moved)]
    apart = (sizes[0][:, None] - sizes[1]).abs().amax(-1).amin(1) / sizes[0].amax(-1)
    assert apart[0] < 1e-9
    assert (apart[1:] > 1e-3).all()


def edited(path, change):
    """An element's file with its tensors changed."""
    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(tensors)
    save_file(tensors, path, metadata)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["target/qk.0:dual"].mul_(1.3), "qk is outside its group"),
        (lambda t: t.pop("target/qk.0:dual"), "the gauge lacks qk.0:dual"),
        (lambda t: t.pop("source/encoder.layer.0.attention.self.key.bias:0"), "the gauge lacks encoder.layer.0"),
    ],
)
def test_a_damaged_gauge_is_refused(tmp_path, change, message):
    case = "bert/BertForMaskedLM"
    path = tmp_path / "element.safetensors"
    element = api.match(checkpoint(case, 1), checkpoint(case, 2), "gl")
    element.save(path)
    assert Element.load(path).deviation().keys() == element.deviation().keys()
    edited(path, change)
    with pytest.raises(InputError, match=message):
        Element.load(path)


def test_large_conditions_are_noted():
    case = "bert/BertForMaskedLM"
    source, anchor = checkpoint(case, 1, torch.bfloat16), model(case, 2)
    assert api.match(source, load(copy.deepcopy(anchor).bfloat16()), "gl").report["condition"].keys() == {"qk", "vo"}
    with torch.no_grad():
        anchor.bert.encoder.layer[0].attention.self.query.weight[0] *= 1e4
    notes = api.match(source, load(anchor.bfloat16()), "gl").report["notes"]
    assert any("amplifies the rounding of the file" in note for note in notes)


def test_the_report_says_how_far_every_space_was_and_is():
    source, anchor = (checkpoint("bert/BertForMaskedLM", seed) for seed in (1, 2))
    element = api.match(source, anchor, "ffn")  # no norm is folded, so that the files are what is compared
    states, wanted = {"before": source, "after": transform(element, source)}, Typed.of(anchor)
    for layer in (0, 1):
        parts = ("intermediate.dense.weight", "intermediate.dense.bias", "output.dense.weight")
        names = [f"encoder.layer.{layer}.{part}" for part in parts]
        for when, state in states.items():
            apart = sum(float((Typed.of(state)[name] - wanted[name]).square().sum()) for name in names) ** 0.5
            assert element.report["spaces"][f"ffn.{layer}"][when] == pytest.approx(apart, rel=1e-6)


def named_heads(folder):
    """What Whisper's times of words are read from: the cross-attention of the heads that a file names."""
    made = load(folder)
    running = instantiate(made, torch.float64)
    running.set_attn_implementation("eager")
    inputs = probe(made.config, made.architecture, 0)
    inputs = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
    with torch.no_grad():
        attended = running(**inputs, output_attentions=True).cross_attentions
    heads = json.loads((folder / "generation_config.json").read_text())["alignment_heads"]
    return heads, torch.stack([attended[layer][:, head] for layer, head in heads])


def test_heads_that_a_file_names_are_named_where_they_are(tmp_path):
    folders = [tmp_path / str(seed) for seed in range(2)]
    models = [model("whisper/WhisperForConditionalGeneration", seed) for seed in range(2)]
    for made, folder in zip(models, folders, strict=True):
        made.generation_config.alignment_heads = [[0, 0], [0, 1], [1, 0], [1, 1], [2, 1]]
        made.save_pretrained(folder)
    assert run("match", folders[1], folders[0], "--out", tmp_path / "matched").code == 0
    (before, expected), (after, found) = named_heads(folders[1]), named_heads(tmp_path / "matched")
    assert torch.allclose(found, expected, rtol=0, atol=1e-9)
    assert after != before
    (tmp_path / "matched" / "generation_config.json").write_bytes((folders[1] / "generation_config.json").read_bytes())
    assert not torch.allclose(named_heads(tmp_path / "matched")[1], expected, rtol=0, atol=1e-3)
    merged = merge([folders[1], folders[0]], symmetry="full", anchor=1)  # the first moves, and its files go along
    moved = transform(Element.load(tmp_path / "matched"), models[1])
    for made in (merged.checkpoint, moved):
        assert json.loads(made.beside["generation_config.json"])["alignment_heads"] == after
