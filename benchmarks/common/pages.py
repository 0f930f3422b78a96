"""Measured results as Markdown, in blocks of a page: between ``<!-- measured: WHAT -->`` and ``<!-- end -->``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

BLOCK = re.compile(r"(<!-- measured: ([\w., -]+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def table(columns: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, and an empty one."""
    rows = [list(columns), ["---"] * len(columns), *map(list, body)]
    return [*(f"| {' | '.join(row)} |" for row in rows), ""]


def filled(page: str, make: Callable[[str], str]) -> str:
    """A page with every block made anew from what it is of."""

    def block(found: re.Match[str]) -> str:
        start, what, _, end = found.groups()
        return start + make(what) + end

    return BLOCK.sub(block, page)
