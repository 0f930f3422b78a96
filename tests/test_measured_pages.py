"""The pages of the docs: their tables are those of what was measured."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
page, pages = import_module("page"), import_module("common.pages")
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", page.PAGES, ids=lambda path: path.name)
def test_the_tables_are_what_was_measured(path):
    """If this fails: python benchmarks/page.py."""
    content = path.read_text("utf-8")
    assert pages.filled(content, page.make) == content
    first, last = pages.BLOCK.search(content).span(3)
    other = re.sub(r"(\d\.\d*)\d", r"\g<1>x", content[first:last], count=1)  # a number that was not measured
    changed = content[:first] + other + content[last:]
    assert changed != content
    assert pages.filled(changed, page.make) == content


@pytest.mark.parametrize("path", page.PICTURES, ids=lambda path: path.name)
def test_the_pictures_show_what_was_measured(path):
    """If this fails: python benchmarks/page.py."""
    with Image.open(path) as picture:
        assert picture.text[page.DIGEST] == page.digest(page.PICTURES[path])


def test_every_table_has_its_block():
    contents = [path.read_text("utf-8") for path in page.PAGES]
    assert {what.split()[0] for one in contents for _, what, _, _ in pages.BLOCK.findall(one)} == set(page.TABLES)


NAMES = r"ERNIE 4\.5|wav2vec 2\.0|Qwen[23]\.5|Mistral Small 3\.1|Llama 3\.2|Phi-3\.5|LLaVA 1\.5|Kimi K2\.5|Granite 4\.0"
NAMES += r"|GLM-4\.[157]V?(, 4\.5V)?( and 4\.6V?)?|DeepSeek-V3\.2|InternVL 2\.5 to 3\.5"


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_no_table_of_figures_was_written_by_hand(path):
    """But for those of what was tried, which that page says."""
    content = re.sub(NAMES, "", pages.BLOCK.sub("", path.read_text("utf-8")))
    by_hand = re.findall(r"^\|.*\d(?:\.\d|e-\d\d).*$", content, re.MULTILINE)
    assert bool(by_hand) == (path.name == "trials.md")
