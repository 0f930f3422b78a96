"""Models that nobody has declared, merged by the names of their tensors."""

import pytest
import torch
import transformers as T
from safetensors.torch import load_file

from cobasin.checkpoints.by_name import by_name, check_by_name
from cobasin.checkpoints.checkpoint import load
from cobasin.errors import InputError
from cobasin.merging.merge import merge, merge_recipe
from command_line import duplicate, edit_tensors, refused, run, tensors_of
from merge_cases import recipe, token_rows
from tiny_models import model

SEGFORMER = {
    "hidden_sizes": [8, 16],
    "num_attention_heads": [1, 2],
    "depths": [1, 2],
    "num_encoder_blocks": 2,
    "sr_ratios": [2, 1],
    "patch_sizes": [3, 3],
    "strides": [4, 2],
    "mlp_ratios": [2, 2],
    "decoder_hidden_size": 8,
}


def segformer(folder, seed, **options):
    torch.manual_seed(seed)
    model = T.SegformerForSemanticSegmentation(T.SegformerConfig(**{**SEGFORMER, **options}))
    model.decode_head.batch_norm.num_batches_tracked.fill_(seed)
    model.save_pretrained(folder)
    return folder


def fnet(folder, seed, **options):
    torch.manual_seed(seed)
    config = T.FNetConfig(vocab_size=40, hidden_size=8, num_hidden_layers=3, intermediate_size=8, **options)
    T.FNetForMaskedLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def pair(tmp_path):
    return [segformer(tmp_path / str(seed), seed) for seed in range(2)]


def test_tensors_of_one_name_are_averaged_and_counters_copied(tmp_path, pair):
    out = run("merge", *pair, "--match", "none", "--out", tmp_path / "out")
    assert out.code == 0
    assert "no declaration covers this SegformerForSemanticSegmentation: tensors are merged by name" in out.out
    one, other, found = (load_file(folder / "model.safetensors") for folder in (*pair, tmp_path / "out"))
    assert found.keys() == one.keys()
    for name, tensor in found.items():
        if tensor.is_floating_point():
            assert torch.allclose(tensor, (one[name] + other[name]) / 2, atol=1e-7)
        else:
            assert tensor == 0
    model = T.SegformerForSemanticSegmentation.from_pretrained(tmp_path / "out").eval()
    assert model(torch.ones(1, 3, 32, 32)).logits.isfinite().all()


def test_constants_that_differ_are_named(pair):
    for value, folder in enumerate(pair):
        edit_tensors(folder, lambda tensors, value=value: tensors.update(index=torch.tensor([0, value])))
    line = f"index: no weights, so not merged, but taken from {pair[0]}; the models differ there"
    assert line in merge([*pair], symmetry="none").notes
    edit_tensors(pair[1], lambda tensors: tensors.update(index=torch.tensor([0, 0])))
    assert not any("no weights" in note for note in merge([*pair], symmetry="none").notes)


def test_layers_are_told_by_the_numbers_in_names(tmp_path):
    parents = [fnet(tmp_path / str(seed), seed) for seed in range(2)]
    told = recipe(tmp_path / "r.yaml", "slerp", parents, parameters={"t": [0, 0.5, 1]})
    assert run("merge", told, "--out", tmp_path / "out").code == 0
    one, other, found = (tensors_of(tmp_path / name) for name in ("0", "1", "out"))
    for name, tensor in found.items():
        for matrix in (one, other):
            layer = {0: one, 1: None, 2: other}[int(name.split(".")[3])] if ".layer." in name else one
            assert torch.equal(one[name], other[name]) or torch.equal(tensor, matrix[name]) == (layer is matrix)


@pytest.mark.parametrize(
    ("ranges", "line"),
    [
        ([[0, 3]], None),
        ([[0, 4]], "the slices end at layer 4, and the models have 3 layers"),
        ([[0, 1], [1, 3]], "slices: the names of tensors do not tell which come before the layers and which behind"),
    ],
)
def test_slices(tmp_path, ranges, line):
    parents = [fnet(tmp_path / str(seed), seed) for seed in range(2)]
    slices = [{"sources": [{"model": str(one), "layer_range": some} for one in parents]} for some in ranges]
    content = {"merge_method": "linear", "parameters": {"weight": 1}, "slices": slices}
    if line is None:
        assert len(merge_recipe(content).checkpoint) == len(load(parents[0]))
    else:
        with pytest.raises(InputError, match=line):
            merge_recipe(content)


def test_layers_that_names_do_not_tell(tmp_path):
    for seed in range(2):
        torch.manual_seed(seed)
        config = T.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[2, 1])
        T.ResNetForImageClassification(config).save_pretrained(tmp_path / str(seed))
    parents = [tmp_path / "0", tmp_path / "1"]
    told = recipe(tmp_path / "r.yaml", "slerp", parents, parameters={"t": 0.5})
    assert "as they are; which layers they are of is not known" in run("merge", told, "--out", tmp_path / "out").out
    told = recipe(tmp_path / "r.yaml", "slerp", parents, parameters={"t": [0, 1]})
    line = refused(tmp_path, "merge", told, "--out", tmp_path / "other")
    assert "gradients: the names of tensors do not tell the layers; give filters" in line
    slices = [{"sources": [{"model": str(one), "layer_range": [0, 2]} for one in parents]}]
    with pytest.raises(InputError, match="slices: the names of tensors do not tell the layers"):
        merge_recipe({"merge_method": "slerp", "parameters": {"t": 0.5}, "slices": slices})


def test_stacks_of_different_depth():
    sizes = {"encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    layers = {"encoder_layers": 2, "decoder_layers": 3}
    models = [T.SpeechT5ForTextToSpeech(T.SpeechT5Config(hidden_size=8, **layers, **sizes)) for _ in range(2)]
    merged = merge(models, "slerp", symmetry="none", t=[0, 1]).checkpoint
    one, other = map(load, models)
    for side, last in (("encoder", 1), ("decoder", 2)):
        for layer, whose in ((0, one), (last, other)):
            name = f"speecht5.{side}.wrapped_{side}.layers.{layer}.feed_forward.output_dense.weight"
            assert torch.equal(merged[name], whose[name])


def test_layers_of_different_tensors(tmp_path):
    parents = [fnet(tmp_path / str(seed), seed) for seed in range(2)]
    start = "fnet.encoder.layer."

    def edit(tensors):
        tensors[f"{start}2.intermediate.dense.weight"] = torch.ones(4, 8)
        tensors[f"{start}1.extra"] = torch.ones(3)
        tensors[f"{start}00.extra"] = torch.ones(3)  # no number that could be filled in again

    for parent in parents:
        edit_tensors(parent, edit)
    spec = by_name(load(parents[0])).spec
    assert spec.entries.keys() == load(parents[0]).keys()
    for number, rows in enumerate((8, 8, 4)):
        entry = spec.entries[f"{start}{number}.intermediate.dense.weight"]
        assert entry.layout.shape == (rows, 8)
        assert entry.index == {"3_layer": number}


def test_norms_as_in_files_of_2018(tmp_path):
    parents = [fnet(tmp_path / str(seed), seed) for seed in range(2)]

    def rename(tensors):
        for name in [one for one in tensors if "LayerNorm" in one]:
            tensors[name.replace("weight", "gamma").replace("bias", "beta")] = tensors.pop(name)

    edit_tensors(parents[0], rename)
    line = refused(tmp_path, "merge", *parents, "--match", "none", "--out", tmp_path / "out")
    assert f"LayerNorm.beta is only in {parents[0]}" in line
    edit_tensors(parents[1], rename)
    edit_tensors(parents[1], lambda tensors: tensors["fnet.embeddings.LayerNorm.gamma"].fill_(4))
    assert run("merge", *parents, "--match", "none", "--out", tmp_path / "out").code == 0
    assert (tensors_of(tmp_path / "out")["fnet.embeddings.LayerNorm.gamma"] == 2.5).all()


def test_a_single_number(tmp_path):
    for seed in range(2):
        tensors = {"scale": torch.tensor(float(seed)), "none": torch.ones(0, 3), "weight": torch.ones(3, 1)}
        other = fnet(tmp_path / str(seed), seed)
        edit_tensors(other, lambda found, tensors=tensors: found.update(tensors))
    assert run("merge", tmp_path / "0", tmp_path / "1", "--match", "none", "--out", tmp_path / "out").code == 0
    found = tensors_of(tmp_path / "out")
    assert found["scale"].shape == ()
    assert found["scale"] == 0.5
    assert found["none"].shape == (0, 3)


def test_in_memory_and_by_task_vectors(pair):
    base, a, b = (T.SegformerForSemanticSegmentation.from_pretrained(folder) for folder in (*pair, pair[1]))
    merged = merge([a, b], "task_arithmetic", base=base, symmetry="none", weight=0.5).checkpoint
    for name in ("decode_head.classifier.weight", "decode_head.batch_norm.running_var"):
        assert torch.allclose(merged[name], a.state_dict()[name])


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--match", "none", "--keep-heads"),
        ("--match", "none", "--heal", 2),
        ("--match", "none", "--tokenizer-source", "union"),
        ("--match", "none", "--method", "ot_wts"),
    ],
)
def test_what_takes_more_than_names_is_refused(tmp_path, pair, arguments):
    line = refused(tmp_path, "merge", *pair, *arguments, "--out", tmp_path / "out")
    assert "architecture 'SegformerForSemanticSegmentation' is not declared" in line
    assert "cobasin merge --match none merges it by the names of its tensors" in line


def test_methods_with_data_are_refused(tmp_path, pair):
    statistics = {"data": str(token_rows(tmp_path / "rows.jsonl"))}
    told = recipe(tmp_path / "r.yaml", "regmean", pair, statistics=statistics)
    assert "is not declared" in refused(tmp_path, "merge", told, "--out", tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"hidden_act": "relu"}, "hidden_act is 'relu' in {} and 'gelu' in {}"),
        ({"id2label": {0: "a", 1: "b"}}, "id2label is {{0: 'a', 1: 'b'}} in {} and {{0: 'LABEL_0', "),
        (
            {"decoder_hidden_size": 4},
            "decoder_hidden_size is 4 in {} and 8 in {}; decode_head.batch_norm.bias has shape (4,) in {} and (8,) in ",
        ),
    ],
)
def test_settings_and_shapes_that_differ_are_refused(tmp_path, pair, options, problem):
    other = segformer(tmp_path / "other", 3, **options)
    line = refused(tmp_path, "merge", pair[0], other, "--match", "none", "--out", tmp_path / "out")
    wanted = problem.format(*[other, pair[0]] * 2)
    assert f"{other} and {pair[0]} cannot be merged by name: {wanted}" in line


def test_settings_of_training_and_of_tools_may_differ(tmp_path, pair):
    said = {"unsloth_version": "2025.1", "tokenizer_class": "X", "transformers.js_config": {"dtype": "q8"}}
    other = segformer(tmp_path / "other", 3, hidden_dropout_prob=0.3, initializer_range=0.1, **said)
    assert run("merge", pair[0], other, "--match", "none", "--out", tmp_path / "out").code == 0


def test_settings_that_only_look_like_those_of_training(pair):
    keys = ("token_dropout", "moe_token_dropout", "speech_decoder_prenet_dropout", "per_loop_lm_dropout")
    keys += ("normalize_router_prob_before_dropping", "drop_vision_last_layer", "embedding_init_target")
    others = dict.fromkeys(keys, True) | {"esm_config": {"token_dropout": True, "hidden_dropout": 0.5}}
    models = [by_name(load(folder)) for folder in (pair[0], duplicate(pair[0], "other", **others))]
    with pytest.raises(InputError) as caught:
        check_by_name(*models)
    for key in (*keys, "esm_config.token_dropout"):
        assert f"{key} is None in" in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_what_is_in_one_file_only_is_named(tmp_path, pair):
    edit_tensors(pair[1], lambda tensors: tensors.pop("decode_head.batch_norm.bias"))
    line = refused(tmp_path, "merge", *pair, "--match", "none", "--out", tmp_path / "out")
    assert f"decode_head.batch_norm.bias is only in {pair[0]}" in line


def test_two_classes_are_refused(tmp_path, pair):
    torch.manual_seed(0)
    T.SegformerForImageClassification(T.SegformerConfig(**SEGFORMER)).save_pretrained(tmp_path / "other")
    line = refused(tmp_path, "merge", pair[0], tmp_path / "other", "--match", "none", "--out", tmp_path / "out")
    assert "one is a SegformerForImageClassification, the other a SegformerForSemanticSegmentation" in line


@pytest.mark.parametrize("declared", [0, 1])
def test_a_declared_model_beside_one_that_is_not(tmp_path, pair, declared):
    model("bert/BertForMaskedLM", 0, torch.float32).save_pretrained(tmp_path / "bert")
    parents = [pair[0], tmp_path / "bert"] if declared else [tmp_path / "bert", pair[0]]
    line = refused(tmp_path, "merge", *parents, "--match", "none", "--out", tmp_path / "out")
    assert f"{parents[1]} and {parents[0]} cannot be merged by name: one is a " in line


def test_what_is_a_weight_in_one_file_only(pair):
    name = "decode_head.batch_norm.bias"
    other = duplicate(pair[0], "whole")
    edit_tensors(other, lambda tensors: tensors.update({name: tensors[name].int()}))
    models = [by_name(load(folder)) for folder in (pair[0], other)]
    for one, two in (models, models[::-1]):
        with pytest.raises(InputError, match=rf"{name} has dtype torch\.\w+ in .* and torch\.\w+ in"):
            check_by_name(one, two)


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64])
def test_weights_that_cannot_be_averaged(pair, dtype):
    name = "decode_head.classifier.weight"
    edit_tensors(pair[0], lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    with pytest.raises(InputError, match=rf"{name} has dtype {dtype}, expected float64"):
        by_name(load(pair[0]))


def test_quantized_weights_are_refused(pair):
    packed = duplicate(pair[0], "packed", quantization_config={"quant_method": "awq"})
    edit_tensors(
        packed, lambda tensors: tensors.update({"decode_head.classifier.weight": torch.ones(2, dtype=torch.int8)})
    )
    with pytest.raises(InputError, match=r"is quantized \(awq\)"):
        by_name(load(packed))
    wrapped = duplicate(pair[0], "wrapped")
    edit_tensors(wrapped, lambda tensors: tensors.update({f"module.{x}": tensors.pop(x) for x in [*tensors]}))
    with pytest.raises(InputError, match=r"all names of its tensors begin with 'module\."):
        by_name(load(wrapped))
    edit_tensors(pair[0], lambda tensors: tensors.update({x: tensors[x].byte() for x in [*tensors]}))
    with pytest.raises(InputError, match=r"none of its tensors is a weight \(of dtype float64"):
        by_name(load(pair[0]))


def test_settings_that_a_declaration_does_not_cover(tmp_path):
    for seed in range(2):
        model("olmo1/OlmoForCausalLM", seed, torch.float32).save_pretrained(tmp_path / str(seed))
        duplicate(tmp_path / str(seed), f"clipped-{seed}", clip_qkv=4.0)
    clipped = [tmp_path / f"clipped-{seed}" for seed in range(2)]
    assert "clip_qkv" in refused(tmp_path, "merge", *clipped, "--out", tmp_path / "out")
    assert run("merge", *clipped, "--match", "none", "--out", tmp_path / "out").code == 0
    assert run("merge", tmp_path / "0", tmp_path / "1", "--match", "none", "--out", tmp_path / "declared").code == 0
    found, wanted = tensors_of(tmp_path / "out"), tensors_of(tmp_path / "declared")
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    line = refused(tmp_path, "merge", clipped[0], tmp_path / "1", "--match", "none", "--out", tmp_path / "mixed")
    assert "clip_qkv is None in " in line
