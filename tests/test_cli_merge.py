"""What `cobasin merge` writes: the average in the first model's place, and heads that belong to one model."""

import json
from itertools import product

import pytest
import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.fingerprint import fingerprint
from cobasin.finding.applying import transform
from cobasin.symmetry.element import Element
from command_line import duplicate, near, pair, refused, run, snapshot, stock, tensors_of
from model_folders import assert_bitwise
from sampling import one_in
from tiny_models import model

BERT = "bert/BertForMaskedLM"
CASES = [BERT, "vit/ViTForImageClassification", "gpt2/GPT2LMHeadModel", "llama-mqa-tied/LlamaForCausalLM"]
LABELLED = ["bert/BertForSequenceClassification", "vit/ViTForImageClassification"]


def assert_average(merged, models, weights, skip=()):
    """Check the tensors of a folder against the average of other folders', up to float32 rounding."""
    found = tensors_of(merged)
    parents = [tensors_of(folder) for folder in models]
    for name, tensor in found.items():
        if name not in skip:
            # a parent with a tied head has the embedding for it
            tied = next((e for e in parents[0] if e.endswith(("wte.weight", "embed_tokens.weight"))), name)
            terms = [w * p.get(name, p.get(tied)).double() for w, p in zip(weights, parents, strict=True)]
            torch.testing.assert_close(tensor.double(), sum(terms), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", one_in(2, CASES))
def test_merge_is_the_average_of_the_anchor_and_the_matched_model(tmp_path, case):
    source, anchor = pair(tmp_path, case)
    before = snapshot(tmp_path)
    matched, merged = tmp_path / "matched", tmp_path / "merged"
    assert run("match", source, anchor, "--out", matched).code == 0
    report = run("merge", anchor, source, "--out", merged, "--weights", "1,3", "--json").json
    assert report["weights"] == [0.25, 0.75]
    assert before.items() <= snapshot(tmp_path).items()
    stock(merged)
    assert_average(merged, [anchor, matched], [0.25, 0.75])
    assert tensors_of(merged).keys() == tensors_of(matched).keys()
    element = Element.load(merged / "cobasin-1.safetensors")
    assert_bitwise(dict(transform(element, source)), tensors_of(matched))


def test_merge_of_three(tmp_path):
    source, anchor = pair(tmp_path, BERT)
    third = tmp_path / "third"
    near(model(BERT).float(), noise=0.1).save_pretrained(third)
    merged = tmp_path / "merged"
    finished = run("merge", anchor, source, third, "--out", merged, "--anchor", anchor)
    assert finished.code == 0
    for name in ("source", "third"):
        assert run("match", tmp_path / name, anchor, "--out", tmp_path / f"{name}-matched").code == 0
        assert f"\n{tmp_path / name} matched to {anchor} (full)\n" in finished.out
    folders = [anchor, tmp_path / "source-matched", tmp_path / "third-matched"]
    assert_average(merged, folders, [1 / 3] * 3)
    assert f"linear of 0.333 x {anchor}, 0.333 x {source}, 0.333 x {third}\n" in finished.out
    assert (merged / "cobasin-2.safetensors").exists()


def test_merge_without_matching(tmp_path):
    source, anchor = pair(tmp_path, BERT)
    report = run("merge", anchor, source, "--out", tmp_path / "out", "--match", "none", "--json").json
    assert report["matches"] == []
    assert_average(tmp_path / "out", [anchor, source], [0.5, 0.5])
    assert not list((tmp_path / "out").glob("cobasin-*.safetensors"))


@pytest.mark.parametrize("case", CASES)
def test_merge_of_a_model_with_itself(tmp_path, case):
    _, anchor = pair(tmp_path, case)
    again = duplicate(anchor, "again")
    for name, second in (("same", anchor), ("copy", again)):
        assert run("merge", anchor, second, "--out", tmp_path / name).code == 0
        assert_average(tmp_path / name, [anchor], [1])
        assert run("verify", anchor, tmp_path / name).code == 0


def test_merge_has_the_dtype_the_shards_and_the_files_of_the_first(tmp_path):
    source, anchor = pair(tmp_path, BERT, torch.bfloat16, "10KB")
    whole = tmp_path / "whole"
    load_and_save_whole(source, whole)
    for folder in (source, anchor, whole):
        (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
        (folder / "mine.txt").write_text(folder.name)
    merged = tmp_path / "merged"
    assert run("merge", anchor, whole, "--out", merged).code == 0
    own = {"README.md", "cobasin.json", "cobasin-1.safetensors"}
    assert {path.name for path in merged.iterdir()} == {path.name for path in anchor.iterdir()} | own
    assert {tensor.dtype for tensor in tensors_of(merged).values()} == {torch.bfloat16}
    assert (merged / "mine.txt").read_text() == "anchor"
    index = [json.loads((folder / "model.safetensors.index.json").read_text()) for folder in (anchor, merged)]
    assert index[0]["weight_map"] == index[1]["weight_map"]
    assert stock(merged).dtype == torch.bfloat16


def load_and_save_whole(folder, out):
    """The same model in float32 and in one file."""
    stock(folder, dtype=torch.float32).save_pretrained(out)


def test_the_card_names_parents_weights_distances_and_verification(tmp_path):
    source, anchor = pair(tmp_path, BERT)
    merged, matched = tmp_path / "merged", tmp_path / "matched"
    (anchor / "README.md").write_text("The card of the anchor.")
    report = run("merge", anchor, source, "--out", merged, "--weights", "0.25,0.75", "--json").json
    card = (merged / "README.md").read_text()
    (one,) = report["matches"]
    front = card.split("---\n")[1]
    assert "library_name: transformers" in front
    assert "- merge" in front
    for folder, weight in ((anchor, "0.25"), (source, "0.75")):
        assert f"| `{folder}` | {weight} | {fingerprint(load(folder))} |\n" in card
    assert "merge_method: linear" in card
    assert f"## `{source}`, matched to `{anchor}`" in card
    assert "Transformation: `cobasin-1.safetensors`" in card
    assert f"{one['distance_before']:.6g} before, {one['distance_after']:.6g} after" in card
    assert f"function, in float64: {one['verification']['reason']}\n" in card
    assert "deviation of the transformation from its group" in card
    assert json.loads((merged / "cobasin.json").read_text()) == report

    report = run("match", source, anchor, "--out", matched, "--json").json
    card = (matched / "README.md").read_text()
    assert f"# {source}, matched to {anchor}\n" in card
    assert f"{report['distance_before']:.6g} before, {report['distance_after']:.6g} after" in card
    assert f"function, in float64: {report['verification']['reason']}\n" in card


@pytest.mark.parametrize(("case", "change"), one_in(2, list(product(LABELLED, ["count", "names", "order"]))))
def test_heads_of_different_labels(tmp_path, case, change):
    labels = model(case).config.num_labels
    names = {index: f"LABEL_{index}" for index in range(labels)}
    changes = {
        "count": {"num_labels": labels + 2},
        "names": {"id2label": names | {0: "cat"}},
        "order": {"id2label": names | {0: "LABEL_1", 1: "LABEL_0"}},
    }
    source, anchor = pair(tmp_path, case, **changes[change])
    merged = tmp_path / "merged"
    line = refused(tmp_path, "merge", anchor, source, "--out", merged)
    assert f"the task heads of {anchor} and {source} have different labels and cannot be averaged" in line
    assert "({0: 'LABEL_0', " in line
    assert "name the model whose head to take (--head-from MODEL)" in line

    matched = tmp_path / "matched"
    report = run("match", source, anchor, "--out", matched, "--json").json
    assert "the label sets differ: the task heads were moved along, but not compared" in report["notes"]
    assert run("verify", source, matched).code == 0
    for owner, moved in ((anchor, anchor), (source, matched)):
        report = run("merge", anchor, source, "--out", merged, "--overwrite", "--head-from", owner, "--json").json
        assert report["head"] == str(owner)
        assert f"The task head is that of `{owner}`." in (merged / "README.md").read_text()
        found, expected = tensors_of(merged), tensors_of(moved)
        heads = {name for name in found if name.startswith("classifier")}
        assert len(heads) == 2
        for name in heads:
            assert torch.equal(found[name], expected[name])
        assert_average(merged, [anchor, matched], [0.5, 0.5], skip=heads)
        config, own = stock(merged).config, load(owner).config
        assert (config.num_labels, config.id2label) == (own.num_labels, own.id2label)
        assert config.label2id == own.label2id


@pytest.mark.parametrize("case", LABELLED)
def test_a_head_goes_with_its_own_body(tmp_path, case):
    """All of the weight and the head to one model gives that model's function."""
    source, anchor = pair(tmp_path, case, num_labels=5)
    for owner, weights in ((anchor, "1,0"), (source, "0,1")):
        out = tmp_path / f"{owner.name}-alone"
        options = ("--weights", weights, "--head-from", owner)
        assert run("merge", anchor, source, "--out", out, *options).code == 0
        assert run("verify", owner, out).code == 0


def test_the_head_of_one_of_two_with_the_same_labels(tmp_path, monkeypatch):
    source, anchor = pair(tmp_path, LABELLED[0])
    assert run("merge", anchor, source, "--out", tmp_path / "average").code == 0
    assert_average(tmp_path / "average", [anchor, matched_to(source, anchor)], [0.5, 0.5])
    monkeypatch.chdir(tmp_path)
    report = run("merge", "./anchor", "source", "--out", "head", "--head-from", "anchor/", "--json").json
    assert report["head"] == "./anchor"
    found, own = tensors_of(tmp_path / "head"), tensors_of(anchor)
    assert torch.equal(found["classifier.weight"], own["classifier.weight"])


def matched_to(source, anchor):
    """The folder of the matched source."""
    out = source.with_name("matched")
    assert run("match", source, anchor, "--out", out).code == 0
    return out
