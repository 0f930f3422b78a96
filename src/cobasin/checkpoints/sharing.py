"""The unfinished folder that all parts of a run fill."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cobasin.checkpoints.output import FOUND, PARTS, RUN, SHARED, check_run, write_run
from cobasin.checkpoints.refusals import check_output, output_errors
from cobasin.errors import InputError
from cobasin.execution.parts import Part
from cobasin.paths import resolved
from cobasin.whole_files import write_first


@contextmanager
def sharing(
    out: Path, overwrite: bool, inputs: Iterable[Path | None], run: Mapping[str, Any], part: tuple[int, int]
) -> Iterator[tuple[Path, Part]]:
    """The folder that all parts of a run fill, for one of them; `working` with ``resume`` finishes it.

    Args:
        out, overwrite, inputs, run: as in `cobasin.checkpoints.output.working`.
        part: the number of this part, from 1, and how many there are.

    Raises InputError as `working` does; where the parts of another run are there; where this part is at work already.
    """
    out = resolved(out, "out")
    check_output(out, overwrite, inputs)
    folder, made = out.with_name(f".{out.name}.{SHARED}"), [path for path in out.parents if not path.exists()]
    run = {**run, PARTS: part[1]}
    with output_errors(out):
        (folder / FOUND).mkdir(parents=True, exist_ok=True)
        if not (folder / RUN).exists():  # of several parts that come here at once one notes it
            write_first(folder / RUN, lambda path: write_run(path, run))
    check_run(folder, run, f"remove {folder} to start anew")
    try:
        one = Part(*part, folder / FOUND)
        with one.at_work():
            yield folder, one
    except InputError:
        with suppress(OSError):  # it was removed meanwhile
            if {path.name for path in folder.iterdir()} == {RUN, FOUND} and not any((folder / FOUND).iterdir()):
                shutil.rmtree(folder)  # refused: nothing was found
                for path in made:
                    path.rmdir()
        raise
