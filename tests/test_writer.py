"""What the writer writes: bitwise what it was given, in the shards that were planned."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertForMaskedLM, BertModel, GenerationConfig

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.weight_files import Header
from cobasin.checkpoints.writer import save
from cobasin.errors import InputError
from command_line import edit_json
from model_folders import as_bins, assert_bitwise, changed, names
from tiny_models import checkpoint, model


def weights(folder):
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", ["20KB", "1GB"])
def test_round_trip(tiny_bert, tmp_path, dtype, size):
    tiny_bert.to(dtype).save_pretrained(tmp_path / "source", max_shard_size=size)
    save(load(tmp_path / "source"), tmp_path / "out")
    reloaded = BertForMaskedLM.from_pretrained(tmp_path / "out")
    assert_bitwise(reloaded.state_dict(), tiny_bert.state_dict())
    assert names(tmp_path / "out") == names(tmp_path / "source")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config == json.loads((tmp_path / "source" / "config.json").read_text())


def test_shards_stay_as_planned(sharded, tmp_path):
    save(load(sharded), tmp_path / "out")
    for path in sharded.glob("*.safetensors"):
        assert_bitwise(load_file(tmp_path / "out" / path.name), load_file(path))
    found, expected = (
        json.loads((path / "model.safetensors.index.json").read_text()) for path in (tmp_path / "out", sharded)
    )
    assert found["weight_map"] == expected["weight_map"]
    assert found["metadata"]["total_size"] == expected["metadata"]["total_size"]
    assert list(load(tmp_path / "out").headers) == list(load(sharded).headers)


def test_one_shard_with_a_number_gets_an_index(folder, tmp_path):
    shard = "model-00001-of-00001.safetensors"
    source = load(folder)
    headers = {name: Header(header.dtype, header.shape, shard) for name, header in source.headers.items()}
    save(changed(source, lambda _, tensor: tensor, headers), tmp_path / "out")
    assert names(tmp_path / "out") == ["config.json", shard, "model.safetensors.index.json"]
    BertForMaskedLM.from_pretrained(tmp_path / "out")
    assert_bitwise(load(tmp_path / "out"), source)


def test_computed_tensors_in_another_dtype(tiny_bert, folder, tmp_path):
    source = load(folder)
    headers = {name: Header(torch.bfloat16, header.shape, header.shard) for name, header in source.headers.items()}
    halved = changed(source, lambda _, tensor: (tensor / 2).bfloat16(), headers)
    save(halved, tmp_path / "out")
    reloaded = BertForMaskedLM.from_pretrained(tmp_path / "out")
    expected = {name: (tensor / 2).bfloat16() for name, tensor in tiny_bert.state_dict().items()}
    assert_bitwise(reloaded.state_dict(), expected)
    assert source.config.dtype == torch.float32


def test_a_dtype_that_is_asked_for_is_the_configs_beside_buffers_of_another(tmp_path):
    model = checkpoint("llama-gqa/LlamaForCausalLM", dtype=torch.float16)
    tensors = dict(model) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    config = model.config.to_dict() | {"architectures": [model.architecture]}
    typed = Typed.of(load(tensors, config))
    save(typed.derived(typed, torch.bfloat16), tmp_path / "out")
    assert {x.dtype for x in weights(tmp_path / "out").values()} == {torch.bfloat16, torch.float32}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


def test_mixed_dtypes_shapes_and_layouts(tiny_bert, tmp_path):
    tensors = {
        "bytes": torch.arange(3, dtype=torch.uint8),
        "flags": torch.tensor([True, False, True]),
        "half": torch.randn(5).bfloat16(),
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 4),
        "transposed": torch.randn(3, 4).T,
        "view": torch.randn(10)[3:7],
        "learned": torch.nn.Parameter(torch.randn(2, 2)),
        "eight": torch.randn(3).to(torch.float8_e5m2),
        "double": torch.randn(2).double(),
        'name with "quotes" and é': torch.ones(1),
    }
    save(load(tensors, {**tiny_bert.config.to_dict(), "architectures": ["BertModel"]}), tmp_path / "out")
    assert_bitwise(weights(tmp_path / "out"), {name: tensor.detach() for name, tensor in tensors.items()})
    path = tmp_path / "out" / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert head.pop("__metadata__") == {"format": "pt"}
    for name, entry in head.items():
        assert entry["data_offsets"][0] % tensors[name].dtype.itemsize == 0


def test_model_in_memory(tiny_bert, tmp_path):
    save(load(tiny_bert.bfloat16()), tmp_path / "out")
    assert_bitwise(BertForMaskedLM.from_pretrained(tmp_path / "out").state_dict(), tiny_bert.state_dict())
    assert tiny_bert.config.architectures is None


def test_architecture_is_the_checkpoints(tiny_bert, tmp_path):
    source = load(tiny_bert)
    base = {name.removeprefix("bert."): tensor for name, tensor in source.items() if name.startswith("bert.")}
    headers = {name: source.headers[f"bert.{name}"] for name in base}
    save(Checkpoint("base", source.config, "BertModel", headers, base.__getitem__), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["BertModel"]
    reloaded = BertModel.from_pretrained(tmp_path / "out", add_pooling_layer=False)
    assert_bitwise(reloaded.state_dict(), base)


@pytest.mark.parametrize("shards", [1, 2])
def test_bin_becomes_safetensors(folder, tmp_path, shards):
    tensors = load_file(folder / "model.safetensors")
    as_bins(folder, shards)
    save(load(folder), tmp_path / "out")
    sharded = [f"model-{number:05d}-of-00002.safetensors" for number in (1, 2)]
    files = ["model.safetensors"] if shards == 1 else [*sharded, "model.safetensors.index.json"]
    assert names(tmp_path / "out") == ["config.json", *files]
    assert_bitwise(load(tmp_path / "out"), tensors)


def test_other_files_are_carried_along(folder, tmp_path):
    carried = {
        "tokenizer.json": "{}",
        "vocab.txt": "a",
        "generation_config.json": "{}",
        "1_Pooling/config.json": "{}",
    }
    left = [
        "README.md",
        ".git/HEAD",
        ".hidden",
        "pytorch_model.bin",
        "onnx/model.onnx",
        "tf_model.h5",
        "flax_model.msgpack",
        "coreml/model.mlmodel",
        "nemo/model.nemo",
        "optimizer.pt",
        "pytorch_model.bin.index.json.bin",
        "tf_model.h5.index.json",
        "model.safetensors.index.fp16.json",
        "bert_model.ckpt.index",
        "bert_model.ckpt.data-00000-of-00001",
        "eval_results.json",
        "trainer_state.json",
    ]
    for name, text in {**carried, **dict.fromkeys(left, "x")}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "linked.txt").symlink_to(folder / "vocab.txt")
    save(load(folder), tmp_path / "out")
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {*carried, "linked.txt", "config.json", "model.safetensors"}
    assert not (tmp_path / "out" / "linked.txt").is_symlink()
    for name, text in carried.items():
        assert (tmp_path / "out" / name).read_text() == text


def test_weights_of_further_modules_are_carried_along(folder, tmp_path):
    """Dense layers behind the model are part of what Sentence Transformers compute."""
    modules = [{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}, {"path": "../elsewhere"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    for name in ("2_Dense/model.safetensors", "onnx/model.safetensors", "../elsewhere/model.safetensors"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(name.encode())
    save(load(folder), tmp_path / "out")
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {"modules.json", "2_Dense/model.safetensors", "config.json", "model.safetensors"}
    assert (tmp_path / "out/2_Dense/model.safetensors").read_bytes() == b"2_Dense/model.safetensors"


def test_modules_that_cannot_be_read_are_carried_along_as_they_are(folder, tmp_path):
    for text in ("[", "[]", "{}", '[{"type": "a"}]', "[" * 100_000):
        (folder / "modules.json").write_text(text)
        save(load(folder), tmp_path / "out", overwrite=True)
        assert (tmp_path / "out/modules.json").read_text() == text


def test_a_module_whose_folder_is_a_link(folder, tmp_path):
    """Without it Sentence Transformers would not load the model; other links may lead anywhere."""
    (folder / "modules.json").write_text(json.dumps([{"path": ""}, {"path": "2_Dense"}]))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("config.json", "model.safetensors"):
        (elsewhere / name).write_text(name)
    for name in ("2_Dense", "data"):
        (folder / name).symlink_to(elsewhere)
    save(load(folder), tmp_path / "out")
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    module = {"2_Dense/config.json", "2_Dense/model.safetensors"}
    assert found == {*module, "modules.json", "config.json", "model.safetensors"}
    assert not (tmp_path / "out" / "2_Dense").is_symlink()


def test_how_an_old_model_generates_is_kept(folder, tmp_path):
    """Its config.json says so, and Transformers takes that out of the config."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_beams": 4, "max_length": 142, "eos_token_id": 2}))
    save(load(folder), tmp_path / "out")
    found, wanted = (
        GenerationConfig.from_pretrained(path, name, _from_model_config=old)
        for path, name, old in ((tmp_path / "out", None, False), (folder, "config.json", True))
    )
    assert (found.num_beams, found.max_length, found.eos_token_id) == (4, 142, 2)
    assert (wanted.num_beams, wanted.max_length, wanted.eos_token_id) == (4, 142, 2)
    (folder / "generation_config.json").write_text('{"num_beams": 3}')
    save(load(folder), tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "generation_config.json").read_text() == '{"num_beams": 3}'


@pytest.mark.parametrize(
    ("case", "earlier"),
    [
        ("qwen2/Qwen2ForCausalLM", {"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2.0}}),
        ("gptneox/GPTNeoXForCausalLM", {"rotary_pct": 0.25, "rotary_emb_base": 20000}),
        ("granite-hybrid/GraniteMoeHybridForCausalLM", {"rope_theta": 20000}),  # with a bound that is infinite
        ("gemma3/Gemma3ForCausalLM", {"rope_theta": 1e6, "rope_local_base_freq": 20000.0}),
        ("gemma3-pictures/Gemma3ForConditionalGeneration", {"rope_theta": 1e6, "rope_local_base_freq": 20000.0}),
    ],
)
def test_rotary_embeddings_are_told_to_earlier_versions(case, earlier, tmp_path):
    """Transformers 5 reads and writes other keys than the config.json of most models on the hub has."""
    model(case, 0, torch.float32).save_pretrained(tmp_path / "source")
    path = tmp_path / "source" / "config.json"
    config = json.loads(path.read_text())
    text = config.get("text_config", config)
    del text["rope_parameters"]
    text.update(earlier)
    path.write_text(json.dumps(config))

    def written(checkpoint):
        save(checkpoint, tmp_path / "out", overwrite=True)
        content = json.loads((tmp_path / "out" / "config.json").read_text())
        return content.get("text_config", content)

    given = load(tmp_path / "source")
    assert earlier.items() <= written(given).items()
    read = [one.config.to_dict() | {"_name_or_path": None} for one in (given, load(tmp_path / "out"))]
    assert read[0] == read[1]
    # the control: keys that no longer say what the config does are not kept
    given.config.get_text_config().rope_parameters = {"rope_type": "default", "rope_theta": 5.0}
    assert not earlier.keys() & written(given).keys()


@pytest.mark.parametrize(
    "case", ["qwen2-vl/Qwen2VLForConditionalGeneration", "qwen2.5-vl/Qwen2_5_VLForConditionalGeneration"]
)
def test_a_flat_configs_rotary_embedding_is_told_where_earlier_versions_read_it(case, tmp_path):
    """The text's keys lie beside vision_config on the hub; what is written has a text_config for 4.52 to 4.57."""
    model(case, 0, torch.float32).save_pretrained(tmp_path / "source")
    section = model(case).config.text_config.rope_parameters["mrope_section"]
    earlier = {"rope_theta": 2e6, "rope_scaling": {"type": "mrope", "mrope_section": section}}

    def flatten(config):
        text = config.pop("text_config")
        del text["rope_parameters"], text["model_type"]
        config.update(text, **earlier)

    edit_json(tmp_path / "source" / "config.json", flatten)
    given = load(tmp_path / "source")
    save(given, tmp_path / "out")
    content = json.loads((tmp_path / "out" / "config.json").read_text())
    assert earlier.items() <= content["text_config"].items()
    assert not earlier.keys() & content.keys()
    read = [one.config.to_dict() | {"_name_or_path": None} for one in (given, load(tmp_path / "out"))]
    assert read[0] == read[1]


@pytest.mark.parametrize("case", ["qwen3moe/Qwen3MoeForCausalLM", "qwen3-vl-moe/Qwen3VLMoeForConditionalGeneration"])
def test_a_key_that_has_a_second_name_now_is_told_by_that_too(case, tmp_path):
    """Earlier versions of Transformers would take a default for the number of experts."""
    model(case, 0, torch.float32).save_pretrained(tmp_path / "source")

    def text(config):
        return config.get("text_config", config)

    def rename(config):
        text(config)["num_experts"] = text(config).pop("num_local_experts")

    def written():
        return text(json.loads((tmp_path / "out" / "config.json").read_text()))

    edit_json(tmp_path / "source" / "config.json", rename)
    given = load(tmp_path / "source")
    save(given, tmp_path / "out")
    experts = given.config.get_text_config().num_local_experts
    assert written()["num_experts"] == written()["num_local_experts"] == experts
    assert load(tmp_path / "out").config.get_text_config().num_local_experts == experts
    # the control: a name that no longer says what the config does is not kept
    edit_json(tmp_path / "source" / "config.json", lambda config: text(config).update(num_experts=experts + 1))
    save(given, tmp_path / "out", overwrite=True)
    assert "num_experts" not in written()


@pytest.mark.parametrize("case", ["t5-gated/T5ForConditionalGeneration", "umt5/UMT5ForConditionalGeneration"])
def test_a_head_of_its_own_is_told_to_earlier_versions(case, tmp_path):
    """Of T5 Transformers 5 always writes that it is tied; earlier versions would tie it, and scale what it reads."""
    made = model(case, 0, torch.float32)
    made.lm_head.weight = torch.nn.Parameter(made.lm_head.weight + 1)
    source, out = tmp_path / "source", tmp_path / "out"
    made.save_pretrained(source)
    assert "lm_head.weight" in load(source)
    edit_json(source / "config.json", lambda config: config.update(tie_word_embeddings=False))
    checkpoint = load(source)
    save(checkpoint, out)
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is False
    assert load(out).config.to_dict() | {"_name_or_path": None} == checkpoint.config.to_dict() | {"_name_or_path": None}
    # the control: what the file does not say is not added
    edit_json(source / "config.json", lambda config: config.pop("tie_word_embeddings"))
    save(load(source), out, overwrite=True)
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is True


@pytest.mark.parametrize("word", ["no", 1, None])
def test_what_is_neither_yes_nor_no_overwrites_nothing(folder, tmp_path, word):
    save(load(folder), tmp_path / "out")
    before = (tmp_path / "out" / "config.json").stat().st_ino
    with pytest.raises(InputError, match="expected True or False"):
        save(load(folder), tmp_path / "out", overwrite=word)
    assert (tmp_path / "out" / "config.json").stat().st_ino == before
    save(load(folder), tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "config.json").stat().st_ino != before


def test_extra_files(folder, tmp_path):
    (folder / "notes.txt").write_text("old")
    files = {
        "README.md": "A model.",
        "notes.txt": "new",
        "element/element.safetensors": lambda path: save_file({"a": torch.ones(2)}, path),
    }
    save(load(folder), tmp_path / "out", files=files)
    assert (tmp_path / "out" / "README.md").read_text() == "A model."
    assert (tmp_path / "out" / "notes.txt").read_text() == "new"
    assert load_file(tmp_path / "out" / "element" / "element.safetensors")["a"].tolist() == [1, 1]


def test_progress_counts_all_bytes(folder, tmp_path):
    steps = []
    source = load(folder)
    save(source, tmp_path / "out", progress=steps.append)
    assert len(steps) == len(source)
    assert sum(steps) == sum(tensor.nbytes for tensor in source.values())


def test_parents_are_made(folder, tmp_path):
    save(load(folder), tmp_path / "a" / "b" / "out")
    assert names(tmp_path / "a" / "b") == ["out"]


def test_empty_output_folder_is_used(folder, tmp_path):
    (tmp_path / "out").mkdir()
    save(load(folder), tmp_path / "out")
    assert (tmp_path / "out" / "config.json").exists()


def test_relative_output(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(load("bert"), Path("out"))
    assert names(tmp_path) == ["bert", "out"]


@pytest.mark.parametrize(
    "change", [lambda name, tensor: tensor.double(), lambda name, tensor: tensor[:1]], ids=["dtype", "shape"]
)
def test_tensor_that_is_not_as_planned(folder, tmp_path, change):
    with pytest.raises(RuntimeError, match=r"was planned as .* but came as"):
        save(changed(load(folder), change), tmp_path / "out")
    assert names(tmp_path) == ["bert"]
