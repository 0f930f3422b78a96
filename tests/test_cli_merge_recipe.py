"""Recipes and options of `cobasin merge`: what they do to tensors, and what is written beside them."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.fingerprint import fingerprint
from cobasin.data.tokens import tokenizer_files
from cobasin.fusion.registry import find, methods
from cobasin.presenting.console import output
from command_line import duplicate, edit_tensors, pair, refused, run, stock, tensors_of
from merge_cases import CLASSIFIER, recipe, saved
from model_folders import as_bins, assert_bitwise, names
from sampling import one_in
from tiny_models import model
from vocabularies import write_tokenizer

LLAMA = "llama-gqa/LlamaForCausalLM"
EXAMPLES = sorted((Path(__file__).parents[1] / "examples" / "recipes").glob("*.yaml"))
QUERY = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.fixture
def llamas(tmp_path):
    return saved(tmp_path, LLAMA, 3)


@pytest.fixture
def berts(tmp_path):
    return saved(tmp_path, CLASSIFIER, 3)


def merged(folder, path, *options):
    """The tensors of what a recipe makes."""
    finished = run("merge", path, "--out", folder / "out", "--overwrite", *options)
    assert finished.code == 0, finished.err
    stock(folder / "out")
    return tensors_of(folder / "out")


def layer_of(name):
    """The layer of a Llama's tensor; None outside."""
    return int(name.split(".")[2]) if ".layers." in name else None


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_run_as_they_are(tmp_path, monkeypatch, example):
    for seed, name in enumerate(("base", "a", "b", "c", "chat")):
        torch.manual_seed(seed)
        made, added = four_layers(), ("<chat>",) * (name == "chat")
        tokens = ["<unk>", "<s>", "</s>", *map(str, range(3, made.config.vocab_size))]
        made.resize_token_embeddings(len(tokens) + len(added))
        made.save_pretrained(tmp_path / "models" / f"tiny-{name}")
        write_tokenizer(tmp_path / "models" / f"tiny-{name}", tokens, added)
    monkeypatch.chdir(tmp_path)
    assert run("merge", example, "--dry-run").code == 0
    report = run("merge", example, "--out", "out", "--json").json
    assert report["match"] == "none"
    stock(tmp_path / "out")
    found = tensors_of(tmp_path / "out")
    dtype = torch.bfloat16 if "out_dtype" in report["recipe"] else torch.float32
    assert {tensor.dtype for tensor in found.values()} == {dtype}
    for parent in map(tensors_of, (tmp_path / "models").iterdir()):
        same = [name for name, tensor in parent.items() if found[name].shape == tensor.shape]
        assert any(not torch.equal(found[name].float(), parent[name]) for name in same)


# parameters


def test_filters_and_gradients(tmp_path, llamas):
    a, b, _ = llamas
    weight = [{"filter": "self_attn", "value": [0.0, 1.0]}, {"filter": "mlp.up", "value": 3}, {"value": 0.5}]
    path = recipe(tmp_path / "recipe.yaml", "linear", [a, b], [{"weight": weight}, {}])
    parents = [tensors_of(folder) for folder in (a, b)]

    def share(name):
        weight = layer_of(name) if "self_attn" in name else 3 if "mlp.up" in name else 0.5
        return weight / (weight + 1)

    expected = {n: share(n) * parents[0][n] + (1 - share(n)) * parents[1][n] for n in parents[0]}
    assert len({share(name) for name in expected}) == 4
    assert_close(merged(tmp_path, path), expected)


def test_a_filter_looks_at_the_names_of_the_file(tmp_path):
    """A bare model's file has no prefix; its spec names are the same."""
    folders = saved(tmp_path, "bert/BertModel", 2)
    weight = [{"filter": "bert.encoder", "value": 0}, {"filter": "encoder.layer.1", "value": 3}, {"value": 1}]
    path = recipe(tmp_path / "recipe.yaml", "linear", folders, [{"weight": weight}, {}])
    parents = [tensors_of(folder) for folder in folders]
    shares = {name: 0.75 if "encoder.layer.1" in name else 0.5 for name in parents[0]}
    expected = {n: s * parents[0][n] + (1 - s) * parents[1][n] for n, s in shares.items()}
    assert_close(merged(tmp_path, path), expected)


def test_slices_have_parameters_and_gradients_of_their_own(tmp_path):
    folders = []
    for i in range(2):
        torch.manual_seed(i)
        made = four_layers()
        made.save_pretrained(tmp_path / f"m{i}")
        folders.append(str(tmp_path / f"m{i}"))

    def part(first, stop, **keys):
        return {"sources": [{"model": m, "layer_range": [first, stop]} for m in folders], **keys}

    content = {
        "merge_method": "slerp",
        "base_model": folders[0],
        "slices": [part(0, 3, parameters={"t": [0.0, 1.0]}), part(3, 4, parameters={"t": 0.25})],
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    parents = [tensors_of(tmp_path / f"m{i}") for i in range(2)]
    by_layer = [0, 0.5, 1, 0.25]

    def t(name):
        layer = layer_of(name)
        return by_layer[layer] if layer is not None else 0 if "embed" in name else 0.25

    expected = {n: find("slerp").function(parents[0][n], [parents[1][n]], t=t(n)) for n in parents[0]}
    assert_close(merged(tmp_path, tmp_path / "recipe.yaml"), expected)
    content["slices"][1] = part(3, 5, parameters={"t": 0.25})
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    line = refused(tmp_path, "merge", tmp_path / "recipe.yaml", "--out", tmp_path / "new")
    assert "the slices end at layer 5, and the models have 4 layers" in line


def four_layers():
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=4, vocab_size=16, tie_word_embeddings=False))


def test_required_parameters_by_filters_that_leave_nothing_out(tmp_path, llamas):
    a, b, _ = llamas
    t = [{"filter": word, "value": i / 4} for i, word in enumerate(("layers", "embed", "norm", "lm_head"))]
    path = recipe(tmp_path / "recipe.yaml", "slerp", [a, b], base_model=str(a), parameters={"t": t})
    parents = [tensors_of(folder) for folder in (a, b)]
    found = merged(tmp_path, path)
    for name, value in (("model.embed_tokens.weight", 0.25), ("lm_head.weight", 0.75), ("model.norm.weight", 0.5)):
        expected = find("slerp").function(parents[0][name], [parents[1][name]], t=value)
        torch.testing.assert_close(found[name], expected)
    path = recipe(tmp_path / "recipe.yaml", "slerp", [a, b], base_model=str(a), parameters={"t": t[:3]})
    line = refused(tmp_path, "merge", path, "--out", tmp_path / "new")
    assert "slerp needs t for lm_head.weight: no filter applies; add an entry without a filter" in line


def test_experts_are_merged_one_by_one(tmp_path):
    """As they are in the file, though matched as one tensor: filters and angles are those of every expert."""
    a, b = saved(tmp_path, "mixtral/MixtralForCausalLM", 2)
    t = [{"filter": "experts.0", "value": 0}, {"filter": "experts.1.w2", "value": 1}, {"value": 0.4}]
    path = recipe(tmp_path / "recipe.yaml", "slerp", [a, b], base_model=str(a), parameters={"t": t})
    parents = [tensors_of(folder) for folder in (a, b)]

    def share(name):
        return 0 if "experts.0" in name else 1 if "experts.1.w2" in name else 0.4

    expected = {n: find("slerp").function(parents[0][n], [parents[1][n]], t=share(n)) for n in parents[0]}
    assert sum(share(name) == 1 for name in expected) == 2
    assert_close(merged(tmp_path, path), expected)


def test_negative_weights_and_sums_of_zero_where_nothing_is_averaged(tmp_path, berts):
    a, b, base = berts
    out = tmp_path / "out"
    options = "--method", "task_arithmetic", "--base", base, "--match", "none"
    finished = run("merge", a, b, *options, "--weights", "1,-1", "--out", out)
    assert finished.out.startswith(f"task_arithmetic of 1 x {a}, -1 x {b}, base {base}\n")
    one, other, start = map(tensors_of, (a, b, base))
    assert_close(tensors_of(out), {name: start[name] + one[name] - other[name] for name in one})


@pytest.mark.parametrize("listed", [True, False])
def test_the_base_may_be_listed_or_not(tmp_path, berts, listed):
    a, b, base = berts
    models = [base, a, b] if listed else [a, b]
    keys = {"base_model": str(base), "parameters": {"density": 0.4, "weight": 0.7}}
    path = recipe(tmp_path / "recipe.yaml", "ties", models, **keys)
    one, other, start = map(tensors_of, (a, b, base))
    options = {"weight": (0.7, 0.7), "density": (0.4, 0.4)}
    expected = {n: find("ties").function(start[n], [one[n], other[n]], **options) for n in start}
    assert_close(merged(tmp_path, path), expected)


@pytest.mark.parametrize("head", ["cls.predictions.decoder.weight", None])
def test_tied_tensors_stay_tied(tmp_path, head):
    """Also where the file repeats them: a random mask or a filter must not tell them apart."""
    folders = saved(tmp_path, "bert/BertForMaskedLM", 2)
    twin = "bert.embeddings.word_embeddings.weight"
    if head:
        for folder in folders:
            edit_tensors(folder, lambda tensors: tensors.update({head: tensors[twin].clone()}))
    for method, keys in (
        ("dare_linear", {"base_model": str(folders[0]), "parameters": {"density": 0.5}}),
        ("linear", {"parameters": {"weight": [{"filter": "cls", "value": 0}, {"value": 1}], "normalize": False}}),
    ):
        found = merged(tmp_path, recipe(tmp_path / "recipe.yaml", method, folders, **keys))
        assert (head in found) == (head is not None)
        assert head is None or torch.equal(found[head], found[twin])


# where the result comes from, and how it is written


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        ({}, torch.float16),
        ({"dtype": "bfloat16"}, torch.bfloat16),
        ({"dtype": "bfloat16", "out_dtype": "float32"}, torch.float32),
        ({"out_dtype": "float64"}, torch.float64),
    ],
)
def test_dtypes(tmp_path, berts, keys, dtype):
    a, b, _ = berts
    stock(a).half().save_pretrained(a)
    found = merged(tmp_path, recipe(tmp_path / "recipe.yaml", "linear", [a, b], **keys))
    assert {tensor.dtype for tensor in found.values()} == {dtype}
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    parents = [tensors_of(folder) for folder in (a, b)]
    for name, tensor in found.items():  # computed in float32, then rounded once
        assert torch.equal(tensor, ((parents[0][name].float() + parents[1][name]) / 2).to(dtype))


def test_the_tokenizer_is_that_of_the_model_that_is_named(tmp_path, berts):
    a, b, c = berts
    for folder in berts:
        (folder / "tokenizer_config.json").write_text(json.dumps({"from": folder.name}))
    sources = {None: a, "base": c, str(b): b, "union": c}
    for source, folder in sources.items():
        keys = {} if source is None else {"tokenizer_source": source, "base_model": str(c)}
        merged(tmp_path, recipe(tmp_path / "recipe.yaml", "linear", berts, **keys))
        assert json.loads((tmp_path / "out/tokenizer_config.json").read_text()) == {"from": folder.name}
    path = recipe(tmp_path / "recipe.yaml", "linear", [a, b], tokenizer_source=str(c))
    assert f"tokenizer_source {str(c)!r}: expected " in refused(tmp_path, "merge", path, "--out", tmp_path / "new")


def test_nothing_is_left_of_the_tokenizer_that_is_not_named(tmp_path, berts):
    a, b, _ = berts
    (a / "added_tokens.json").write_text("{}")
    (b / "vocab.txt").write_text("x")
    (a / "notes.md").write_text("x")
    path = recipe(tmp_path / "recipe.yaml", "linear", [a, b], tokenizer_source=str(b))
    merged(tmp_path, path)
    there = {file.name for file in (tmp_path / "out").iterdir()}
    assert "added_tokens.json" not in there
    assert there >= {"vocab.txt", "notes.md"}


def test_further_chat_templates_are_those_of_the_tokenizer_that_is_named(tmp_path, berts):
    a, b, _ = berts
    for folder, others in ((a, ("tool", "mine")), (b, ("tool", "other"))):
        (folder / "chat_template.jinja").write_text(folder.name)
        (folder / "additional_chat_templates").mkdir()
        for name in others:
            (folder / f"additional_chat_templates/{name}.jinja").write_text(folder.name)
    merged(tmp_path, recipe(tmp_path / "recipe.yaml", "linear", [a, b], tokenizer_source=str(b)))
    found = {file.stem: file.read_text() for file in (tmp_path / "out").rglob("*.jinja")}
    assert found == dict.fromkeys(("chat_template", "tool", "other"), b.name)
    assert [file.stem for file in tokenizer_files(b)][-2:] == ["other", "tool"]
    for file in b.glob("*"):
        if file.is_file():
            file.unlink()
    assert tokenizer_files(b) == []  # the control: by themselves they are no tokenizer


def test_the_tokenizer_of_a_translator_is_of_one_model(tmp_path):
    """It has a vocabulary and a segmentation for either language."""
    other, own = pair(tmp_path, "marian/MarianMTModel")
    files = ("vocab.json", "target_vocab.json", "source.spm", "target.spm")
    for name in files:
        (own / name).write_text("{}")
        (other / name).write_text("{} ")
    merged(tmp_path, recipe(tmp_path / "recipe.yaml", "linear", [own, other], tokenizer_source=str(other)))
    assert {name: (tmp_path / "out" / name).read_text() for name in files} == dict.fromkeys(files, "{} ")


def test_a_tokenizer_that_is_not_there(tmp_path, berts):
    a, b, _ = berts
    path = recipe(tmp_path / "recipe.yaml", "linear", [a, b], tokenizer_source=str(b))
    line = refused(tmp_path, "merge", path, "--out", tmp_path / "new")
    assert f"tokenizer_source: {b} has no tokenizer to take" in line


def test_paths_are_relative_to_the_current_directory(tmp_path, berts, monkeypatch):
    (tmp_path / "deeper").mkdir()
    path = recipe(tmp_path / "deeper" / "recipe.yml", "linear", ["./0", "1/"])
    monkeypatch.chdir(tmp_path)
    assert run("merge", "deeper/recipe.yml", "--out", "out").code == 0
    monkeypatch.chdir(tmp_path / "deeper")
    assert "./0: no such folder" in refused(tmp_path, "merge", path, "--out", tmp_path / "new")


@pytest.mark.parametrize(
    "name", one_in(2, ["ä ö 模型", "[bold]x :smile:", "a|b`c", "#1: {y}", "x.yaml", "a+b", "a@b", "medoid"])
)
def test_odd_names_of_folders(tmp_path, berts, name):
    a, b, _ = berts
    odd = b.rename(tmp_path / name)
    path = recipe(tmp_path / "recipe.yaml", "linear", [a, odd], match={"symmetry": "ffn", "anchor": str(a)})
    report = run("merge", path, "--out", tmp_path / "out", "--json").json
    assert report["models"] == [str(a), str(odd)]
    assert yaml.safe_load(report["recipe"])["models"][1]["model"] == str(odd)
    finished = run("merge", path, "--out", tmp_path / "text")
    assert f"linear of 0.5 x {a}, 0.5 x {odd}\n\n{odd} matched to {a} (ffn)\n" in finished.out
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"{tmp_path}/{name}".replace("|", "\\|") in card
    assert run("merge", a, odd, "--match", "none", "--out", tmp_path / "by-arguments").code == 0


def test_a_model_may_be_sharded_or_a_pickle(tmp_path, berts):
    a, b, _ = berts
    expected = dict(merged(tmp_path, recipe(tmp_path / "recipe.yaml", "karcher", [a, b])))
    as_bins(b, shards=3)
    assert_bitwise(dict(merged(tmp_path, recipe(tmp_path / "recipe.yaml", "karcher", [a, b]))), expected)
    found = merged(tmp_path, recipe(tmp_path / "recipe.yaml", "karcher", [b, a]))
    assert_close(found, expected)
    assert "model-00003-of-00003.safetensors" in names(tmp_path / "out")


# options beside a recipe


def test_match_and_anchor_override_the_recipe(tmp_path, berts):
    a, b, c = berts
    given = {"symmetry": "full", "anchor": "consensus"}
    path = recipe(tmp_path / "recipe.yaml", "linear", berts, match=given)

    def report(*options):
        return run("merge", path, "--out", tmp_path / "out", "--overwrite", "--json", *options).json

    plain = report("--match", "none")
    assert (plain["match"], plain["matches"], plain["reference"]) == ("none", [], None)
    assert "the models were not matched before" in (tmp_path / "out" / "README.md").read_text()
    ffn = report("--match", "ffn")
    assert (ffn["match"], ffn["anchor"]) == ("ffn", "consensus")
    first, *_, last = ffn["matching"]["objective"]
    assert last < first
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"- distance of all to their mean: {first:.6g} before, {last:.6g} after\n" in card
    text = run("merge", path, "--out", tmp_path / "text", "--match", "ffn").out
    assert f"\ndistance of all to their mean: {first:.6g} -> {last:.6g}\n" in text
    named = report("--match", "ffn", "--anchor", f"{c}/")
    assert (named["match"], named["anchor"], named["reference"]) == ("ffn", str(c), str(c))
    assert [one["source"] for one in named["matches"]] == [str(a), str(b)]
    line = refused(tmp_path, "merge", path, "--out", tmp_path / "new", "--anchor", "nobody")
    assert f"match.anchor 'nobody': expected medoid, consensus, {a}, {b}, {c}" in line


def test_a_recipe_matches_only_where_it_says_so(tmp_path, berts):
    a, b, _ = berts
    assert (
        run("merge", recipe(tmp_path / "r.yaml", "linear", [a, b]), "--out", tmp_path / "x", "--json").json["match"]
        == "none"
    )
    assert run("merge", a, b, "--out", tmp_path / "y", "--json").json["match"] == "full"


def test_parameters_by_options(tmp_path, berts):
    a, b, base = berts
    out, by_recipe = tmp_path / "out", tmp_path / "recipe.yaml"
    options = "--method", "ties", "--base", base, "--set", "density=[1, 0.2]", "--set", "lambda=5e-1"
    assert run("merge", a, b, *options, "--weights", "1,-0.5", "--match", "none", "--out", out).code == 0
    own = [{"weight": 1}, {"weight": -0.5}]
    keys = {"base_model": str(base), "parameters": {"density": [1, 0.2], "lambda": 0.5}}
    found = dict(tensors_of(out))
    assert_bitwise(found, merged(tmp_path, recipe(by_recipe, "ties", [a, b], own, **keys)))
    keys["parameters"]["density"] = 1
    other = merged(tmp_path, recipe(by_recipe, "ties", [a, b], own, **keys))
    assert any(not torch.equal(found[name], other[name]) for name in found)


# what is written beside the weights


def test_models_of_several_dtypes(tmp_path, berts):
    """The result has those of the first, unless the recipe says others: no digit is lost without a word."""
    other, coarse = berts[0], tmp_path / "coarse"
    model(CLASSIFIER, 5, torch.bfloat16).save_pretrained(coarse)
    note = f"note: the result is rounded to the dtypes of {coarse}, coarser than those of {other}\n"
    for ends, said in (((coarse, other), True), ((other, coarse), False)):
        finished = run("merge", *ends, "--match", "none", "--out", tmp_path / "out", "--overwrite")
        assert finished.code == 0
        assert (note in finished.out) is said
    asked = recipe(tmp_path / "recipe.yaml", "linear", [coarse, other], dtype="bfloat16")
    assert note not in run("merge", asked, "--out", tmp_path / "asked").out


def test_the_same_model_twice(tmp_path, berts):
    a, b, _ = berts
    copy = duplicate(a, "copy")
    note = f"note: {copy} and {a} are the same model: it counts twice\n"
    finished = run("merge", a, b, copy, "--match", "none", "--out", tmp_path / "out")
    assert finished.code == 0
    assert note in finished.out
    assert note.removesuffix("\n") in (tmp_path / "out" / "README.md").read_text()
    one, other = tensors_of(a), tensors_of(b)
    assert_close(tensors_of(tmp_path / "out"), {name: (2 * one[name] + other[name]) / 3 for name in one})
    assert "same model" not in run("merge", a, b, "--match", "none", "--out", tmp_path / "two").out
    finished = run("merge", a, a, "--out", tmp_path / "twice")
    assert finished.code == 0
    assert f"note: {a} is listed more than once, and counts as often\n" in finished.out
    assert_close(tensors_of(tmp_path / "twice"), one)
    card = (tmp_path / "twice" / "README.md").read_text()
    assert f"| `{a}` | 1 |" in card
    assert "the models were not matched before" in card
    assert json.loads((tmp_path / "twice" / "cobasin.json").read_text())["match"] == "none"
    assert ", not matched" in run("merge", a, a, "--dry-run").out


def test_the_parents_of_a_report_are_the_files_tied_or_not(tmp_path):
    tied, untied = tmp_path / "tied", tmp_path / "untied"
    model("gpt2/GPT2LMHeadModel", 0, torch.float32).save_pretrained(tied)
    model("gpt2-untied/GPT2LMHeadModel", 1, torch.float32).save_pretrained(untied)
    report = run("merge", tied, untied, "--match", "ffn", "--out", tmp_path / "out", "--json").json
    assert report["parents"] == {str(folder): fingerprint(load(folder)) for folder in (tied, untied)}


def test_the_report_and_the_card(tmp_path, berts):
    a, b, c = berts
    keys = {"base_model": str(c), "parameters": {"density": 0.5}, "match": {"symmetry": "full", "anchor": str(c)}}
    path = recipe(tmp_path / "recipe.yaml", "ties", [a, b], [{"weight": 1}, {"weight": 0.25}], **keys)
    out = tmp_path / "out"
    report = run("merge", path, "--out", out, "--json").json
    assert json.loads((out / "cobasin.json").read_text()) == report
    assert report["method"] == "ties"
    assert report["base"] == report["anchor"] == report["reference"] == str(c)
    assert report["models"] == [str(a), str(b)]
    assert report["weights"] == [1, 0.25]
    assert report["parents"] == {str(folder): fingerprint(load(folder)) for folder in berts}
    assert yaml.safe_load(report["recipe"]) == yaml.safe_load(path.read_text())
    assert [one["source"] for one in report["matches"]] == [str(a), str(b)]
    card = (out / "README.md").read_text()
    assert f"with `ties`; the models were matched before (symmetry `full`, anchor `{c}`).\n" in card
    for folder, weight in ((a, "1"), (b, "0.25"), (c, "")):
        assert f"| `{folder}` | {weight} | {fingerprint(load(folder))} |\n" in card
    assert f"```yaml\n{report['recipe']}```\n" in card
    for one in report["matches"]:
        assert f"## `{one['source']}`, matched to `{c}`\n\nTransformation: `{one['file']}`\n" in card
        assert f"{one['objective'][0]:.6g} before, {one['objective'][-1]:.6g} after" in card
        assert one["objective"][-1] < one["objective"][0]
        assert one["verification"]["same"] is True
        assert f"- function, in float64: {one['verification']['reason']}\n" in card
        assert (out / one["file"]).is_file()


def test_a_recipe_from_a_card_does_the_same_again(tmp_path, berts):
    a, b, _ = berts
    options = "--method", "dare_ties", "--base", a, "--set", "density=0.5", "--match", "ffn"
    report = run("merge", b, *options, "--out", tmp_path / "first", "--json").json
    (tmp_path / "again.yaml").write_text(report["recipe"])
    assert_bitwise(dict(merged(tmp_path, tmp_path / "again.yaml")), tensors_of(tmp_path / "first"))


def test_the_help_names_every_method():
    text = run("merge", "--help").out
    assert all(name in text for name in methods())


def test_methods_are_listed_with_what_they_take_and_need():
    rows = {row["method"]: row for row in run("methods", "--json").json["methods"]}
    assert rows.keys() == methods().keys()
    assert (rows["slerp"]["parameters"], rows["slerp"]["base"]) == ({"t": None}, "optional")
    assert (rows["ties"]["base"], rows["ties"]["statistics"]) == ("needed", None)
    assert (rows["fisher"]["base"], rows["fisher"]["statistics"]) == (None, "fisher")
    assert rows["nuslerp"]["base"] == rows["arcee_fusion"]["base"] == "optional"
    text = " ".join(run("methods").out.split())
    assert "t=(required)" in text
    assert all(row["method"] in text and row["reference"].split(",")[0] in text for row in rows.values())


def test_no_method_is_cut_in_a_terminal_of_80_columns(monkeypatch):
    monkeypatch.setattr(output, "width", 80)
    shown = run("methods").out
    assert "…" not in shown
    assert all(f"│ {name} " in shown for name in methods())
