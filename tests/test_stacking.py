"""Layers stacked by `passthrough`: of one model or several, in any order, matched or not."""

import json
import re

import pytest
import torch
from transformers import Wav2Vec2ForCTC

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate, outputs
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.writer import save
from cobasin.errors import InputError
from cobasin.finding.applying import transform
from cobasin.merging.merge import merge_recipe
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from cobasin.symmetry.keys import after_layers, layer_of
from command_line import run, stock
from merge_cases import saved
from model_folders import assert_bitwise
from sampling import one_in
from stack_cases import LLAMA, recipe, slice_of, three_layers
from tiny_models import checkpoint, config, model, tolerance

# Of every kind: what says in a config of which kind a layer is.
PRE_NORM = [
    "gpt2/GPT2ForSequenceClassification",
    "gptneo/GPTNeoForCausalLM",  # attention_types
    "bloom/BloomForCausalLM",
    "llama-mqa-tied/LlamaForCausalLM",
    "gemma3/Gemma3ForCausalLM",  # layer_types
    "smollm3/SmolLM3ForCausalLM",  # no_rope_layers
    "llama4/Llama4ForCausalLM",  # moe_layers
    "mistral-large4-biased/MistralLarge4TextModel",  # kv_source_layers
    "exaone-moe/ExaoneMoeForCausalLM",  # mlp_layer_types
    "deepseek3/DeepseekV3ForCausalLM",  # first_k_dense_replace
    "lfm2-moe/Lfm2MoeForCausalLM",  # num_dense_layers
    "gemma4-experts/Gemma4ForCausalLM",  # per_layer_config
    "qwen3.5-moe/Qwen3_5MoeForCausalLM",  # layers without attention
    "nemotron-h/NemotronHForCausalLM",  # layers_block_type
    "mamba2/Mamba2ForCausalLM",
    "vit/ViTForImageClassification",
    "dinov2/Dinov2ForImageClassification",
    "modernbert/ModernBertForMaskedLM",  # a first layer that lacks a norm
]
SCRAMBLED = [
    "gpt2/GPT2LMHeadModel",
    "llama-mqa-tied/LlamaForCausalLM",
    "vit/ViTForImageClassification",
    "gemma3/Gemma3ForCausalLM",
]
CLASSIFIER = "bert/BertForSequenceClassification"


def stack(models: dict, *slices: dict, **keys) -> Checkpoint:
    return merge_recipe(recipe(*slices, **keys), models).checkpoint


def depth(model: Checkpoint) -> int:
    return model.config.num_hidden_layers


def logits(model: Checkpoint) -> torch.Tensor:
    return outputs(instantiate(model, torch.float64), probe(model.config, model.architecture, seed=3))


def change(one: Checkpoint, other: Checkpoint) -> float:
    """The relative change of the outputs on probe inputs."""
    a, b = logits(one), logits(other)
    return float((a - b).norm() / a.norm())


def writers(model: Checkpoint, layer: int) -> list[str]:
    """What of a layer writes to the stream, by name: all that has an axis there, but norms and what reads these."""
    typed = Typed.of(model)
    spec = typed.spec
    streams = {name for name, space in spec.spaces.items() if space.part == "residual"}
    norms = [norm for norm in spec.norms if norm.stream in streams]
    others = {
        name for norm in norms for one in (norm.weight, norm.bias, *norm.readers) if one for name, _ in spec.expand(one)
    }
    found = []
    for part, disk in typed.disk_names.items():
        name, _ = spec.file_entries[part]
        entry = spec.entries[name]
        if (
            layer_of(entry.index) == layer
            and name not in others
            and any(axis.space in streams for axis in entry.layout.axes)
        ):
            found.append(disk)
    return found


@pytest.mark.parametrize("case", [*PRE_NORM, CLASSIFIER, "wav2vec2-stable/Wav2Vec2ForCTC"])
def test_all_layers_in_order_are_the_model_bit_by_bit(case):
    original = checkpoint(case, dtype=torch.float32)
    for made in (
        stack({"a": original}, slice_of("a", 0, 1), slice_of("a", 1, depth(original))),
        merge_recipe({"merge_method": "passthrough", "models": [{"model": "a"}]}, {"a": original}).checkpoint,
    ):
        assert made.headers == original.headers
        assert made.config.to_dict() == original.config.to_dict()
        assert_bitwise(dict(made), dict(original))


@pytest.mark.parametrize("case", one_in(3, PRE_NORM))
def test_a_layer_that_writes_nothing_changes_nothing_wherever_it_is_put(tmp_path, case):
    """The result is read back from a file, and the layers behind it are in other places than before."""
    original = checkpoint(case)
    save(original, tmp_path / "a")
    name, last = str(tmp_path / "a"), depth(original)
    moved = [re.sub(r"(?<=\.)\d+(?=\.)", "1", one, count=1) for one in writers(original, last - 1)]
    assert len(moved) >= 1
    silent = {"scale": [*({"filter": one, "value": 0.0} for one in moved), {"value": 1}]}
    for parameters, changes in (({}, True), (silent, False)):
        between = slice_of(name, last - 1, last, parameters=parameters)
        save(stack({}, slice_of(name, 0, 1), between, slice_of(name, 1, last)), tmp_path / "out", overwrite=True)
        made = load(tmp_path / "out")
        assert depth(made) == last + 1
        assert (change(original, made) > 1e-3) if changes else (change(original, made) < tolerance(case))


@pytest.mark.parametrize("case", SCRAMBLED)
def test_layers_of_a_copy_in_other_weights_fit_once_they_are_matched(case):
    original = checkpoint(case)
    form = form_of(Typed.of(original).spec, folded=not Typed.of(original).spec.unties)
    models = {"a": original, "b": transform(Element.sample(form, 1), original)}
    slices = [slice_of("b" if i % 2 else "a", i, i + 1) for i in range(depth(original))]
    assert change(original, stack(models, *slices)) > 1e-2
    merged = merge_recipe(recipe(*slices, match="full"), models)
    assert merged.elements[1] is not None
    assert change(original, merged.checkpoint) < tolerance(case)
    # also where what comes before the layers and what follows them are of two models
    assert change(
        original, stack(models, *reversed_roles(slices), match={"symmetry": "full", "anchor": "a"})
    ) < tolerance(case)


def reversed_roles(slices: list[dict]) -> list[dict]:
    """The same slices with a for b and b for a."""
    return json.loads(json.dumps(slices).replace('"a"', '"c"').replace('"b"', '"a"').replace('"c"', '"b"'))


@pytest.mark.parametrize(
    "case",
    [
        "gpt2/GPT2LMHeadModel",  # scale_attn_by_inverse_layer_idx, which is no place
        "beit/BeitForImageClassification",  # a first layer that nothing is dropped from
    ],
)
def test_layers_that_differ_in_nothing_but_their_place_can_be_turned_around(case):
    original = checkpoint(case)
    turned = stack({"a": original}, slice_of("a", 1, 2), slice_of("a", 0, 1))
    assert change(original, turned) > 1e-3
    assert_bitwise(dict(stack({"a": turned}, slice_of("a", 1, 2), slice_of("a", 0, 1))), dict(original))


def test_layers_can_be_turned_around_where_other_modules_are_as_many():
    options = config("wav2vec2-stable/Wav2Vec2ForCTC")
    for key in ("conv_dim", "conv_kernel", "conv_stride"):
        setattr(options, key, getattr(options, key)[: options.num_hidden_layers])
    options.num_feat_extract_layers = options.num_hidden_layers
    original = load(Wav2Vec2ForCTC._from_config(options))
    made = stack({"a": original}, slice_of("a", 1, 2), slice_of("a", 0, 1))
    name = "wav2vec2.encoder.layers.{}.attention.k_proj.weight"
    assert torch.equal(made[name.format(0)], original[name.format(1)])


def test_layers_can_be_left_out_of_what_can_be_a_backbone():
    original = checkpoint("dinov2/Dinov2ForImageClassification")
    made = stack({"a": original}, slice_of("a", 0, 1))
    assert (original.config.out_features, made.config.out_features) == (["stage2"], ["stage1"])
    assert change(original, made) > 1e-3


def test_buffers_of_layers_go_with_them():
    given = checkpoint("gptneo/GPTNeoForCausalLM")
    buffers = {f"transformer.h.{i}.attn.attention.bias": torch.full((1, 1, 4, 4), i).byte() for i in range(2)}
    original = load(dict(given) | buffers, given.config.to_dict() | {"architectures": [given.architecture]})
    made = stack({"a": original}, slice_of("a", 1, 2), slice_of("a", 0, 2))
    assert [int(made[f"transformer.h.{i}.attn.attention.bias"].max()) for i in range(3)] == [1, 0, 1]
    assert made.config.attention_types == [[["local"], 1], [["global"], 1], [["local"], 1]]


def test_what_only_one_file_has_stays_as_it_is():
    a, b = (checkpoint("bert/BertModel", seed) for seed in (0, 1))
    names = b.config.to_dict() | {"architectures": [b.architecture]}
    bare = load({name: b[name] for name in b if "pooler" not in name}, names)
    models, slices = {"a": a, "b": bare}, (slice_of("a", 0, 1), slice_of("b", 0, 2, parameters={"scale": 2.0}))
    made = stack(models, *slices)
    assert torch.equal(made["pooler.dense.weight"], a["pooler.dense.weight"])
    assert torch.equal(made["encoder.layer.1.output.dense.weight"], 2 * b["encoder.layer.0.output.dense.weight"])
    assert "pooler.dense.weight" not in stack(models, *slices, base_model="b").headers


@pytest.mark.parametrize("said", [[1, 2], [1, 2, 1]])  # of as many layers as there are, and of more
def test_how_many_experts_a_layer_asks_goes_with_it(said):
    made = model("hunyuan-moe/HunYuanMoEV1ForCausalLM")
    made.config.moe_topk = said
    assert stack({"a": load(made)}, slice_of("a", 1, 2), slice_of("a", 0, 2)).config.moe_topk == [2, 1, 2]


def test_tensors_are_of_the_layers_that_are_named(tmp_path):
    a, b = three_layers(0), three_layers(1)
    made = stack(
        {"a": a, "b": b},
        slice_of("b", 2, 3),
        slice_of("a", 0, 2, parameters={"scale": [1.0, 3.0]}),
        slice_of("b", 1, 3) | {"parameters": {"scale": 0.5}},
        parameters={"scale": {"filter": "q_proj", "value": 2.0}},
    )
    expected = [(b, 2, 1.0, 2.0), (a, 0, 1.0, 1.0), (a, 1, 3.0, 3.0), (b, 1, 0.5, 0.5), (b, 2, 0.5, 0.5)]
    for i, (source, layer, scale, queries) in enumerate(expected):
        for name in ("mlp.up_proj.weight", "self_attn.q_proj.weight", "input_layernorm.weight"):
            factor = queries if "q_proj" in name else scale
            assert torch.equal(made[f"model.layers.{i}.{name}"], source[f"model.layers.{layer}.{name}"] * factor), (
                i,
                name,
            )
    assert torch.equal(made["model.embed_tokens.weight"], b["model.embed_tokens.weight"])
    assert torch.equal(made["model.norm.weight"], b["model.norm.weight"] * 0.5)  # as the last slice says
    save(made, tmp_path / "out")
    read = stock(tmp_path / "out")
    assert read.config.num_hidden_layers == len(read.model.layers) == 5
    assert change(made, load(read)) < 1e-12


def test_a_head_that_is_tied_to_the_embedding_stays_that_of_the_last_model():
    a, b = (checkpoint("llama-mqa-tied/LlamaForCausalLM", seed) for seed in (0, 1))
    merged = merge_recipe(recipe(slice_of("a", 0, 1), slice_of("b", 1, 2)), {"a": a, "b": b})
    made = merged.checkpoint
    assert "the output head is untied from the embedding" in merged.notes
    assert made.config.tie_word_embeddings is False
    assert torch.equal(made["model.embed_tokens.weight"], a["model.embed_tokens.weight"])
    assert torch.equal(made["lm_head.weight"], b["model.embed_tokens.weight"])
    alone = stack({"a": a, "b": b}, slice_of("a", 0, 1), slice_of("b", 1, 2), slice_of("a", 1, 2))
    assert alone.config.tie_word_embeddings is True
    assert "lm_head.weight" not in alone.headers


def test_a_head_can_be_that_of_another_model():
    a, b = (checkpoint(CLASSIFIER, seed) for seed in (0, 1))
    slices = [slice_of("a", 0, 1), slice_of("b", 1, 2)]
    for head, giver in ((None, b), ("a", a), ("b", b)):
        made = stack({"a": a, "b": b}, *slices, head=head)
        assert torch.equal(made["classifier.weight"], giver["classifier.weight"])
        assert torch.equal(made["bert.embeddings.word_embeddings.weight"], a["bert.embeddings.word_embeddings.weight"])
    a.config.id2label = {0: "no", 1: "yes"}
    with pytest.raises(InputError, match="the task heads of a and b have different labels"):
        stack({"a": a, "b": b}, *slices)
    assert stack({"a": a, "b": b}, *slices, head="a").config.id2label == a.config.id2label
    a.config.id2label = b.config.id2label


def test_the_command_plans_and_writes_a_stack(tmp_path):
    a, b = map(str, saved(tmp_path, LLAMA, 2))
    path, out = tmp_path / "recipe.yaml", tmp_path / "out"
    path.write_text(json.dumps(recipe(slice_of(a, 0, 2), slice_of(b, 0, 2), match="full")))
    planned = run("merge", path, "--dry-run", "--json").json
    done = run("merge", path, "--out", out, "--json").json
    assert not planned["notes"]
    assert planned["method"] == done["method"] == "passthrough"
    assert planned["models"] == done["models"] == [a, b]
    assert planned["bytes_written"] == load(out).size
    assert [match["source"] for match in done["matches"]] == [b]
    assert stock(out).config.num_hidden_layers == 4
    assert "passthrough" in run("methods").out


@pytest.mark.parametrize(
    "case",
    [
        "bloom/BloomForCausalLM",
        "electra-untied/ElectraForMaskedLM",
        "ernie/ErnieForPreTraining",
        "hubert-stable/HubertForCTC",
        "hubert/HubertForCTC",
        "llama-gqa/LlamaForCausalLM",
        "opt-350m/OPTForCausalLM",
        "rembert/RemBertForMaskedLM",
        "lfm2/Lfm2ForCausalLM",
        "wavlm/WavLMForCTC",
    ],
)
def test_what_is_declared_behind_the_layers_runs_behind_them(case):
    made = model(case)
    spec = Typed.of(load(made)).spec
    calls: list[str] = []
    for path, module in made.named_modules():
        module.register_forward_hook(lambda *_, path=path: calls.append(path))
    outputs(made, probe(made.config, type(made).__name__))
    tensors = {
        own: path
        for path in dict.fromkeys(calls)
        for name, _ in made.get_submodule(path).named_parameters(recurse=False)
        if (own := spec.own_name(f"{path}.{name}")) in spec.entries and own not in {*spec.tied, *spec.unread_names}
    }
    within = [calls.index(path) for own, path in tensors.items() if layer_of(spec.entries[own].index) is not None]
    outside = {own: path for own, path in tensors.items() if layer_of(spec.entries[own].index) is None}
    behind = {own for own, path in outside.items() if calls.index(path) > max(within)}
    assert behind == after_layers(spec.entries) & outside.keys()
    assert outside.keys() - behind
    assert behind
