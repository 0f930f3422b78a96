"""How a merged model's tokenizer writes a chat, where a recipe says it."""

import json

import pytest
from transformers import AutoTokenizer

from command_line import run
from merge_cases import recipe
from vocabularies import LETTERS, folder

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
