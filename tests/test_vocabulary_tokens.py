"""Single tokens, whose rows the ``tokenizer`` of a recipe gives to models that lack them, or to all."""

import json

import pytest
import torch
from transformers import AutoTokenizer

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.typed import Typed
from cobasin.merging.merge import merge_recipe
from command_line import duplicate, edit_tensors, near, refused, run, stock, tensors_of
from merge_cases import recipe
from permuted_copies import permuted
from tiny_models import model
from vocabularies import LETTERS, embedding, folder, write_tokenizer

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
WEIGHTS = 0.2, 0.3, 0.5


@pytest.fixture
def models(tmp_path):
    """Two that have <x>, the second <y>, too, and a third without either."""
    added = (("<x>",), ("<y>", "<x>"), ())
    return [
        folder(tmp_path / name, seed, LETTERS, own) for seed, (name, own) in enumerate(zip("abc", added, strict=True))
    ]


def merged(models, tokens, **keys):
    """The weighted average with the union of their tokens, of which some have other rows."""
    own = zip(models, WEIGHTS, strict=True)
    entries = [{"model": str(model), "parameters": {"weight": weight}} for model, weight in own]
    content = {"merge_method": "linear", "models": entries, "tokenizer": {"tokens": tokens}}
    return merge_recipe(content | keys).checkpoint


def row(model, token, name=EMBEDDING):
    return tensors_of(model)[name][AutoTokenizer.from_pretrained(model).get_vocab()[token]]


def of(model, token, **keys):
    return {"source": {"kind": "model_token", "model": str(model), "token": token, **keys}}


@pytest.mark.parametrize("name", [EMBEDDING, HEAD])
def test_which_row_each_model_has(models, name):
    a, b, c = models
    one, two = row(a, "<x>", name), row(b, "<x>", name)

    def found(said):
        return merged(models, {"<x>": said})[name][26]

    own = 0.2 * one + 0.3 * two
    assert torch.allclose(found({}), own + 0.5 * (one + two) / 2)  # the usual
    assert torch.allclose(found({"source": str(b)}), own + 0.5 * two)
    assert torch.allclose(found({"source": str(b), "force": True}), two)
    assert torch.allclose(found({"source": {"kind": "zero"}}), own)
    assert torch.equal(found({"source": {"kind": "zero"}, "force": True}), torch.zeros_like(one))
    assert torch.allclose(found({"force": True}), (one + two) / 2)
    assert torch.allclose(found(of(c, "c")), own + 0.5 * row(c, "c", name))
    by_number = {"kind": "model_token", "model": str(b), "token_id": 26}
    assert torch.allclose(found({"source": by_number, "force": True}), row(b, "<y>", name))
    assert torch.allclose(found(of(c, "c") | {"force": True}), row(c, "c", name))
    # no other token has another row
    usual, other = merged(models, {}), merged(models, {"<x>": {"source": {"kind": "zero"}, "force": True}})
    rest = [*range(26), 27]
    assert torch.equal(usual[name][rest], other[name][rest])


def test_the_base_comes_first_where_one_is_named(models):
    a, b, c = models
    found = merged(models, {}, base_model=str(b))[EMBEDDING]
    x = row(a, "<x>")
    assert torch.allclose(found[27], 0.2 * x + 0.8 * row(b, "<x>"))
    assert AutoTokenizer.from_pretrained(b).convert_ids_to_tokens(27) == "<x>"
    found = merged(models, {}, base_model=str(c))[EMBEDDING]
    assert torch.allclose(found[26], 0.2 * x + 0.3 * row(b, "<x>") + 0.5 * (x + row(b, "<x>")) / 2)


@pytest.mark.parametrize("method", ["task_arithmetic", "ties", "model_stock"])
def test_a_forced_row_is_that_of_the_result_of_task_vectors(models, method):
    _, b, c = models
    keys = {} if method == "model_stock" else {"parameters": {"weight": 0.7}}
    content = {"merge_method": method, "models": [{"model": str(one)} for one in models], "base_model": str(c)} | keys
    for said in ({}, {"<x>": {"source": str(b), "force": True}}):
        found = merge_recipe(content | {"tokenizer": {"tokens": said}}).checkpoint[EMBEDDING]
        assert torch.allclose(found[26], row(b, "<x>"), atol=1e-6) == bool(said)


@pytest.mark.parametrize("source", ["union", "base", "model"])
def test_a_token_that_is_new(tmp_path, models, source):
    """It is added to the vocabulary behind all others, a special token where no model knows it otherwise."""
    _, b, c = models
    said = {"<new>": of(b, "d"), "<none>": {"source": {"kind": "zero"}}}
    where = {"union": "union", "base": "base", "model": str(c)}[source]
    path = recipe(tmp_path / "r.yaml", "linear", models, base_model=str(c), tokenizer={"source": where, "tokens": said})
    run("merge", path, "--out", tmp_path / "out")
    out, tokenizer = tmp_path / "out", AutoTokenizer.from_pretrained(tmp_path / "out")
    first = 28 if source == "union" else 26
    assert tokenizer.convert_tokens_to_ids(["c", "<new>", "<none>"]) == [5, first, first + 1]
    assert tokenizer.tokenize("c <new> d") == ["c", "<new>", "d"]
    assert tokenizer.decode([5, first], skip_special_tokens=True) == "c"
    assert stock(out).config.vocab_size == first + 2
    assert torch.allclose(embedding(out, "<new>"), embedding(b, "d"))
    assert torch.equal(embedding(out, "<none>"), torch.zeros_like(embedding(b, "d")))


def test_a_token_of_another_model_is_added_as_it_is_there(tmp_path, models):
    _, b, c = models
    write_tokenizer(b, LETTERS)
    plain = AutoTokenizer.from_pretrained(b)
    plain.add_tokens(["<y>", "<x>"])  # no special tokens
    plain.save_pretrained(b)
    path = recipe(tmp_path / "r.yaml", "linear", [b, c], tokenizer={"source": str(c), "tokens": {"<x>": {}}})
    run("merge", path, "--out", tmp_path / "out")
    out, tokenizer = tmp_path / "out", AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.convert_tokens_to_ids(["<x>", "<y>"]) == [26, tokenizer.unk_token_id]
    assert not tokenizer.added_tokens_decoder[26].special
    assert torch.allclose(embedding(out, "<x>"), embedding(b, "<x>"))


def test_a_new_token_has_the_next_row_that_no_token_has(tmp_path):
    a, b = (folder(tmp_path / name, seed, LETTERS, rows=32) for seed, name in enumerate("ab"))
    said = {"<new>": of(b, "d")}
    path = recipe(tmp_path / "r.yaml", "linear", [a, b], tokenizer={"source": "union", "tokens": said})
    run("merge", path, "--out", tmp_path / "out")
    out, found = tmp_path / "out", tensors_of(tmp_path / "out")[EMBEDDING]
    assert AutoTokenizer.from_pretrained(out).convert_tokens_to_ids("<new>") == 26
    assert torch.equal(found[26], embedding(b, "d"))
    assert torch.allclose(found[27:], (tensors_of(a)[EMBEDDING][27:] + tensors_of(b)[EMBEDDING][27:]) / 2)
    assert len(found) == 32


def test_a_model_alone_may_name_a_row_that_no_token_has(tmp_path):
    a = folder(tmp_path / "a", 0, LETTERS, rows=32)
    said = {"<new>": {"source": {"kind": "model_token", "model": str(a), "token_id": 26}}}
    run("merge", recipe(tmp_path / "r.yaml", "passthrough", [a], tokenizer={"tokens": said}), "--out", tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").convert_tokens_to_ids(["w", "<new>"]) == [25, 26]
    assert torch.equal(tensors_of(tmp_path / "out")[EMBEDDING], tensors_of(a)[EMBEDDING])


def moved_copy(path, source, added):
    """The same function elsewhere in weights, with further tokens that have rows of their own."""
    near(stock(source), vocab_size=26 + len(added)).save_pretrained(path)
    edit_tensors(
        path,
        lambda tensors: tensors.update(
            {n: torch.cat([t, tensors[n][26:]]) if len(t) == 26 else t for n, t in tensors_of(source).items()}
        ),
    )
    write_tokenizer(path, LETTERS, added)
    larger = duplicate(path, f"{path.name}-as-it-was")
    moved = permuted(Typed.of(load(path)))
    edit_tensors(path, lambda tensors: tensors.update({name: moved.checkpoint[name] for name in tensors}))
    return larger


def test_a_row_moves_with_its_model(tmp_path):
    """A copy elsewhere in weights is brought back, and the row that it gives to the other with it."""
    a, b = folder(tmp_path / "a", 0, LETTERS), tmp_path / "b"
    larger = moved_copy(b, a, ("<x>", "<y>"))
    said = {"<z>": of(b, "<y>"), "e": of(b, "<x>") | {"force": True}}
    tokenizer = {"source": "union", "tokens": said}
    path = recipe(tmp_path / "r.yaml", "linear", [a, b], tokenizer=tokenizer, match={"anchor": str(a)})
    run("merge", path, "--out", tmp_path / "out")
    expected = {"<z>": "<y>", "e": "<x>", "<x>": "<x>", "c": "c"}
    for token, same in expected.items():
        assert torch.allclose(embedding(tmp_path / "out", token), embedding(larger, same), atol=1e-5), token
    assert not torch.allclose(embedding(tmp_path / "out", "e"), embedding(b, "<x>"), atol=1e-2)
    path = recipe(tmp_path / "r.yaml", "linear", [a, b], tokenizer=tokenizer)  # the control
    run("merge", path, "--out", tmp_path / "raw")
    assert torch.allclose(embedding(tmp_path / "raw", "e"), embedding(b, "<x>"), atol=1e-5)


@pytest.mark.usefixtures("few_rounds")
@pytest.mark.parametrize("match", ["none", "full"])
def test_rows_to_a_multiple(tmp_path, match):
    a, b = folder(tmp_path / "a", 0, LETTERS), folder(tmp_path / "b", 1, LETTERS, ("<x>",))
    for models, source in (([a, b], "union"), ([a, folder(tmp_path / "c", 2, LETTERS)], str(a))):
        tokenizer = {"source": source, "pad_to_multiple_of": 8}
        path = recipe(tmp_path / "r.yaml", "linear", models, tokenizer=tokenizer, match=match)
        report = run("merge", path, "--out", tmp_path / "out", "--overwrite", "--json").json
        found, tokens = tensors_of(tmp_path / "out"), 27 if source == "union" else 26
        assert stock(tmp_path / "out").config.vocab_size == len(found[EMBEDDING]) == len(found[HEAD]) == 32
        assert not found[EMBEDDING][tokens:].any()
        assert found[EMBEDDING][tokens - 1].any()
        assert len(AutoTokenizer.from_pretrained(tmp_path / "out")) == tokens
        lacking = [note[-20:] for note in report["notes"] if "vocabulary lacks" in note]
        assert lacking == ["lacks 1 of 32 tokens"] * (source == "union" and match == "none")


def test_what_is_refused(tmp_path, models):
    a, b, c = models

    def why(tokens, source="union", **keys):
        tokenizer = {"source": str(source), "tokens": tokens}
        path = recipe(tmp_path / "r.yaml", keys.pop("method", "linear"), models, tokenizer=tokenizer, **keys)
        return refused(tmp_path, "merge", path, "--out", tmp_path / "out")

    assert f"tokenizer.tokens.<y>.source: {a} has no row for '<y>'" in why({"<y>": {"source": str(a)}})
    assert f"tokenizer.tokens.<x>.source: {a} has no row for '<z>'" in why({"<x>": of(a, "<z>")})
    number = {"kind": "model_token", "model": str(a), "token_id": 27}
    assert f"{a} has 27 rows, and none for token_id 27" in why({"<x>": {"source": number}})
    assert "tokenizer.tokens.<z>: no model has a row for '<z>', so give its source" in why({"<z>": {}})
    line = why({"<x>": of(a, "c")})
    assert f"tokenizer.tokens.<x>: {a} has '<x>' itself, so the row of another" in line
    assert line.endswith("force: true; leave the token out, or take it from another model")
    line = why({"<x>": {"source": str(b)}}, match={"method": "learned"})
    assert "matching by learned would run models on tokens" in line
    assert "'./nowhere': expected" in why({"<x>": {"source": "./nowhere"}})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (c / name).unlink()
    assert f"tokenizer: {c} has no tokenizer that says which token a row" in why({"<x>": {"source": str(b)}})


def test_a_new_token_may_have_the_row_of_one_whose_number_matters(tmp_path):
    """Classifiers find the end of a text by the number of the padding token, which stays."""
    models = []
    for seed, name in enumerate("ab"):
        models.append(folder(tmp_path / name, seed, LETTERS))
        made = near(model("llama-gqa/LlamaForSequenceClassification", seed, torch.float32), vocab_size=len(LETTERS))
        made.config.pad_token_id = LETTERS.index("</s>")
        made.save_pretrained(tmp_path / name)
    tokens = {"<pad>": of(models[1], "</s>")}
    path = recipe(tmp_path / "r.yaml", "linear", models, tokenizer={"source": "union", "tokens": tokens})
    run("merge", path, "--out", tmp_path / "out")
    assert torch.equal(embedding(tmp_path / "out", "<pad>"), embedding(models[1], "</s>"))


def test_a_token_whose_number_is_also_that_of_another(tmp_path):
    a, b = folder(tmp_path / "a", 0, LETTERS), folder(tmp_path / "b", 1, LETTERS)
    content = json.loads((a / "tokenizer.json").read_text())
    content["model"]["vocab"]["ww"] = 25
    (a / "tokenizer.json").write_text(json.dumps(content))
    said = {token: {"source": {"kind": "zero"}} for token in ("w", "ww")}
    path = recipe(tmp_path / "r.yaml", "linear", [a, b], tokenizer={"source": str(a), "tokens": said})
    line = refused(tmp_path, "merge", path, "--out", tmp_path / "out")
    assert f"the tokenizer of {a} has another token with its number" in line


def test_models_of_one_vocabulary_are_not_run_on_rows_of_others(tmp_path):
    a, b = folder(tmp_path / "a", 0, LETTERS), folder(tmp_path / "b", 1, LETTERS)
    tokenizer = {"source": str(a), "tokens": {"c": {"source": str(b), "force": True}}}
    path = recipe(tmp_path / "r.yaml", "linear", [a, b], tokenizer=tokenizer, match={"method": "learned"})
    line = refused(tmp_path, "merge", path, "--out", tmp_path / "out")
    assert "it gives models further rows, or others, and matching by learned would run models" in line
