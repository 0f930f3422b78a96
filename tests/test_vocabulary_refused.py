"""Vocabularies that cannot be brought together, and what could be lost where they are."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from command_line import duplicate, edit_tensors, near, refused, run, stock
from tiny_models import model
from vocabularies import LETTERS, LLAMA, folder, write_tokenizer

UNION = "--tokenizer-source", "union", "--match", "none"


def test_no_token_in_common(tmp_path):
    a, b = folder(tmp_path / "a", 0, LETTERS), folder(tmp_path / "b", 1, LETTERS)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(26)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(b)
    assert f"the vocabularies of {a} and {b} have no token in common" in refused(tmp_path, "compare", a, b)


def test_a_model_without_a_vocabulary(tmp_path):
    a, b = folder(tmp_path / "a", 0, LETTERS), tmp_path / "b"
    model("vit/ViTForImageClassification", 0, torch.float32).save_pretrained(b)
    for pair in ((a, b), (b, a)):
        line = refused(tmp_path, "merge", *pair, *UNION, "--out", tmp_path / "out")
        assert f"{b}: a ViTForImageClassification has no vocabulary, as the other models have" in line


def test_a_tokenizer_without_its_vocabulary(tmp_path):
    """Transformers makes one up for families such as BERT; its few tokens are not the model's."""
    case, pair = "bert/BertForMaskedLM", (tmp_path / "a", tmp_path / "b")
    for seed, path in enumerate(pair):
        near(model(case, seed, torch.float32), vocab_size=26 + seed).save_pretrained(path)
        write_tokenizer(path, LETTERS, ("<x>",) * seed)
    (pair[0] / "tokenizer.json").unlink()
    (pair[0] / "tokenizer_config.json").write_text("{}")
    assert len(AutoTokenizer.from_pretrained(pair[0])) == 5
    for command in (("merge", *pair, *UNION, "--out", tmp_path / "out"), ("compare", *pair)):
        line = refused(tmp_path, *command)
        assert f"{pair[0]}: the tokenizer has no tokens but special ones; a file of its vocabulary is missing" in line


def test_a_number_without_a_token(tmp_path):
    """What is added behind it may get the number of another token."""
    a, b = tmp_path / "a", folder(tmp_path / "b", 1, LETTERS, tuple(f"<{i}>" for i in range(5)))
    near(model(LLAMA, 0, torch.float32), vocab_size=31).save_pretrained(a)
    words = Tokenizer(models.WordLevel({token: i for i, token in enumerate(LETTERS)} | {"w": 30}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(a)
    line = refused(tmp_path, "merge", a, b, *UNION, "--out", tmp_path / "out")
    assert f"{a}: its tokenizer has numbers without a token" in line
    assert run("merge", a, b, "--tokenizer-source", a, "--match", "none", "--out", tmp_path / "out").code == 0


@pytest.mark.usefixtures("few_rounds")
def test_an_element_of_fewer_tokens(tmp_path):
    base, new = folder(tmp_path / "base", 0, LETTERS), folder(tmp_path / "new", 1, LETTERS)
    tuned = folder(tmp_path / "tuned", 0, LETTERS, ("<x>",))
    run("match", base, new, "--symmetry", "ffn", "--out", tmp_path / "matched")
    given = "transport", base, tuned, new, "--element", tmp_path / "matched", "--out", tmp_path / "out"
    line = refused(tmp_path, *given)
    assert "are brought to one of 27 tokens, and the element is of models with 26; leave it out" in line
    duplicate(base, "same")
    assert run(*given[:2], tmp_path / "same", *given[3:]).code == 0


@pytest.mark.usefixtures("few_rounds")
@pytest.mark.parametrize("module", ["embed_tokens", "lm_head"])
def test_an_adapter_of_the_rows_of_tokens(tmp_path, module):
    """The order of its rows is that of its base, whatever their number."""
    base, new = folder(tmp_path / "base", 0, LETTERS), folder(tmp_path / "new", 1, LETTERS[::-1])
    settings = LoraConfig(r=2, init_lora_weights=False, target_modules=["q_proj", module])
    get_peft_model(stock(base), settings).save_pretrained(tmp_path / "lora", save_embedding_layers=False)
    line = refused(tmp_path, "transport", base, tmp_path / "lora", new, "--out", tmp_path / "out")
    assert f"{module}.lora_" in line
    assert "adds to rows of tokens, and the vocabularies of the bases differ; merge the adapter into its base" in line
    write_tokenizer(new, LETTERS)
    assert run("transport", base, tmp_path / "lora", new, "--out", tmp_path / "out").code == 0


def test_a_fine_tune_of_another_class_ends_with_the_token_of_the_new_base(tmp_path):
    def without_head(given):
        made = duplicate(given, f"bare-{given.name}", architectures=["LlamaModel"])
        edit_tensors(made, lambda tensors: tensors.pop("lm_head.weight"))
        edit_tensors(made, lambda tensors: [tensors.update({n[6:]: tensors.pop(n)}) for n in list(tensors)])
        return made

    base, new = folder(tmp_path / "base", 0, LETTERS), folder(tmp_path / "new", 1, [*LETTERS[3:], *LETTERS[:3]])
    tuned, out = folder(tmp_path / "tuned", 0, LETTERS, ("<x>",)), tmp_path / "out"
    run("transport", without_head(base), tuned, without_head(new), "--out", out)
    assert json.loads((tuned / "generation_config.json").read_text())["eos_token_id"] == 2
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == 25
    assert AutoTokenizer.from_pretrained(out).convert_tokens_to_ids("</s>") == 25
