"""The page on basins: its tables are those of what was measured."""

import re
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
page, pages = import_module("page"), import_module("common.pages")
PAGE = page.PAGE.read_text("utf-8")


def test_the_tables_are_what_was_measured():
    """If this fails: python benchmarks/page.py."""
    assert pages.filled(PAGE, page.make) == PAGE


def test_a_number_that_was_not_measured_is_seen():
    changed = PAGE.replace("0.031 ± 0.002", "0.030 ± 0.002", 1)
    assert changed != PAGE
    assert pages.filled(changed, page.make) == PAGE


def test_every_table_of_test_sets_is_a_block():
    """Up to the fine-tunes of one base, whose rows are others; what was tried is on development data."""
    found = {what.split()[0] for _, what, _, _ in pages.BLOCK.findall(PAGE)}
    assert found == set(page.TABLES)
    shown = PAGE.split("## On the test sets")[1].split("## No harm")[0]
    assert not re.findall(r"^\|", pages.BLOCK.sub("", shown), re.MULTILINE)
