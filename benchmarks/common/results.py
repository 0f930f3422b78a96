"""Results that are written as soon as they are there, and not measured again."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from cobasin import __version__
from cobasin.errors import InputError, one_line


class Results:
    """Rows of a JSON file, each under what it is of.

    Args:
        path: of the file. What is in there is reused; remove it to measure anew, as after a change of the library (of
            experiments the folder of matches, too).
    """

    def __init__(self, path: Path):
        self.path = path
        self._took: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """That it took to measure all rows that were asked for, whenever that was."""
        return sum(self._took.values())

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What was measured so far, also by another process.

        Raises:
            InputError: the file is none of results, or damaged.
        """
        if not self.path.exists():
            return []
        try:
            rows = json.loads(self.path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{self.path}: is damaged ({one_line(error)}); remove it to measure anew") from None
        if not isinstance(rows, list) or not all(isinstance(row, dict) and "of" in row for row in rows):
            raise InputError(f"{self.path}: is no list of results; remove it to measure anew")
        return rows

    def get(
        self, of: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]], said: str | None = None
    ) -> dict[str, Any]:
        """The row of these settings, which are shown as ``said`` or as they are: found, or measured and written."""
        wanted = json.loads(json.dumps(of))
        row = next((row for row in self.rows if row["of"] == wanted), None)
        if row is None:
            started = time.perf_counter()
            row = json.loads(json.dumps({"of": wanted, **measure(), **made()}))
            row["took"] = round(time.perf_counter() - started, 2)
            write(self.path, [*self.rows, row])
            print(f"{self.path.name}: {said or json.dumps(wanted)}", file=sys.stderr, flush=True)
        self._took[json.dumps(wanted)] = row.get("took", 0.0)
        return row


def made() -> dict[str, Any]:
    """By which versions something was made, and when."""
    import torch
    import transformers

    versions = {"cobasin": __version__, "python": platform.python_version()}
    versions |= {"torch": torch.__version__, "transformers": transformers.__version__}
    return {"versions": versions, "date": date.today().isoformat()}


def write(path: Path, content: Any) -> None:
    """Write JSON; the file is there whole, or as it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".partial-{os.getpid()}")
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.replace(path)
