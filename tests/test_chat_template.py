"""How a merged model's tokenizer writes a chat, where a recipe says it."""

import json

import pytest
from jinja2 import TemplateError
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from cobasin.data.chat_templates import CHAT_TEMPLATES
from command_line import run
from merge_cases import recipe
from vocabularies import LETTERS, folder, write_tokenizer

CHAT = [
    {"role": "user", "content": "a b "},
    {"role": "assistant", "content": "c d"},
    {"role": "user", "content": "e"},
]
SYSTEM = [{"role": "system", "content": "s t"}]
BY_NAME = {
    "alpaca": (
        "### Instruction:\na b \n\n### Response:\nc d</s>\n\n### Instruction:\ne\n\n### Response:\n",
        "s t\n\n### Instruction:\na b \n\n### Response:\nc d</s>\n\n### Instruction:\ne\n\n",
    ),
    "chatml": (
        "<|im_start|>user\na b <|im_end|>\n<|im_start|>assistant\nc d<|im_end|>\n<|im_start|>user\ne<|im_end|>\n"
        "<|im_start|>assistant\n",
        "<|im_start|>system\ns t<|im_end|>\n<|im_start|>user\na b <|im_end|>\n<|im_start|>assistant\nc d<|im_end|>\n"
        "<|im_start|>user\ne<|im_end|>\n",
    ),
    "exaone": (
        "[|system|][|endofturn|]\n[|user|]a b \n[|assistant|]c d[|endofturn|]\n[|user|]e\n[|assistant|]",
        "[|system|]s t[|endofturn|]\n[|user|]a b \n[|assistant|]c d[|endofturn|]\n[|user|]e\n",
    ),
    "llama3": (
        "<s><|start_header_id|>user<|end_header_id|>\n\na b<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        "c d<|eot_id|><|start_header_id|>user<|end_header_id|>\n\ne<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<s><|start_header_id|>system<|end_header_id|>\n\ns t<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
        "a b<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nc d<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\ne<|eot_id|>",
    ),
    "mistral": (
        "<s>[INST] a b  [/INST] c d</s>[INST] e [/INST]",
        "<s>[INST] s t\n\na b  [/INST] c d</s>[INST] e [/INST]",
    ),
}
FIRST, OTHER = "{{ messages[0]['content'] }}", "{% for m in messages %}{{ m['content'] }}</s>{% endfor %}"


def told(path, template):
    """A tokenizer with a template where older versions of Transformers write it."""
    file = path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))


@pytest.fixture
def models(tmp_path):
    return [folder(tmp_path / str(seed), seed, LETTERS) for seed in range(3)]


def merged(tmp_path, models, template):
    path = recipe(tmp_path / "recipe.yaml", "linear", models, chat_template=template)
    return run("merge", path, "--out", tmp_path / "out", "--overwrite", "--json").json["notes"]


def test_the_template_that_most_models_have(tmp_path, models):
    told(models[0], FIRST)
    for model in models[1:]:
        (model / "chat_template.jinja").write_text(OTHER)
    merged(tmp_path, models, "auto")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template == OTHER
    merged(tmp_path, models[:2], "auto")  # as many: the first one's
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template == FIRST


def test_a_template_that_is_given(tmp_path, models):
    told(models[0], FIRST)
    notes = merged(tmp_path, models[:2], OTHER)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template == OTHER
    assert not any("chat_template" in note for note in notes)


def test_no_model_has_a_template(tmp_path, models):
    notes = merged(tmp_path, models[:2], "auto")
    note = "chat_template: auto: no model has a template, so the result has none"
    assert note in notes
    assert (
        note in run("merge", tmp_path / "recipe.yaml", "--out", tmp_path / "plan", "--dry-run", "--json").json["notes"]
    )
    assert not (tmp_path / "out" / "chat_template.jinja").exists()


@pytest.mark.parametrize("name", BY_NAME)
def test_a_template_by_its_name(tmp_path, models, name):
    """What it makes of two turns with the start of an answer; of a system's words before them without one."""
    merged(tmp_path, models[:2], name)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    answering, told_before = BY_NAME[name]
    assert tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True) == answering
    assert tokenizer.apply_chat_template(SYSTEM + CHAT, tokenize=False) == told_before


@pytest.mark.parametrize("name", ["alpaca", "mistral"])
def test_a_role_that_a_format_does_not_have(name):
    tool = [{"role": "tool", "content": "4"}]
    with pytest.raises(TemplateError, match="expected the roles system, user and assistant"):
        render_jinja_template([tool], chat_template=CHAT_TEMPLATES[name])


@pytest.fixture
def noted(tmp_path, models):
    """What a plan to merge the first two models says of the template."""

    def plan(**keys):
        path = recipe(tmp_path / "recipe.yaml", "linear", models[:2], **keys)
        notes = run("merge", path, "--out", tmp_path / "plan", "--dry-run", "--json").json["notes"]
        return [note for note in notes if "chat_template" in note]

    return plan


def test_tokens_of_a_template_that_the_tokenizer_lacks(models, noted):
    (note,) = noted(chat_template="chatml")
    assert note.startswith("chat_template: chatml writes <|im_start|>, <|im_end|>, which the result's tokenizer does")
    write_tokenizer(models[1], LETTERS[:-1], ("<|im_start|>",))
    (note,) = noted(chat_template="chatml", tokenizer_source=str(models[1]))
    assert note.startswith("chat_template: chatml writes <|im_end|>, which")
    said = {"<|im_end|>": {"source": {"kind": "zero"}}}
    assert noted(chat_template="chatml", tokenizer={"source": str(models[1]), "tokens": said}) == []
    assert noted(chat_template="mistral", tokenizer_source=str(models[1])) == []


@pytest.mark.parametrize("name", ["auto", "the template"])
def test_tokens_that_only_the_model_with_the_template_has_added(models, noted, name):
    write_tokenizer(models[1], LETTERS[:-2], ("<turn>", "<tool>"))
    text = "<turn>" + FIRST
    told(models[1], text)
    template = name if name == "auto" else text
    (note,) = noted(chat_template=template, tokenizer_source=str(models[0]))
    assert note.startswith(f"chat_template: {name} writes <turn>, which the result's tokenizer does not have")
    said = {"<turn>": {"source": str(models[1]), "force": True}}
    for tokens in ({"source": "union"}, {"source": str(models[1])}, {"source": str(models[0]), "tokens": said}):
        assert noted(chat_template=template, tokenizer=tokens) == [], tokens


def test_a_template_without_a_tokenizer(tmp_path, models):
    for model in models[:2]:
        (model / "tokenizer.json").unlink()
        (model / "tokenizer_config.json").unlink()
    note = "chat_template: llama3: the result has no tokenizer that could read it"
    assert note in merged(tmp_path, models[:2], "llama3")


def test_a_model_without_a_tokenizer_beside_one_that_has_it(tmp_path, models):
    """Nothing is brought together, so the union is the tokenizer that is there, with a name as with a text."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (models[1] / name).unlink()
    for template in ("chatml", OTHER):
        path = recipe(tmp_path / "r.yaml", "linear", models[:2], tokenizer_source="union", chat_template=template)
        notes = run("merge", path, "--out", tmp_path / "out", "--overwrite", "--json").json["notes"]
        assert any("chat_template: chatml writes" in note for note in notes) == (template == "chatml")
