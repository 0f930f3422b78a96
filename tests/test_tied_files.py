"""Files that hold a tied tensor under the name of another one, as ``safetensors.torch.save_model`` may write them."""

import json

import pytest
import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.writer import save
from cobasin.finding.applying import transform
from cobasin.finding.match import match
from cobasin.verification import verify
from command_line import duplicate, edit_json, edit_tensors, refused, refused_by_both, run, stock, tensors_of
from sampling import one_in
from tiny_models import model

pytestmark = pytest.mark.usefixtures("one_round")

EMBEDDING = "model.embed_tokens.weight"

# a case, and the name that is kept of those that share a tensor
KEPT = [
    ("gpt2/GPT2LMHeadModel", "lm_head.weight"),
    ("llama-mqa-tied/LlamaForCausalLM", "lm_head.weight"),
    ("bart/BartForConditionalGeneration", "lm_head.weight"),
    ("t5/T5ForConditionalGeneration", "decoder.embed_tokens.weight"),
    ("t5/T5Model", "encoder.embed_tokens.weight"),
]


def pair(folder, case, kept):
    """Two models far from each other: the first as Transformers writes it, the second with another name kept."""
    for seed, name in enumerate(("own", "other")):
        model(case, seed).float().save_pretrained(folder / name)
    spec = Typed.of(load(folder / "own")).spec
    owner = next(disk for own, disk in Typed.of(load(folder / "own")).disk_names.items() if own == spec.tied[kept])
    edit_tensors(folder / "other", lambda tensors: tensors.update({kept: tensors.pop(owner)}))
    return folder / "own", folder / "other"


@pytest.mark.parametrize(("case", "kept"), one_in(3, KEPT))
def test_either_name_is_read(tmp_path, case, kept):
    """By Transformers, too; and written as the file had it, unless the head is untied."""
    own, other = pair(tmp_path, case, kept)
    assert kept in tensors_of(other)
    for source, anchor in ((own, other), (other, own)):
        out = tmp_path / f"out-{source.name}"
        report = run("match", source, anchor, "--out", out, "--json").json
        assert report["verification"]["same"] is True
        assert run("verify", source, out).code == 0
        untied = any("is untied" in note for note in report["notes"])
        assert untied or tensors_of(out).keys() == tensors_of(source).keys()
        stock(out)


@pytest.mark.parametrize(("case", "kept"), one_in(3, KEPT, 1))
def test_the_tensor_is_compared_whatever_its_name(tmp_path, case, kept):
    """Moved back to where it was, by an embedding that counts."""
    own, other = pair(tmp_path, case, kept)
    expected = run("match", own, tmp_path / "own", "--out", tmp_path / "a", "--json").json["distance_before"]
    assert expected == 0
    change = {name: tensor + 1 for name, tensor in tensors_of(other).items() if name == kept}
    edit_tensors(other, lambda tensors: tensors.update(change))
    found = [
        run("match", one, two, "--symmetry", "ffn", "--out", tmp_path / f"b-{one.name}", "--json").json[
            "distance_before"
        ]
        for one, two in ((own, other), (other, own))
    ]
    ends = Typed.of(load(own)), Typed.of(load(other))
    names = [name for name in ends[0] if name not in ends[0].spec.tied]
    distance = sum(float((ends[0][name] - ends[1][name]).double().square().sum()) for name in names) ** 0.5
    assert found == pytest.approx([distance] * 2, rel=1e-6)


def test_no_name_of_a_tied_tensor(tmp_path):
    own, other = pair(tmp_path, *KEPT[0])
    edit_tensors(other, lambda tensors: tensors.pop("lm_head.weight"))
    line = refused(tmp_path, "match", other, own, "--out", tmp_path / "out")
    assert "missing tensor wte.weight" in line
    assert torch.equal(tensors_of(own)["transformer.wte.weight"], Typed.of(load(own))["lm_head.weight"])


def test_a_tie_that_the_text_config_tells(tmp_path):
    """LLaVA's head is tied where either config says so: a file whose head is untied must not."""
    for seed, name in enumerate(("one", "other")):
        model("llava-siglip-tied/LlavaForConditionalGeneration", seed, torch.float32).save_pretrained(tmp_path / name)
    keys = {"tie_word_embeddings": False, "text_config.tie_word_embeddings": True}
    ends = [duplicate(tmp_path / name, f"{name}-told", **keys) for name in ("one", "other")]
    assert run("match", *ends, "--out", tmp_path / "out").code == 0
    assert "language_model.lm_head.weight" in tensors_of(tmp_path / "out")
    assert run("verify", ends[0], tmp_path / "out").code == 0
    assert not stock(tmp_path / "out").config.tie_word_embeddings


def test_a_head_of_its_own_that_the_config_ties(tmp_path):
    """Configs of InternVL say nothing of a tie, which means one; Transformers ties no head that the file has."""
    for seed, name in enumerate(("one", "other")):
        model("internvl/InternVLForConditionalGeneration", seed, torch.float32).save_pretrained(tmp_path / name)
    ends = [duplicate(tmp_path / name, f"{name}-told", tie_word_embeddings=True) for name in ("one", "other")]
    assert run("match", *ends, "--out", tmp_path / "out").code == 0
    assert run("verify", tmp_path / "one", tmp_path / "out").code == 0
    stock(tmp_path / "out")


@pytest.mark.parametrize(("case", "head"), KEPT[:2])
def test_a_head_that_differs_is_refused_where_it_would_be_untied(tmp_path, case, head):
    """Versions of Transformers differ in which of the two they load."""
    own, other = (tmp_path / name for name in ("own", "other"))
    for seed, folder in enumerate((own, other)):
        model(case, seed).float().save_pretrained(folder)
    typed = Typed.of(load(own))
    twin = typed.disk_names[typed.spec.tied[head]]
    for folder in (own, other):
        edit_tensors(folder, lambda tensors: tensors.update({head: tensors[twin].clone()}))
    assert run("match", other, own, "--out", tmp_path / "equal").code == 0
    edit_tensors(other, lambda tensors: tensors[head][0].add_(1))
    refused_by_both(own, other, f"the config ties {head} to {twin}, but their values differ", unread=False)
    refused_by_both(other, own, f"the config ties {head} to {twin}, but their values differ", unread=False)


def test_a_head_that_is_tied_in_memory_only(tmp_path):
    """The config says that it is a tensor of its own, and so it is written."""
    anchor, tied = (model("llama-gqa/LlamaForCausalLM", seed).float() for seed in (0, 1))
    tied.lm_head.weight = tied.model.embed_tokens.weight
    moved = transform(match(tied, anchor), tied)
    assert verify(tied, moved).same
    save(moved, tmp_path / "moved")
    assert not torch.equal(*(tensors_of(tmp_path / "moved")[name] for name in ("lm_head.weight", EMBEDDING)))
    assert verify(tied, stock(tmp_path / "moved")).same


@pytest.mark.parametrize("case", ["gpt2/GPT2LMHeadModel", "xlnet/XLNetLMHeadModel"])
def test_a_head_of_another_dtype_is_refused(tmp_path, case):
    """What is moved is rounded to each of the two dtypes, and no longer the same."""
    own, other = (tmp_path / name for name in ("own", "other"))
    for seed, folder in enumerate((own, other)):
        model(case, seed).bfloat16().float().save_pretrained(folder)
    typed = Typed.of(load(own))
    ((tied, name),) = typed.spec.tied.items()
    twin = typed.disk_names[name]
    edit_tensors(own, lambda tensors: tensors.update({tied: tensors[twin].clone()}))
    assert run("match", own, other, "--out", tmp_path / "equal").code == 0
    edit_tensors(own, lambda tensors: tensors.update({tied: tensors[twin].bfloat16()}))
    refused_by_both(own, other, f"the config ties {tied} to {twin}, but their dtypes differ", unread=False)


def test_a_head_of_its_own_that_the_config_takes_for_tied(tmp_path):
    """PaddleOCR-VL on the hub, whose config has the decoder's keys beside its own: Transformers reads the head."""
    case = "paddleocr-vl/PaddleOCRVLForConditionalGeneration"
    for seed, name in enumerate(("source", "anchor")):
        model(case, seed, torch.float32).save_pretrained(tmp_path / name)
        text = json.loads((tmp_path / name / "config.json").read_text())["text_config"]
        beside = {key: value for key, value in text.items() if key != "model_type"}

        def flatten(config, beside=beside):
            del config["text_config"]
            config.update({key: value for key, value in beside.items() if key not in config})

        edit_json(tmp_path / name / "config.json", flatten)
    assert load(tmp_path / "source").config.tie_word_embeddings
    assert run("match", tmp_path / "source", tmp_path / "anchor", "--out", tmp_path / "out").code == 0
    assert run("verify", tmp_path / "source", tmp_path / "out").code == 0
    before, after = (tensors_of(tmp_path / name)["lm_head.weight"] for name in ("source", "out"))
    assert not torch.equal(before, after)
