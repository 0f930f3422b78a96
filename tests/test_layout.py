"""The packages of the library import one another in one direction."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import cobasin

ROOT = Path(cobasin.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "how-it-works.md"


def imported(module: ast.Module) -> set[str]:
    """What a module imports of the library when it is imported, by package; types alone do not count."""
    found = set()
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cobasin."):
            found.add(node.module.split(".")[1])
    return found


def graph() -> dict[str, set[str]]:
    """The packages, and the modules beside them, each with what it imports."""
    found = {}
    for path in ROOT.rglob("*.py"):
        package = path.relative_to(ROOT).parts[0].removesuffix(".py")
        found.setdefault(package, set()).update(imported(ast.parse(path.read_text())) - {package})
    return found


def test_packages_do_not_import_in_circles():
    packages = graph()
    assert {"checkpoints", "symmetry", "matching", "merging"} <= set(packages)
    order = list(TopologicalSorter(packages).static_order())
    assert order.index("symmetry") < order.index("matching") < order.index("merging")
    with pytest.raises(CycleError):
        TopologicalSorter(packages | {"symmetry": {"merging"}}).prepare()


def test_the_page_lists_the_packages_in_the_order_in_which_they_import_one_another():
    _, table = PAGE.read_text("utf-8").split("## Where the code is")
    order = [name for cell in re.findall(r"^\|(.*?)\|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)]
    packages = graph()
    assert sorted(order) == sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
    for place, name in enumerate(order):
        assert packages[name].isdisjoint(order[place:]), name
