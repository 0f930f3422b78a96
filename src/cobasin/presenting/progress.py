"""Spinners and bars on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from cobasin.progress import Bytes
from cobasin.progress import Progress as Report

_errors = Console(stderr=True, markup=False, emoji=False)  # paths may hold what rich takes for markup or emoji


def _progress(*more: ProgressColumn) -> Progress:
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), *more
    return Progress(*columns, console=_errors, transient=True, disable=not _errors.is_terminal)


@contextmanager
def status(text: str) -> Iterator[None]:
    """A spinner while something runs."""
    with _errors.status(Text(text)):
        yield


@contextmanager
def steps(first: str = "") -> Iterator[Report]:
    """A bar over whatever is being done: its name (``first`` to begin with), how far it is, and its end where known."""
    with _progress(TimeElapsedColumn()) as progress:
        task = progress.add_task(first, total=None)
        yield lambda doing, done, total: progress.update(task, description=doing, completed=done, total=total)


@contextmanager
def bar(text: str, total: int) -> Iterator[Bytes]:
    """A bar over a number of bytes."""
    with _progress(DownloadColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task(text, total=total)
        yield lambda size: progress.advance(task, size)
