"""Options, expected times and tables of the benchmarks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import rich.table
from rich.console import Console

from common import pages


def parser(doc: str | None, seeds: bool = True, families: bool = True, pairs: bool = True) -> argparse.ArgumentParser:
    """The options that all have, those of random things, of families that learn from their data, of pairs of them."""
    found = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if seeds:
        found.add_argument("--seeds", type=int, default=3, help="how many, of whatever is random")
    found.add_argument("--dev", action="store_true", help="measure on dev data; the test sets are not read")
    found.add_argument("--shared", type=Path, default=Path("../shared"), help="folder with data/ and models/")
    found.add_argument("--out", type=Path, default=Path("benchmarks/out"), help="folder of results, and of models/")
    if families:
        found.add_argument("--family", action="append", help="only this one, or a YAML file (again for more)")
        found.add_argument("--steps", type=int, help="of learning; by default what docs/one-basin.md has")
        found.add_argument("--train", type=int, default=45000, help="rows of training data, at most")
    if families and pairs:
        found.add_argument(
            "--pair", action="append", type=pair_of, help="seeds of anchor and source, like 0,1 (or more)"
        )
    return found


def pair_of(text: str) -> tuple[int, int]:
    """Two seeds, as the command line has them."""
    anchor, source = map(int, text.split(","))
    return anchor, source


def announce(minutes: float, what: str) -> None:
    """Say, first of all, what a run will take."""
    Console(stderr=True).print(f"expected: about {minutes:.0f} CPU minutes on one core of 2024 ({what})")


def spread(values: Sequence[float], form: str = "{:.3f}") -> str:
    """Mean and standard deviation; of one value, the value."""
    if not values:
        return ""
    centre = form.format(mean(values))
    return centre if len(values) == 1 else f"{centre} ± {form.format(stdev(values))}"


@dataclass(frozen=True)
class Table:
    """What was measured, for a terminal and for a page.

    Attributes:
        title: of what it is.
        columns: of all but the first, which names the lines.
        body: the lines.
        caption: what the figures are; a page says that in its text.
    """

    title: str
    columns: Sequence[str]
    body: Sequence[Sequence[str]]
    caption: str | None = None

    def show(self) -> None:
        """Print it."""
        table = rich.table.Table("", *self.columns, title=self.title, caption=self.caption)
        table.columns[0].no_wrap = True
        for row in self.body:
            table.add_row(*row)
        Console(width=180).print(table)

    def markdown(self) -> list[str]:
        """Its lines on a page, the title in the first corner; an empty one behind them."""
        return pages.table([self.title, *self.columns], self.body)
