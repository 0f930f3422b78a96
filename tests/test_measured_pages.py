"""The pages of the docs: their tables are those of what was measured."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
page, pages = import_module("page"), import_module("common.pages")


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


def test_every_table_of_test_sets_is_a_block():
    """What was tried is on development data."""
    contents = [path.read_text("utf-8") for path in page.PAGES]
    assert {what.split()[0] for one in contents for _, what, _, _ in pages.BLOCK.findall(one)} == set(page.TABLES)
    shown = contents[0].split("## On the test sets")[1].split("## What was tried")[0]
    assert not re.findall(r"^\|", pages.BLOCK.sub("", shown), re.MULTILINE)
