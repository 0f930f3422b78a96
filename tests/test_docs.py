"""The page on declarations says what is so: its worked example runs, its table is that of the code."""

import re
import runpy
import subprocess
from pathlib import Path

import pytest

from cobasin import architectures
from cobasin.architectures import registered
from command_line import run

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "architectures.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    monkeypatch.setattr(architectures, "_DECLARED", registered())


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
    assert codes == [0, 1, 0, 0, 0, 0]


def test_the_table_of_declarations():
    """If this fails: python docs/declarations.py."""
    script = runpy.run_path(str(DOCS / "declarations.py"))
    assert script["START"] + script["table"]() + script["END"] in PAGE


def test_links():
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (DOCS / target).exists(), target
    anchors = {
        re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in re.findall(r"^## (.*)$", PAGE, re.M)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) == anchors
