"""Options, expected times and tables of the benchmarks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from rich.console import Console
from rich.table import Table


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


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str | None = None) -> None:
    """Print a table."""
    table = Table(*columns, title=title, caption=caption)
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(*row)
    Console(width=180).print(table)
