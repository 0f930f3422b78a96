"""Fine-tunes and bases of different vocabularies: compared, and carried to each other."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoTokenizer

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.typed import Typed
from cobasin.comparing.compare import compare
from cobasin.errors import InputError
from command_line import edit_tensors, refused, run, stock, tensors_of
from permuted_copies import permuted
from vocabularies import LETTERS, embedding, folder, write_tokenizer


def test_a_fine_tune_with_further_tokens_comes_from_its_base(tmp_path):
    base, other = folder(tmp_path / "base", 0, LETTERS), folder(tmp_path / "other", 5, LETTERS, ("<x>",))
    tuned = folder(tmp_path / "tuned", 0, LETTERS, ("<x>",))
    found = compare(base, tuned)
    assert (found.verdict, found.verification) == ("share a base", None)
    note = f"the vocabularies differ: compared are the 26 common tokens, and not 0 of {base}, 1 of {tuned}"
    assert note in found.notes
    assert compare(base, other).verdict == "independent"
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tuned / file).unlink()
    with pytest.raises(InputError, match="vocab has size"):
        compare(base, tuned)


def test_the_same_but_for_tokens(tmp_path):
    a, b = folder(tmp_path / "a", 0, LETTERS, ("<x>",)), folder(tmp_path / "b", 0, LETTERS, ("<y>",))
    edit_tensors(b, lambda tensors: tensors.update(tensors_of(a)))
    found = compare(a, b)
    assert found.verdict == "same"
    assert found.reason == "the files hold the same numbers, up to their dtype, but for tokens that only one has"
    edit_tensors(b, lambda tensors: tensors["model.norm.weight"].add_(0.1))
    assert compare(a, b).verdict != "same"


def test_a_fine_tune_with_further_tokens_is_carried_to_a_base_that_has_others(tmp_path):
    """The new base has the function of the old one, so what arrives is the fine-tune, beside tokens of the new base."""
    base, tuned = folder(tmp_path / "base", 0, LETTERS), folder(tmp_path / "tuned", 0, LETTERS, ("<x>",))
    new = folder(tmp_path / "new", 1, LETTERS, ("<n>",))
    start, own = tensors_of(base), tensors_of(new)
    moved = permuted(Typed.of(load(base))).checkpoint
    rows = {name: torch.cat([moved[name], own[name][26:]]) for name in moved if len(moved[name]) == 26}
    edit_tensors(new, lambda tensors: tensors.update({name: rows.get(name, moved[name]) for name in tensors}))
    edit_tensors(
        tuned,
        lambda tensors: tensors.update(
            {name: start[name] + 0.01 * tensor if name not in rows else tensor for name, tensor in tensors.items()}
        ),
    )
    notes = run("transport", base, tuned, new, "--out", tmp_path / "out", "--json").json["notes"]
    assert [notes.count(f"{one}: its vocabulary lacks {some} of 28 tokens") for one, some in ((base, 2), (new, 1))] == [
        1,
        1,
    ]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.convert_tokens_to_ids(["c", "<n>", "<x>"]) == [5, 26, 27]
    assert stock(tmp_path / "out").config.vocab_size == 28
    assert torch.equal(embedding(tmp_path / "out", "<n>"), embedding(new, "<n>"))
    found = compare(tuned, tmp_path / "out")
    assert found.relative["after"] < 1e-6 < found.relative["files"]
    assert compare(base, tmp_path / "out").relative["after"] > 1e-3
    write_tokenizer(tuned, [*LETTERS, "zz"])
    line = refused(tmp_path, "transport", base, tuned, new, "--out", tmp_path / "other")
    assert f"{tuned} cuts texts into tokens that {new} lacks ('zz')" in line


@pytest.mark.parametrize("scale", [1, 0.5])
def test_the_row_of_a_token_that_is_not_in_all_bases(tmp_path, scale):
    """What the new base has stays where the other lacks it; what it lacks is the fine-tune's, not how this changed."""
    base, new = folder(tmp_path / "base", 0, LETTERS, ("<b>",)), folder(tmp_path / "new", 1, LETTERS, ("<n>",))
    tuned = folder(tmp_path / "tuned", 0, LETTERS, ("<b>", "<n>", "<x>"))
    edit_tensors(new, lambda tensors: tensors.update({n: t for n, t in tensors_of(base).items() if len(t) != 27}))
    edit_tensors(
        new, lambda tensors: [t[:26].copy_(tensors_of(base)[n][:26]) for n, t in tensors.items() if len(t) == 27]
    )
    run("transport", base, tuned, new, "--symmetry", "ffn", "--scale", scale, "--out", tmp_path / "out")
    for token, giver in (("<b>", tuned), ("<n>", new), ("<x>", tuned)):
        assert torch.allclose(embedding(tmp_path / "out", token), embedding(giver, token), atol=1e-6)
    found, start, learned = (embedding(path, "c") for path in (tmp_path / "out", base, tuned))
    assert torch.allclose(found, start + scale * (learned - start), atol=1e-6)


@pytest.mark.usefixtures("few_rounds")
def test_an_adapter_is_carried_to_a_base_that_has_further_tokens(tmp_path):
    base, new = folder(tmp_path / "base", 0, LETTERS), folder(tmp_path / "new", 1, LETTERS)
    larger = folder(tmp_path / "larger", 2, LETTERS, ("<n>",))
    own, rows = tensors_of(new), tensors_of(larger)
    extended = {name: torch.cat([own[name], rows[name][26:]]) for name in own if len(own[name]) == 26}
    edit_tensors(larger, lambda tensors: tensors.update({name: extended.get(name, own[name]) for name in tensors}))
    settings = LoraConfig(r=2, init_lora_weights=False, target_modules=["q_proj", "down_proj"])
    get_peft_model(stock(base), settings).save_pretrained(tmp_path / "lora")
    found = [load_file(tmp_path / "lora" / "adapter_model.safetensors")]
    for target in (new, larger):
        run("transport", base, tmp_path / "lora", target, "--out", tmp_path / f"to-{target.name}")
        found.append(load_file(tmp_path / f"to-{target.name}" / "adapter_model.safetensors"))
    given, one, other = found
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)
    assert any(not torch.allclose(one[name], given[name], atol=1e-2) for name in one)
