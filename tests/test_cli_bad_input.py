"""Bad input gets one line on standard error, exit code 2, and leaves nothing behind.

What headers and configs can tell is refused before any tensor is read: `refused` looks at the reads.
"""

import json
import os
import re

import pytest
import torch
from transformers import FineGrainedFP8Config

from cobasin.errors import InputError
from cobasin.workflows.inspection import inspect
from command_line import (
    WEIGHTS,
    duplicate,
    edit_json,
    edit_tensors,
    pair,
    refused,
    refused_by_both,
    run,
)
from model_folders import Exploit, as_bins
from tiny_models import model

CASE = "bert/BertForMaskedLM"
DEEPSEEK = "deepseek3/DeepseekV3ForCausalLM"
QUERY = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.fixture
def folders(tmp_path):
    """A source and an anchor that match."""
    return pair(tmp_path, CASE)


@pytest.mark.parametrize("case", ["roberta/RobertaForMaskedLM", "bert/BertForTokenClassification", "bert/BertModel"])
def test_different_architectures(folders, case):
    other = folders[0].with_name("other")
    model(case).float().save_pretrained(other)
    name = case.split("/")[1]
    texts = f"{other} is a {name}", f"{folders[1]} is a BertForMaskedLM", "only models of one architecture match"
    refused_by_both(other, folders[1], *texts)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_hidden_layers": 3}, "layer has size 3 in {} and 2 in {}"),
        ({"vocab_size": 50}, "vocab has size 50 in {} and 40 in {}"),
        ({"max_position_embeddings": 40}, "pos has size 40 in {} and 32 in {}"),
        ({"intermediate_size": 28}, "ffn has size 28 in {} and 20 in {}"),
        ({"hidden_size": 32}, "resid has size 32 in {} and 24 in {}; "),
    ],
)
def test_different_sizes(tmp_path, changes, text):
    source, anchor = pair(tmp_path, CASE, **changes)
    refused_by_both(source, anchor, text.format(source, anchor))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("match", "", "{1}", "--out", "{0}-out"), "model '': expected a path"),
        (("match", "{0}", "{1}", "--out", ""), "--out '': expected a path"),
        (("path", "{0}", "{1}", "--data", "", "--out", "{0}-out"), "--data: path: '': expected text that is not empty"),
        (("transport", "{0}", "{0}", "{1}", "--element", "", "--out", "{0}-out"), "element '': expected a path"),
    ],
)
def test_an_empty_path_is_named(folders, tmp_path, arguments, text):
    assert text in refused(tmp_path, *[one.format(*folders) for one in arguments])


def test_layers_without_neurons(tmp_path):
    source, anchor = pair(tmp_path, CASE, intermediate_size=0)
    refused_by_both(source, anchor, f"{source} does not fit BertForMaskedLM: space ffn has size 0 by the config")


@pytest.mark.parametrize("broken", [0, 1], ids=["source", "anchor"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.int32, torch.bool, torch.complex64])
def test_a_tensor_that_is_not_float(folders, dtype, broken):
    edit_tensors(folders[broken], lambda tensors: tensors.update({QUERY: tensors[QUERY].to(dtype)}))
    refused_by_both(*folders, f"{folders[broken]} does not fit", f"{QUERY} has dtype {dtype}, expected float64")


@pytest.mark.parametrize("method", ["mxfp4", "fp8"])
def test_quantized_weights(tmp_path, method):
    """As GPT-OSS and DeepSeek-V3 are published."""
    source, anchor = pair(tmp_path, "gptoss/GptOssForCausalLM" if method == "mxfp4" else DEEPSEEK)
    named = "experts.down_proj_blocks has dtype torch.uint8" if method == "mxfp4" else "o_proj.weight has dtype torch.f"

    def pack(tensors):
        for name in [name for name in tensors if name.endswith("experts.down_proj")]:
            tensors |= {f"{name}_blocks": torch.ones(2, 3, dtype=torch.uint8), f"{name}_scales": tensors.pop(name)}
        for name in [name for name in tensors if name.endswith("o_proj.weight") and method == "fp8"]:
            tensors |= {name: tensors[name].to(torch.float8_e4m3fn), f"{name}_scale_inv": torch.ones(1, 1)}

    edit_tensors(source, pack)
    edit_json(source / "config.json", lambda config: config.update(quantization_config={"quant_method": method}))
    refused_by_both(source, anchor, f"{source}: is quantized ({method}): model.layers.", named, "save it dequantized")


@pytest.mark.parametrize(
    "parts", [(".qweight", ".qzeros", ".scales"), (".weight", ".weight.absmax"), (".weight", ".SCB")]
)
def test_quantized_weights_of_which_the_config_says_nothing(folders, parts):
    """As older files are, with a file of its own beside config.json, or none."""
    source, anchor = folders
    weight = QUERY.removesuffix(".weight")

    def pack(tensors):
        del tensors[QUERY]
        tensors |= {weight + part: torch.ones(3, dtype=torch.int8) for part in parts}

    edit_tensors(source, pack)
    named = weight + next(part for part in parts if part != ".weight")
    refused_by_both(source, anchor, f"{source} does not fit", f": its weights are quantized, as {named} tells; save it")


def test_weights_that_only_the_config_calls_quantized(folders):
    """As where a model was merged with its adapter, or dequantized, after it had been loaded in four bits."""
    source, anchor = folders
    line = "its config says that it is quantized ({}), its tensors are not; delete quantization_config"
    edit_json(source / "config.json", lambda config: config.update(quantization_config={}))
    refused_by_both(source, anchor, f"{source}: {line.format('the quantization_config in config.json')}")
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    edit_json(source / "config.json", lambda config: config.update(quantization_config=settings))
    refused_by_both(source, anchor, f"{source}: {line.format('bitsandbytes')}")
    assert line.format("bitsandbytes") in refused(source, "inspect", source)
    in_memory = model(CASE)
    in_memory.config.quantization_config = FineGrainedFP8Config()
    with pytest.raises(InputError, match=re.escape(line.format("fp8"))):
        inspect(in_memory)


@pytest.mark.parametrize("broken", [0, 1], ids=["source", "anchor"])
def test_weights_of_a_model_that_has_diverged(folders, broken):
    edit_tensors(folders[broken], lambda tensors: tensors.update({QUERY: tensors[QUERY] * 1e20}))
    refused_by_both(*folders, f"{folders[broken]}: {QUERY} has values up to ", "diverged", unread=False)


@pytest.mark.parametrize("broken", [0, 1], ids=["source", "anchor"])
def test_all_tensors_that_do_not_fit_are_in_one_message(folders, broken):
    def change(tensors):
        del tensors["bert.embeddings.LayerNorm.bias"], tensors["cls.predictions.bias"]
        tensors["bert.encoder.layer.2.output.dense.bias"] = torch.ones(24)
        tensors["extra"] = torch.ones(2, 3)
        tensors[QUERY] = torch.ones(24, 20)

    edit_tensors(folders[broken], change)
    refused_by_both(
        *folders,
        f"{folders[broken]} does not fit BertForMaskedLM",
        "missing tensor bert.embeddings.LayerNorm.bias (24,)",
        "missing tensor cls.predictions.bias (40,)",
        "unexpected tensor bert.encoder.layer.2.output.dense.bias (24,)",
        "unexpected tensor extra (2, 3)",
        f"{QUERY} has shape (24, 20), its type '(head qk) resid' needs (24, 24)",
        "Remove what is unexpected from the file, or name the class that reads it",
    )


def test_a_long_list_of_problems_is_cut(folders):
    edit_tensors(folders[0], lambda tensors: tensors.update({f"extra.{i}": torch.ones(1) for i in range(23)}))
    refused_by_both(*folders, "unexpected tensor extra.", "; and 3 more. Remove what is unexpected")


def test_one_tensor_under_two_names(folders):
    name = QUERY.removeprefix("bert.")
    edit_tensors(folders[0], lambda tensors: tensors.update({name: tensors[QUERY] * 2}))
    refused_by_both(*folders, f"{QUERY} and {name} are the same tensor under two names")


def test_a_tied_head_with_values_of_its_own(folders):
    head, twin = "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"
    edit_tensors(folders[0], lambda tensors: tensors.update({head: tensors[twin].clone()}))
    for verb in ("match", "merge"):
        assert run(verb, *folders, "--out", folders[0].with_name(verb)).code == 0
    edit_tensors(folders[0], lambda tensors: tensors[head][0].add_(1))
    refused_by_both(*folders, f"the config ties {head} to {twin}, but their values differ", unread=False)


@pytest.mark.parametrize("broken", [0, 1], ids=["source", "anchor"])
@pytest.mark.parametrize("kept", [0, 7, 500, -1])
def test_truncated_weights(folders, broken, kept):
    path = folders[broken] / WEIGHTS
    path.write_bytes(path.read_bytes()[:kept])
    refused_by_both(*folders, f"{path}: truncated, corrupt or not safetensors", "fetch the file again")


@pytest.mark.parametrize("broken", [0, 1], ids=["source", "anchor"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite(folders, value, broken):
    edit_tensors(folders[broken], lambda tensors: tensors[QUERY][3].__setitem__(5, value))
    text = f"{folders[broken]}: {QUERY} has NaN or infinite values"
    refused_by_both(*folders, text, unread=False)
    out = folders[0].with_name("out")
    assert text in refused(out.parent, "merge", *folders, "--out", out, "--match", "none", unread=False)


def test_values_that_do_not_fit_the_dtype(tmp_path):
    source, anchor = pair(tmp_path, "vit/ViTForImageClassification", torch.float16)
    edit_tensors(anchor, lambda tensors: tensors["vit.layernorm.weight"].fill_(2e-6))
    line = refused(tmp_path, "match", source, anchor, "--out", tmp_path / "out", unread=False)
    assert f"{source}: classifier." in line
    assert "does not fit torch.float16" in line


def test_a_folder_whose_name_is_no_text(folders):
    odd = folders[0].rename(folders[0].with_name(os.fsdecode(b"na\xffme")))
    out = odd.with_name("out")
    fits = folders[1]
    for arguments in (
        ("match", odd, fits, "--out", out),
        ("merge", odd, fits, "--out", out),
        ("match", fits, fits, "--out", odd / "out"),
    ):
        assert "this path is not text in UTF-8; rename it" in refused(out.parent, *arguments)


def test_a_folder_without_config(folders):
    (folders[0] / "config.json").unlink()
    refused_by_both(*folders, f"{folders[0]}: has no config.json; expected the folder of a Hugging Face model")


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({"architectures": None}, ["the config does not name the model's class", '"architectures": ["BertModel"]']),
        ({"architectures": []}, ["the config does not name the model's class"]),
        (
            {"architectures": ["BertForFun"]},
            [
                "'BertForFun' is not declared; of this family are: BertModel, BertForMaskedLM, ",
                "name it in config.json",
            ],
        ),
        ({"model_type": "nosuch"}, ["model_type 'nosuch' is not known"]),
        ({"model_type": "gpt2"}, ["of model_type 'gpt2', but BertForMaskedLM is of 'bert'"]),
        ({"num_hidden_layers": 20_000}, ["the config has num_hidden_layers 20000; expected up to 10000"]),
        ({"num_attention_heads": 0}, ["the config has num_attention_heads 0; expected 1 or more"]),
        ({"num_attention_heads": 5}, ["does not fit BertForMaskedLM", "needs (20, 24)"]),
        ({"hidden_size": "24"}, ["config.json: transformers refuses this config"]),
        ({"auto_map": {"AutoModel": "evil.Evil"}, "model_type": "evil"}, ["never executed"]),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_used(folders, changes, texts):
    source = duplicate(folders[0], "changed", **changes)
    refused_by_both(source, folders[1], str(source), *texts)


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "\x00"])
def test_a_config_that_is_not_json(folders, text):
    (folders[0] / "config.json").write_text(text)
    refused_by_both(*folders, f"{folders[0] / 'config.json'}: ")


def test_a_pickle_with_code(folders, tmp_path):
    as_bins(folders[0])
    assert run("inspect", folders[0]).code == 0
    mark = tmp_path / "executed"
    torch.save({"x": Exploit(mark)}, folders[0] / "pytorch_model.bin")
    refused_by_both(
        *folders, f"{folders[0] / 'pytorch_model.bin'}: cannot be read safely", "nothing in it was executed"
    )
    assert not mark.exists()


def test_weights_that_are_missing_or_double(folders):
    copy = duplicate(folders[0], "copy")
    (copy / WEIGHTS).unlink()
    refused_by_both(copy, folders[1], f"{copy}: has no weights")
    (folders[0] / f"{WEIGHTS}.index.json").write_text('{"weight_map": {"x": "y.safetensors"}}')
    refused_by_both(*folders, "two loaders would read two different models")


def tokenizer(folder, vocab, **more):
    content = {"model": {"vocab": vocab}, "added_tokens": [], "truncation": None} | more
    (folder / "tokenizer.json").write_text(json.dumps(content))


def test_different_vocabularies(folders):
    source, anchor = folders
    tokenizer(source, {"a": 0, "b": 1})
    assert run("match", source, anchor, "--out", source.with_name("one-has-a-tokenizer")).code == 0
    for vocab, more in (({"a": 1, "b": 0}, {}), ({"a": 0, "b": 1}, {"added_tokens": [{"id": 2, "content": "x"}]})):
        tokenizer(anchor, vocab, **more)
        texts = source / "tokenizer.json", anchor / "tokenizer.json", "the same id is another token"
        refused_by_both(source, anchor, *map(str, texts))
    tokenizer(anchor, {"b": 1, "a": 0}, truncation={"max_length": 8})
    assert run("match", source, anchor, "--out", source.with_name("same-vocabulary")).code == 0
    for text in ("", "[]", "{}", '{"model": []}'):
        (anchor / "tokenizer.json").write_text(text)
        refused_by_both(source, anchor, f"{anchor / 'tokenizer.json'}: not a tokenizer file")


def test_different_vocabularies_in_different_files(folders):
    source, anchor = folders
    tokenizer(source, {"a": 0, "b": 1}, added_tokens=[{"id": 2, "content": "x"}])
    (anchor / "vocab.txt").write_text("a\nb\n")
    assert run("match", source, anchor, "--out", source.with_name("matched")).code == 0
    (anchor / "vocab.txt").write_text("b\na\n")
    refused_by_both(source, anchor, str(source / "tokenizer.json"), str(anchor / "vocab.txt"), "such as 0: 'a' and 'b'")


SENTENCE_PIECE = ["tokenizer.model", "spiece.model", "spm.model", "sentencepiece.bpe.model"]


def test_different_vocabularies_that_both_tokenizers_tell(folders):
    for folder, text in zip(folders, ("a\nb\n", "b\na\n"), strict=True):
        (folder / "vocab.txt").write_text(text)
    files = " and ".join(str(folder / "vocab.txt") for folder in folders)
    line = refused(folders[0].parent, "merge", *folders[::-1], "--out", folders[0].with_name("out"))
    assert f"the vocabularies differ ({files})" in line
    report = run("match", *folders, "--out", folders[0].with_name("matched"), "--json").json
    assert any("compared are the 7 common tokens" in note for note in report["notes"]), report["notes"]


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", *SENTENCE_PIECE])
def test_different_vocabulary_files(folders, name):
    texts = ('{"a": 0, "b": 1}', '{"a": 1, "b": 0}') if name.endswith("json") else ("a\nb\n", "b\na\n")
    for folder, text in zip(folders, texts, strict=True):
        (folder / name).write_text(text)
    refused_by_both(*folders, f"the vocabularies differ ({folders[0] / name} and {folders[1] / name})")


def test_different_vocabularies_of_a_decoder(tmp_path):
    source, anchor = pair(tmp_path, "marian-two-vocabularies/MarianMTModel")
    for folder, text in ((source, '{"a": 0, "b": 1}'), (anchor, '{"a": 1, "b": 0}')):
        (folder / "vocab.json").write_text('{"x": 0}')
        (folder / "target_vocab.json").write_text(text)
    file = "target_vocab.json"
    refused_by_both(source, anchor, f"the vocabularies differ ({source / file} and {anchor / file})", "0: 'a' and 'b'")


def test_the_same_vocabularies_and_all_that_differs(folders):
    source = duplicate(folders[0], "changed", hidden_act="relu", num_attention_heads=2)
    for folder, text in ((source, "a"), (folders[1], "b")):
        (folder / "merges.txt").write_text(text)
    refused_by_both(source, folders[1], "hidden_act is", "num_attention_heads is", "the vocabularies differ")
