"""Models with another vocabulary than the others: brought to one by the tokens of their rows."""

import json

import pytest
import torch
from transformers import AutoTokenizer

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import cast_floats, instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.data.vocabulary import brought_to
from cobasin.errors import InputError
from cobasin.merging.merge import merge
from cobasin.verification import verify
from command_line import duplicate, edit_json, edit_tensors, near, refused, run, stock, tensors_of
from merge_cases import recipe
from permuted_copies import permuted
from tiny_models import ONE_A_DECLARATION, checkpoint, model, tolerance
from vocabularies import LETTERS, embedding, folder, write_tokenizer

OTHER_ROWS = "mllama", "m2m100-untied", "t5gemma/", "gemma4-text/", "gemma4-pictures"
WRITING = "ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "ForPreTraining"
WITHOUT = "vit-mae", "videomae", "wav2vec2"  # trained on pictures, clips and sounds alone
READING = [case for case in ONE_A_DECLARATION if case.endswith(WRITING) and not case.startswith(OTHER_ROWS + WITHOUT)][
    ::5
]


def special(config) -> set[int]:
    """The ids that a config names, wherever it does."""
    found = set()
    for key, value in config.to_dict().items():
        if key.endswith(("_token_id", "_token_index")):
            found |= {value} if isinstance(value, int) else {*(value or ())}
    parts = (getattr(config, name, None) for name in config.sub_configs)
    return found.union(*(special(part) for part in parts if part is not None))


@torch.no_grad()
def answers(model: Typed, inputs: dict) -> torch.Tensor:
    """What a model says of its tokens, or its states."""
    inputs = {name: cast_floats(value, torch.float64) for name, value in inputs.items()}
    found = instantiate(model.checkpoint, torch.float64)(**inputs)
    name = next(name for name in ("logits", "prediction_logits", "last_hidden_state") if name in found)
    return found[name].nan_to_num()  # behind the end of a row there may be anything


@pytest.mark.parametrize("case", READING)
def test_a_model_with_its_tokens_at_other_places_computes_the_same(case):
    model = Typed.of(checkpoint(case))
    size, generator = model.spec.sizes["vocab"], torch.Generator().manual_seed(0)
    free = torch.tensor([row for row in range(size) if row not in special(model.checkpoint.config)])
    rows = torch.arange(size)
    rows[free] = free[torch.randperm(len(free), generator=generator)]
    other = brought_to(model, rows, model)
    inputs, place = probe(model.checkpoint.config, model.checkpoint.architecture), torch.argsort(rows)
    expected = answers(model, inputs)
    moved = {name: place[value] if name.endswith("input_ids") else value for name, value in inputs.items()}
    found, same = (answers(other, given) for given in (moved, inputs))
    if expected.shape[-1] == size:
        found, same = found[..., place], same[..., place]
    assert (found - expected).norm() <= tolerance(case) * expected.norm()
    assert (same - expected).norm() > 1e-3 * expected.norm()


@pytest.mark.parametrize(
    "case", ["mllama/MllamaForConditionalGeneration", "m2m100-untied/M2M100ForConditionalGeneration"]
)
def test_other_rows_than_a_tokenizer_tells_of(case):
    typed = Typed.of(checkpoint(case))
    with pytest.raises(InputError, match="has rows for tokens that its tokenizer tells nothing of"):
        brought_to(typed, torch.arange(typed.spec.sizes["vocab"] - 1), typed)


def test_a_copy_with_its_tokens_at_other_places_is_found(tmp_path):
    a = folder(tmp_path / "a", 0, LETTERS)
    other, order = permuted(Typed.of(load(a))), [*range(3), *range(12, 26), *range(3, 12)]
    b = tmp_path / "b"
    near(stock(a)).save_pretrained(b)
    edit_tensors(b, lambda tensors: tensors.update({name: other.checkpoint[name] for name in tensors}))
    edit_tensors(b, lambda tensors: tensors.update({n: tensors[n][order] for n in tensors if len(tensors[n]) == 26}))
    write_tokenizer(b, [LETTERS[i] for i in order])
    assert "the vocabularies differ" in refused(tmp_path, "merge", a, b, "--out", tmp_path / "out")
    run("merge", a, b, "--tokenizer-source", a, "--out", tmp_path / "out")
    assert verify(a, tmp_path / "out").same
    write_tokenizer(b, LETTERS)  # the control: rows of other tokens are averaged
    run("merge", a, b, "--out", tmp_path / "wrong")
    assert not verify(a, tmp_path / "wrong").same


@pytest.mark.parametrize("match", ["none", "full"])
def test_the_union_of_what_models_have_added(tmp_path, match):
    a, b = folder(tmp_path / "a", 0, LETTERS, ("<x>",)), folder(tmp_path / "b", 1, LETTERS, ("<y>", "<x>", "<z>"), 32)
    how = "--tokenizer-source", "union", "--match", match, "--out", tmp_path / "out"
    report = run("merge", a, b, *how, "--json").json
    out, tokenizer = tmp_path / "out", AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.convert_tokens_to_ids(["c", "<x>", "<y>", "<z>"]) == [5, 26, 27, 28]
    assert tokenizer.added_tokens_decoder[28].special
    assert stock(out).config.vocab_size == 29
    if match == "full":
        return
    notes = [note for note in report["notes"] if "its vocabulary lacks" in note]
    assert len(notes) == 1
    assert f"{a}: its vocabulary lacks 2 of 29 tokens" in notes[0]
    for token in ("c", "<x>"):
        assert torch.allclose(embedding(out, token), (embedding(a, token) + embedding(b, token)) / 2)
    for token in ("<y>", "<z>"):
        assert torch.equal(embedding(out, token), embedding(b, token))


def test_a_matched_union_keeps_what_both_know_of_one_model(tmp_path):
    """A copy with further tokens, elsewhere in weights, is brought back; the rows of the further tokens with it."""
    a = folder(tmp_path / "a", 0, LETTERS)
    larger = folder(tmp_path / "larger", 0, LETTERS, ("<x>",))
    names = [name for name, tensor in tensors_of(a).items() if len(tensor) == 26]
    edit_tensors(
        larger,
        lambda tensors: tensors.update(
            {n: torch.cat([t, tensors[n][26:]]) if n in names else t for n, t in tensors_of(a).items()}
        ),
    )
    moved = permuted(Typed.of(load(larger)))
    b = duplicate(larger, "b")
    edit_tensors(b, lambda tensors: tensors.update({name: moved.checkpoint[name] for name in tensors}))
    run("merge", a, b, "--tokenizer-source", "union", "--out", tmp_path / "out")
    assert verify(larger, tmp_path / "out").same
    run("merge", a, b, "--tokenizer-source", "union", "--match", "none", "--out", tmp_path / "raw")
    assert not verify(larger, tmp_path / "raw").same


def test_rows_without_tokens(tmp_path):
    a, b = folder(tmp_path / "a", 0, LETTERS), folder(tmp_path / "b", 1, LETTERS, rows=32)
    for source, rows in ((a, 26), (b, 32)):
        run("merge", a, b, "--tokenizer-source", source, "--match", "none", "--out", tmp_path / "out", "--overwrite")
        found, (one, other) = tensors_of(tmp_path / "out"), map(tensors_of, (a, b))
        key = "model.embed_tokens.weight"
        assert torch.allclose(found[key][:26], (one[key] + other[key][:26]) / 2)
        assert torch.equal(found[key][26:], other[key][26:rows])


def test_task_vectors_add_nothing_for_a_token_that_one_side_lacks(tmp_path):
    base = folder(tmp_path / "base", 0, LETTERS)
    a, b = folder(tmp_path / "a", 1, LETTERS, ("<x>",)), folder(tmp_path / "b", 2, LETTERS[:-1])
    how = "--method", "task_arithmetic", "--base", base, "--match", "none", "--set", "weight=0.5"
    run("merge", a, b, *how, "--tokenizer-source", "union", "--out", tmp_path / "out")
    last, x = LETTERS[-1], embedding(base, LETTERS[-1])
    assert torch.equal(embedding(tmp_path / "out", "<x>"), embedding(a, "<x>"))
    assert torch.allclose(embedding(tmp_path / "out", last), x + 0.5 * (embedding(a, last) - x))
    c, x = (embedding(base, "c"), None)
    expected = c + 0.5 * (embedding(a, "c") - c) + 0.5 * (embedding(b, "c") - c)
    assert torch.allclose(embedding(tmp_path / "out", "c"), expected)


def test_special_tokens_are_those_of_the_vocabulary(tmp_path):
    a, b = folder(tmp_path / "a", 0, LETTERS), folder(tmp_path / "b", 1, [*LETTERS[3:], *LETTERS[:3]])
    for source, end in ((a, 2), (b, 25)):
        merged = merge([a, b], tokenizer_source=[a, b].index(source), symmetry="none")
        run("merge", a, b, "--tokenizer-source", source, "--match", "none", "--out", tmp_path / "out", "--overwrite")
        found = stock(tmp_path / "out")
        assert (merged.checkpoint.config.eos_token_id, found.config.eos_token_id) == (end, end)
        assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == end
        assert AutoTokenizer.from_pretrained(tmp_path / "out").eos_token_id == end
    (b / "generation_config.json").unlink()
    run("merge", a, b, "--tokenizer-source", b, "--match", "none", "--out", tmp_path / "out", "--overwrite")
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == {}


def test_a_classifier_and_its_base_with_fewer_tokens(tmp_path):
    """A base of another class, whose vocabulary a fine-tune has extended."""
    base, a = folder(tmp_path / "base", 0, LETTERS), folder(tmp_path / "a", 1, LETTERS, ("<x>",))
    edit_json(a / "config.json", lambda config: config.update(architectures=["LlamaForSequenceClassification"]))
    head = torch.ones(2, stock(base).config.hidden_size)
    edit_tensors(a, lambda tensors: (tensors.pop("lm_head.weight", None), tensors.update({"score.weight": head})))
    how = "--method", "task_arithmetic", "--base", base, "--match", "none", "--set", "weight=1"
    run("merge", a, *how, "--tokenizer-source", "union", "--out", tmp_path / "out")
    found, expected = tensors_of(tmp_path / "out"), tensors_of(a)
    assert all(torch.allclose(found[name], tensor, atol=1e-6) for name, tensor in expected.items())


@pytest.mark.usefixtures("few_rounds")
def test_the_plan(tmp_path):
    a, b = folder(tmp_path / "a", 0, LETTERS, ("<x>",)), folder(tmp_path / "b", 1, LETTERS, ("<y>", "<z>"))
    plan = run("merge", a, b, "--tokenizer-source", "union", "--dry-run", "--json").json
    whole = run("merge", a, b, "--tokenizer-source", "union", "--out", tmp_path / "out", "--json")
    assert plan["parameters"] == load(tmp_path / "out").parameters
    assert whole.code == 0


def test_what_is_refused(tmp_path):
    a, b = folder(tmp_path / "a", 0, LETTERS), folder(tmp_path / "b", 1, [*LETTERS, "zz", "yy"])

    def why(*arguments, models=(a, b)):
        return refused(tmp_path, "merge", *models, *arguments, "--out", tmp_path / "out")

    union = "--tokenizer-source", "union"
    assert f"{b} cuts texts into tokens that {a} lacks ('yy'; 'zz'), so no tokenizer is that of both" in why(*union)
    assert why("--tokenizer-source", "c").startswith("error: merge: tokenizer_source 'c': expected base, union, ")
    assert "what follows the merge would run models" in why("--tokenizer-source", a, "--heal", "5")
    path = recipe(tmp_path / "r.yaml", "linear", [a, b], tokenizer_source=str(a), match={"method": "learned"})
    assert "matching by learned would run models on tokens" in why(models=[path])
    rows = tmp_path / "rows.txt"
    rows.write_text("a b c")
    path = recipe(tmp_path / "f.yaml", "fisher", [a, b], tokenizer_source=str(a), statistics={"data": str(rows)})
    assert "fisher would run models on tokens" in why(models=[path])
    line = refused(tmp_path, "merge", path, "--tokenizer-source", a, "--out", tmp_path / "out")
    assert "--tokenizer-source goes with models; in" in line
    bare = duplicate(b, "bare")
    (bare / "tokenizer.json").unlink()
    (bare / "tokenizer_config.json").unlink()
    (bare / "special_tokens_map.json").unlink(missing_ok=True)
    assert f"{bare}: has another vocabulary than the other models, and no tokenizer" in why(*union, models=(a, bare))
    write_tokenizer(bare, LETTERS, ("<x>", "<y>", "<z>"))
    assert "no model has a row for '<z>', which the tokenizer of" in why(*union, models=(a, bare))


def test_a_number_that_a_function_depends_on(tmp_path):
    """RoBERTa counts positions from its padding token's id."""
    case, out = "roberta/RobertaForMaskedLM", ("--out", tmp_path / "out")
    original = model(case, 0, torch.float32)
    rows, pad = original.config.vocab_size, original.config.pad_token_id
    tokens = ["<unk>", "<s>", "</s>", *(f"t{i}" for i in range(rows - 3))]
    for name, order in (("a", tokens), ("b", tokens[::-1])):
        original.save_pretrained(tmp_path / name)
        write_tokenizer(tmp_path / name, order)
    pair = tmp_path / "a", tmp_path / "b"
    for source in ("base", tmp_path / "a"):
        line = refused(tmp_path, "merge", *pair, "--tokenizer-source", source, *out)
        assert f"{tmp_path / 'b'}: pad_token_id is {pad}, and what the model computes depends on it" in line


def test_the_mean_of_rows_in_float64(tmp_path):
    paths = [folder(tmp_path / f"{i}", i, LETTERS, ("<x>",) if i else ()) for i in range(4)]
    for path in paths:
        edit_tensors(path, lambda tensors: tensors.update({name: t.double() for name, t in tensors.items()}))
    found = merge(paths, tokenizer_source=1, symmetry="none").checkpoint
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        mean = sum(tensors_of(path)[name][26] for path in paths[1:]) / 3
        assert torch.allclose(found[name][26], mean, rtol=1e-12, atol=1e-14)


def test_what_whisper_does_not_say_is_that_of_the_vocabulary(tmp_path):
    paths = tmp_path / "a", tmp_path / "b"
    for seed, path in enumerate(paths):
        made = near(model("whisper/WhisperForConditionalGeneration", seed, torch.float32), vocab_size=26)
        made.config.begin_suppress_tokens = [5 + seed]
        made.save_pretrained(path)
        write_tokenizer(path, [*LETTERS[seed:], *LETTERS[:seed]])
    found = [merge(paths, tokenizer_source=i, symmetry="none").checkpoint.config for i in range(2)]
    assert [config.begin_suppress_tokens for config in found] == [[5], [6]]
