"""Opening models from every place they come from, and refusing what is no model."""

import json
import re
import shutil
from fnmatch import fnmatch
from functools import reduce

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizerFast,
    FillMaskPipeline,
    MixtralConfig,
    MixtralForCausalLM,
)

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.pairs import check_pair
from cobasin.checkpoints.running import instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.weight_files import Header
from cobasin.checkpoints.writer import save
from cobasin.errors import InputError
from cobasin.verification import verify
from model_folders import as_bins, assert_bitwise, load_refusal
from tiny_models import model

SMALL = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 9}


def edit_json(path, **changes):
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def test_folder(folder):
    checkpoint = load(folder)
    assert_bitwise(checkpoint, load_file(folder / "model.safetensors"))
    for name, header in checkpoint.headers.items():
        tensor = checkpoint[name]
        assert header == Header(tensor.dtype, tuple(tensor.shape), "model.safetensors")
    assert checkpoint.architecture == "BertForMaskedLM"
    assert isinstance(checkpoint.config, BertConfig)
    assert checkpoint.config.hidden_size == 24
    assert checkpoint.folder == folder
    assert len(checkpoint) == len(list(checkpoint))
    assert "BertForMaskedLM" in repr(checkpoint)
    assert_bitwise(load(str(folder)), load_file(folder / "model.safetensors"))


def test_unknown_tensor_is_a_key_error(folder):
    with pytest.raises(KeyError, match="nope"):
        load(folder)["nope"]


def test_model_in_memory_is_what_save_pretrained_writes(tiny_bert, folder):
    checkpoint = load(tiny_bert)
    assert_bitwise(checkpoint, load_file(folder / "model.safetensors"))
    assert "cls.predictions.decoder.weight" in tiny_bert.state_dict()
    assert "cls.predictions.decoder.weight" not in checkpoint
    assert checkpoint.architecture == "BertForMaskedLM"
    assert checkpoint.folder is None
    assert checkpoint.config is not tiny_bert.config


def test_experts_in_memory_get_their_names_on_disk(tmp_path):
    config = MixtralConfig(
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=3,
        vocab_size=20,
    )
    model = MixtralForCausalLM(config)
    model.save_pretrained(tmp_path)
    assert_bitwise(load(model), load_file(tmp_path / "model.safetensors"))


def test_model_without_data(tiny_bert):
    assert "no data (meta device)" in load_refusal(tiny_bert.to("meta"))


def test_state_dict(tiny_bert, folder):
    state = load_file(folder / "model.safetensors")
    for config in (load(folder).config, json.loads((folder / "config.json").read_text())):
        checkpoint = load(state, config)
        assert_bitwise(checkpoint, state)
        assert checkpoint.architecture == "BertForMaskedLM"


def test_state_dict_without_or_with_bad_config(folder):
    state = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    assert "pass its config" in load_refusal(state)
    assert 'has no model_type; add it to the config, for example "model_type": "bert"' in load_refusal(state, {"a": 1})
    assert "architectures" in load_refusal(state, {**config, "architectures": None})
    assert "hidden_size" in load_refusal(state, {**config, "hidden_size": "many"})
    assert "'a' is a int" in load_refusal({"a": 1}, config)


def test_checkpoint_is_returned_as_it_is(folder):
    checkpoint = load(folder)
    assert load(checkpoint) is checkpoint


def test_computed_checkpoint(folder):
    source = load(folder)
    doubled = Checkpoint("x", source.config, source.architecture, source.headers, lambda name: 2 * source[name])
    assert torch.equal(doubled["cls.predictions.bias"], 2 * source["cls.predictions.bias"])


def test_config_beside_a_folder(folder):
    assert "a config goes with a state dict only" in load_refusal(folder, load(folder).config)


def test_other_objects():
    message = load_refusal(3)
    assert "from int" in message
    assert "Hugging Face folder" in message


def test_what_a_library_wraps_around_a_model(tiny_bert):
    assert load_refusal(torch.compile(tiny_bert)).endswith("; it has the model within, as ._orig_mod")
    assert load_refusal(torch.nn.DataParallel(tiny_bert)).endswith("; it has the model within, as .module")
    pipeline = FillMaskPipeline(tiny_bert, BertTokenizerFast(vocab={"[MASK]": 0, "[UNK]": 1}))
    assert load_refusal(pipeline).endswith("; it has the model within, as .model")
    wrapped = get_peft_model(tiny_bert, LoraConfig(target_modules=["query"]))
    assert "becomes one by merge_and_unload()" in load_refusal(wrapped)


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "base_model.model.", "model."])
def test_a_file_of_what_wraps_a_model(tiny_bert, wrapper):
    state, tiny_bert.config.architectures = tiny_bert.state_dict(), ["BertForMaskedLM"]
    with pytest.raises(InputError, match=f"all names of its tensors begin with '{wrapper}': save the model within"):
        Typed.of(load({wrapper + name: tensor for name, tensor in state.items()}, tiny_bert.config))
    some = {wrapper * (i > 0) + name: tensor for i, (name, tensor) in enumerate(state.items())}
    with pytest.raises(InputError, match="missing tensor"):
        Typed.of(load(some, tiny_bert.config))


def test_floats_of_eight_bits(tiny_bert):
    state, tiny_bert.config.architectures = tiny_bert.state_dict(), ["BertForMaskedLM"]
    state = {name: tensor.to(torch.float8_e4m3fn) if tensor.ndim == 2 else tensor for name, tensor in state.items()}
    with pytest.raises(InputError, match=r"has dtype torch.float8_e4m3fn, .*; load the model with dtype="):
        Typed.of(load(state, tiny_bert.config))


@pytest.mark.parametrize("wrapper", ["_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"])
def test_a_part_of_a_model_that_is_wrapped(tiny_bert, wrapper):
    state, tiny_bert.config.architectures = tiny_bert.state_dict(), ["BertForMaskedLM"]
    named = {name.replace("layer.0.", f"layer.0.{wrapper}."): tensor for name, tensor in state.items()}
    with pytest.raises(InputError) as caught:
        Typed.of(load(named, tiny_bert.config))
    told = f"a part of it is wrapped, as bert.encoder.layer.0.{wrapper}.attention"
    assert told in str(caught.value)
    assert str(caught.value).endswith(f"tells: unwrap it, or take '{wrapper}.' out of the names")
    with pytest.raises(InputError) as caught:  # where its class is asked for the function alone
        instantiate(load(named, tiny_bert.config), torch.float32)
    assert told in str(caught.value)


def test_a_state_dict_by_the_names_in_memory():
    """They are others than on disk where Transformers has renamed the parts of a model, as those of ViT."""
    made = model("vit/ViTForImageClassification")
    made.config.architectures = ["ViTForImageClassification"]
    state = made.state_dict()
    with pytest.raises(InputError, match="its tensors have the names of the model in memory, which are others"):
        Typed.of(load(state, made.config))
    with pytest.raises(InputError, match="missing tensor"):
        Typed.of(load(state | {"of_another": torch.ones(1)}, made.config))
    assert len(Typed.of(load(made))) == len(state)


@pytest.mark.parametrize(
    ("case", "key"),
    [
        ("gpt2/GPT2LMHeadModel", "n_layer"),
        ("bart/BartForConditionalGeneration", "decoder_layers"),
        ("gemma3-pictures/Gemma3ForConditionalGeneration", "vision_config.num_hidden_layers"),
        ("moonshine/MoonshineForConditionalGeneration", "encoder_num_hidden_layers"),
        ("wav2vec2-adapter/Wav2Vec2ForCTC", "num_adapter_layers"),
        ("swin/SwinForImageClassification", "depths"),
    ],
)
def test_more_layers_than_any_model_has(case, key):
    made, (*within, name) = model(case).config, key.split(".")
    made.architectures = [case.split("/")[1]]
    setattr(reduce(getattr, within, made), name, [2, 10_001] if name == "depths" else 10_001)
    with pytest.raises(InputError, match=rf": the config has {key} 10001; expected up to 10000$"):
        Typed.of(load({"weight": torch.ones(1)}, made))


def test_a_list_with_an_entry_a_stage_is_too_short():
    made = model("swin/SwinForImageClassification").config
    made.architectures, made.num_heads = ["SwinForImageClassification"], made.num_heads[:1]
    with pytest.raises(InputError, match=r": the config is not that of a SwinForImageClassification: list index "):
        Typed.of(load({"x": torch.ones(1)}, made))


def test_tensors_that_are_made_in_inference_mode():
    """Learning asks for gradients of what is made of them."""
    with torch.inference_mode():
        made = BertForMaskedLM(BertConfig(**SMALL))
    assert made.cls.predictions.bias.is_inference()
    read = load(made)
    assert not any(tensor.is_inference() for tensor in read.values())
    assert_bitwise(dict(read), {name: made.state_dict()[name] for name in read})


def test_a_model_with_an_adapter_within(tiny_bert):
    within = get_peft_model(tiny_bert, LoraConfig(target_modules=["query"])).get_base_model()
    with pytest.raises(InputError, match="does not fit BertForMaskedLM: it has the layers of an adapter within; save"):
        Typed.of(load(within))


def test_a_class_of_another_make_is_not_taken_for_that_of_transformers():
    """It may compute anything, and is never run: what is run is the class that Transformers has."""
    own = type("BertForMaskedLM", (BertForMaskedLM,), {"__module__": "theirs"})
    line = load_refusal(own(BertConfig(**SMALL)))
    assert "is not Transformers' class of that name, but theirs.BertForMaskedLM, which may compute another" in line
    assert load(BertForMaskedLM(BertConfig(**SMALL))).architecture == "BertForMaskedLM"


def test_no_such_folder(tmp_path):
    assert "no such folder" in load_refusal(tmp_path / "nope")
    hint = "; a model of the hub has an owner, as in openai-community/gpt2"
    assert load_refusal(str(tmp_path / "nope")).endswith(": no such folder")
    assert load_refusal("nope") == f"nope: no such folder{hint}"
    assert load_refusal("base+lora").endswith(
        "no such folder; a base with an adapter, as BASE+ADAPTER, is taken by merges alone"
    )


def test_file_in_place_of_folder(folder):
    assert "is a file" in load_refusal(folder / "config.json")


def test_unreachable_path(tmp_path):
    assert "cannot be read" in load_refusal(tmp_path / ("x" * 300))


def test_hub_id_that_is_not_there(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = load_refusal("some-org/some-model")
    assert message.startswith("some-org/some-model: no such folder, and not available from the hub")


def test_hub_id(folder, monkeypatch):
    asked = []

    def snapshot_download(hub_id, revision, allow_patterns, ignore_patterns):
        asked.append((hub_id, revision, "*.bin" in allow_patterns))
        assert "*.jinja" in allow_patterns  # chat templates
        # Mistral's second copy; MMS's other languages
        for name in ("consolidated.safetensors", "adapter.deu.safetensors"):
            assert any(fnmatch(name, pattern) for pattern in ignore_patterns)
        assert not any(fnmatch("model.safetensors", pattern) for pattern in ignore_patterns)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert load("org/name").folder == folder
    assert asked == [("org/name", None, False)]
    as_bins(folder)
    assert load("org/name@refs/pr/1").label == "org/name@refs/pr/1"
    assert asked[1:] == [("org/name", "refs/pr/1", False), ("org/name", "refs/pr/1", True)]


def test_missing_config(folder):
    (folder / "config.json").unlink()
    assert load_refusal(folder).endswith(": has no config.json; expected the folder of a Hugging Face model")


def test_the_folder_of_a_training_run(folder, tmp_path):
    for name in ("checkpoint-25", "checkpoint-50"):
        shutil.copytree(folder, tmp_path / "run" / name)
    (tmp_path / "run" / "logs").mkdir()
    assert load_refusal(tmp_path / "run").endswith("Face model; there is one in checkpoint-25, checkpoint-50")


@pytest.mark.parametrize("text", ["", "{bad", "\ufeff{}", "[" * 100_000])
def test_config_that_is_not_json(folder, text):
    (folder / "config.json").write_text(text)
    assert "config.json: is not valid JSON" in load_refusal(folder)


def test_config_that_is_not_text_or_object(folder):
    (folder / "config.json").write_bytes(b"\xff\xfe\x00")
    assert "is not valid JSON" in load_refusal(folder)
    (folder / "config.json").write_text("[]")
    assert "holds a list" in load_refusal(folder)
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    assert "cannot be read: [Errno 21] Is a directory" in load_refusal(folder)


@pytest.mark.parametrize("model_type", ["nope", [1]])
def test_unknown_model_type(folder, model_type):
    edit_json(folder / "config.json", model_type=model_type)
    assert f"model_type {model_type!r} is not known" in load_refusal(folder)


def test_no_model_type(folder):
    """As in files of the first years of Transformers."""
    edit_json(folder / "config.json", model_type=None)
    assert 'config.json: has no model_type; add it to the config, for example "model_type": "bert"' in load_refusal(
        folder
    )


def test_code_of_the_repository_is_not_executed(folder, tmp_path):
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'executed')!r})\n")
    auto_map = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    edit_json(folder / "config.json", auto_map=auto_map)
    assert load(folder).config.model_type == "bert"
    edit_json(folder / "config.json", model_type="evil")
    assert "model code from a repository is never executed" in load_refusal(folder)
    assert not (tmp_path / "executed").exists()


def test_config_that_transformers_refuses(folder):
    edit_json(folder / "config.json", hidden_size="many")
    message = load_refusal(folder)
    assert "transformers refuses this config" in message
    assert "hidden_size" in message


@pytest.mark.parametrize("architectures", [None, []])
def test_no_architecture(folder, architectures):
    edit_json(folder / "config.json", architectures=architectures)
    assert '"architectures": ["BertModel"], or the one with' in load_refusal(folder)


@pytest.mark.parametrize(
    ("case", "spelled"),
    [
        ("ernie4_5/Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),  # of the code beside the published ERNIE 4.5
        ("llama-mqa-tied/LlamaForCausalLM", "LLaMAForCausalLM"),
    ],
)
def test_a_class_that_transformers_spells_otherwise(tmp_path, case, spelled):
    made = model(case).float()
    made.save_pretrained(tmp_path / "published")
    edit_json(tmp_path / "published" / "config.json", architectures=[spelled])
    save(tmp_path / "published", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == [type(made).__name__]
    assert verify(tmp_path / "out", made).same


@pytest.mark.parametrize(
    ("case", "written", "other"),
    [
        ("dinov3/DINOv3ViTModel", r"^layer\.", "model.layer."),  # what Transformers 5 has in memory
        ("vit-mae/ViTMAEForPreTraining", r"decoder_encoder\.layer\.", "decoder_layers."),  # what published files have
    ],
)
def test_layers_under_other_names(tmp_path, case, written, other):
    made = model(case)
    state = {re.sub(written, other, name): tensor for name, tensor in load(made).items()}
    given = load(state, made.config.to_dict() | {"architectures": [type(made).__name__]})
    assert any(other in name for name in given)
    assert len(Typed.of(given)) == len(Typed.of(load(made)))
    assert verify(given, made).same


def test_the_home_of_nobody():
    assert load_refusal("~no-such-user/model") == (
        "~no-such-user/model: no such user, or one without a home folder; write the whole path"
    )


def test_a_path_that_no_system_has(tiny_bert, tmp_path):
    """YAML and JSON can write it."""
    assert load_refusal("a\0b") == r"model 'a\x00b': expected a path"
    with pytest.raises(InputError, match="expected a path"):
        save(tiny_bert, f"{tmp_path}/a\0b")


def test_a_file_without_tensors(folder):
    save_file({}, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"does not fit BertForMaskedLM: it holds no tensors$"):
        Typed.of(load(folder))


def test_a_config_of_another_kind(tiny_bert):
    with pytest.raises(InputError, match="its config is a str; expected a PreTrainedConfig or its dict"):
        load(tiny_bert.state_dict(), config="./folder")


@pytest.mark.parametrize(
    ("case", "architecture"),
    [
        ("llama-mqa-tied/LlamaForCausalLM", "LlamaModel"),
        ("gemma3/Gemma3ForCausalLM", "Gemma3TextModel"),
        ("gpt2/GPT2LMHeadModel", "GPT2Model"),
        ("qwen3/Qwen3ForCausalLM", "Qwen3ForCausalLM"),  # the file has the head of a language model
    ],
)
def test_an_embedding_model_is_used_without_its_head(tmp_path, case, architecture):
    model(case).save_pretrained(tmp_path)
    assert load(tmp_path).architecture == case.split("/")[1]
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Transformer"}]')
    given = load(tmp_path)
    assert given.architecture == architecture
    assert (Typed.of(given).spec.spaces["resid"].group is None) is architecture.endswith("Model")
    if architecture.endswith("Model"):
        with pytest.raises(InputError, match=rf"; {tmp_path} is read as modules\.json says, without a head$"):
            check_pair(Typed.of(load(model(case))), Typed.of(given))
    assert verify(given, given).same
    for task, its in (("feature-extraction", architecture), ("text-generation", case.split("/")[1])):
        (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"transformer_task": task}))
        assert load(tmp_path).architecture == its
    (tmp_path / "sentence_bert_config.json").write_text("{")  # older ones have none
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.sparse_encoder.models.MLMTransformer"}]')
    assert load(tmp_path).architecture == case.split("/")[1]


def test_an_encoder_whose_config_names_a_head_that_its_file_has_not(tmp_path):
    bert = model("bert/BertModel")
    bert.save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", architectures=["BertForMaskedLM"])
    with pytest.raises(InputError, match="missing"):
        Typed.of(load(tmp_path))
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Transformer"}]')
    given = load(tmp_path)
    assert given.architecture == "BertModel"
    assert verify(given, bert).same
    model("t5/T5EncoderModel").save_pretrained(tmp_path / "t5")
    (tmp_path / "t5" / "modules.json").write_text("[]")
    assert load(tmp_path / "t5").architecture == "T5EncoderModel"
