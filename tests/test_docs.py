"""The pages say what is so: the worked example runs, the tables of declarations and recipes are those of the code."""

import re
import runpy
import subprocess
from pathlib import Path

import pytest
import torch

import cobasin
from cobasin.data import DataConfig
from cobasin.recipe import Recipe
from cobasin.recipe.after import Heal
from cobasin.recipe.blocks import Matching, Statistics
from cobasin.recipe.tokenizer import Tokenizer
from command_line import COMMAND, near, run
from tiny_models import model

pytestmark = pytest.mark.usefixtures("registry")

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]
PAGE = (DOCS / "architectures.md").read_text(encoding="utf-8")


def test_the_worked_example(tmp_path, monkeypatch):
    """Every block in turn: Python and commands are run, what is shown must have been printed."""
    monkeypatch.chdir(tmp_path)
    example = PAGE.partition("## A worked example")[2].partition("\n## ")[0]
    printed, codes = "", []
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", example, re.DOTALL | re.MULTILINE):
        if kind == "python":
            exec(block, {})
        elif kind == "text":
            found = [line for line in block.splitlines() if line not in printed]
            assert not found, printed
        else:
            printed = ""
            for line in block.splitlines():
                command, _, file = line.partition(" > ")
                if command.startswith("cobasin "):
                    finished = run(*command.split()[1:])
                    codes.append(finished.code)
                    printed += finished.out
                    if file:
                        Path(file).write_text(finished.out)
                else:
                    subprocess.run(command, shell=True, check=True)
    assert codes == [0, 0, 1, 0, 0, 0, 0]


@pytest.mark.usefixtures("few_rounds")
def test_the_page_on_python(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("model-a", 0), ("model-b", 1), ("model-c", 2)):
        model("llama-gqa/LlamaForCausalLM", seed, torch.float32).save_pretrained(name)
    near(model("llama-gqa/LlamaForCausalLM", 0, torch.float32)).save_pretrained("tuned-a")
    Path("test.jsonl").write_text('{"input_ids": [1, 2, 3, 4]}\n' * 8)
    page, names = (DOCS / "python.md").read_text(encoding="utf-8"), {}
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        exec(block, names)
    assert capsys.readouterr().out.startswith("True ")
    assert len(names["elements"]) == 3
    assert cobasin.verify("model-b", "b-matched").same
    left, moved = (cobasin.distance(names[one], "model-b").files for one in ("back", "moved"))
    assert left < 1e-4 * moved
    assert not cobasin.verify("model-b", "carried").same


def test_the_table_of_declarations():
    """If this fails: python docs/declarations.py."""
    script = runpy.run_path(str(DOCS / "declarations.py"))
    assert script["START"] + script["table"]() + script["END"] in PAGE


def test_the_keys_of_recipes():
    """Every key of every block has a row in its section, and no other key has."""
    sections = re.split(r"^## ", (DOCS / "recipes.md").read_text("utf-8"), flags=re.M)
    found = [set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]*)\|", one, re.M)))) for one in sections[1:]]
    blocks = [Recipe, Tokenizer, Matching, Statistics, DataConfig, Heal]
    assert found == [set(block.model_fields) for block in blocks]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_have_the_options_that_a_page_gives_them(path):
    for name, rest in re.findall(r"\bcobasin (\w+)([^`\n]*)", path.read_text("utf-8")):
        if command := COMMAND.commands.get(name):
            known = {option for parameter in command.params for option in parameter.opts}
            assert set(re.findall(r"--[a-z][\w-]*", rest)) - {"--help"} <= known, name + rest


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links(path):
    for file, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", path.read_text("utf-8")):
        target = path.parent / file if file else path
        assert target.exists(), file
        assert not anchor or anchor in anchors(target), anchor


def test_the_contents_of_the_page_on_declarations():
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) == anchors(DOCS / "architectures.md", "##")


def anchors(path, level="#+"):
    titles = re.findall(rf"^{level} (.*)$", path.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
