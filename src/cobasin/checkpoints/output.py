"""The folder that a command writes: there when it is complete, and not before.

What is not complete is in a hidden sibling, which a killed run leaves behind. It says what run it is of (`RUN`), and
the same run may go on from what is finished there; any other starts anew.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cobasin.checkpoints.json_files import json_in
from cobasin.checkpoints.refusals import check_output, output_errors
from cobasin.errors import InputError
from cobasin.execution.parts import living
from cobasin.paths import resolved
from cobasin.whole_files import UNFINISHED, write_text

RUN = ".run.json"
"""In an unfinished folder: what the run is of, as JSON."""
FOUND = ".found"
"""In an unfinished folder: a folder for what is found on the way, which the finished one does not have."""
SHARED = "parts"
"""The end of the name of an unfinished folder that several parts of a run fill, see `cobasin.checkpoints.sharing`."""

PARTS = "number of parts"
"""In `RUN` of a folder that parts fill: how many they are."""


@contextmanager
def publishing(out: str | Path, overwrite: bool, source: Path | None) -> Iterator[Path]:
    """A folder to fill, which becomes ``out`` at the end of the block; nothing is left of it if that fails.

    Raises InputError where `out` is refused (see `check_output`) or cannot be written.
    """
    with working(out, overwrite, [source]) as partial, output_errors(resolved(out, "out")):
        yield partial


@contextmanager
def working(
    out: str | Path,
    overwrite: bool,
    inputs: Iterable[Path | None] = (),
    run: Mapping[str, Any] | None = None,
    resume: bool = False,
) -> Iterator[Path]:
    """`publishing` for a long run: a block that computes, too, so that not all its errors are about ``out``.

    Args:
        out, overwrite, inputs: see `check_output`.
        run: what decides the result, as JSON: a killed run leaves the folder with this in it. None: it does not.
        resume: go on with the folder that a killed run has left, if there is one, and leave it if this one fails, too.

    Raises InputError as `publishing` does; where ``resume`` finds what another run has left.
    """
    out = resolved(out, "out")
    with output_errors(out):
        left = _left(out, resume)
        # without RUN it was killed before there was anything to keep, or while it was published
        kept = left.pop() if resume and left and (left[-1] / RUN).exists() else None
        check_output(out, overwrite, inputs)
        if kept is not None:
            check_run(kept, run, "leave --resume out to start anew")
        for path in left:
            shutil.rmtree(path)
        made = [path for path in out.parents if not path.exists()]
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
    try:
        with output_errors(out):
            if kept is not None:
                kept.rename(partial)
                _clear(partial)
            else:
                partial.mkdir()
                if run is not None:
                    write_run(partial / RUN, run)
        yield partial
        with output_errors(out):
            _clear(partial)
            _sync(partial)
            # what is killed from here on has no RUN, and is not gone on from: parts of FOUND would mislead
            (partial / RUN).unlink(missing_ok=True)
            shutil.rmtree(partial / FOUND, ignore_errors=True)
            try:
                _publish(partial, out, overwrite)
            except OSError:  # the folder was filled meanwhile
                if run is not None:
                    write_run(partial / RUN, run)
                raise
    except BaseException:
        if not (resume and (partial / RUN).exists() and any(path.name != RUN for path in partial.iterdir())):
            shutil.rmtree(partial, ignore_errors=True)
            for path in made:
                with suppress(OSError):
                    path.rmdir()
        raise


def _clear(folder: Path) -> None:
    """Remove the files that killed processes were writing."""
    for path in folder.rglob(f"*{UNFINISHED}"):
        path.unlink(missing_ok=True)


def stamp(path: Path) -> list[list[Any]]:
    """What tells a file, or the files of a folder, from others without reading them: names, sizes, times of change.

    Of a snapshot in the hub's cache its commit: each machine has downloaded it at a time of its own.

    Raises InputError where they cannot be listed.
    """
    if path.parent.name == "snapshots" and path.parents[1].name.startswith("models--"):
        return [[path.name]]
    try:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        # a run may write beside its data: what it has not finished is none of them
        named = [(file, file.relative_to(path)) for file in files]
        stats = [(name.as_posix(), file.stat()) for file, name in named if file.is_file() and out_of(name) == name]
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    return [[name, found.st_size, found.st_mtime_ns] for name, found in stats]


def refuse_other(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any], what: str, anew: str) -> None:
    """Refuse to go on from the state of another ``what`` (run, search); ``anew`` is the way out.

    Raises:
        InputError: says in what they differ.
    """
    wanted = json.loads(json.dumps(wanted))
    if other := [key for key in {**wanted, **found} if found.get(key) != wanted.get(key)]:
        # another command differs in all else, too
        whose = "another command" if "command" in other else f"a {what} with other {' and '.join(other)}"
        raise InputError(f"{path}: the state of {whose}; repeat the command that was interrupted, or {anew}")


def out_of(path: Path) -> Path:
    """The folder that an unfinished one, or a path in it, will become; the path itself where it is in none."""
    for folder in (path, *path.parents):
        if found := re.fullmatch(rf"\.(.+)\.(partial-\d+|{SHARED})", folder.name):
            return folder.with_name(found[1])
    return path


def _left(out: Path, resume: bool) -> list[Path]:
    """What killed runs left beside `out`, what to go on from last: what parts have filled, or the newest.

    An old `out` that one had moved aside is brought back. Raises InputError where ``resume`` finds a run at work.
    """
    pattern = re.compile(rf"\.{re.escape(out.name)}\.(partial|replaced)-(\d+)")
    left = []
    shared = out.with_name(f".{out.name}.{SHARED}")
    if at_work := living(shared / FOUND):
        raise InputError(
            f"{out}: part {' and '.join(map(str, at_work))} of it is at work; wait for the end of all parts"
        )
    if shared.is_dir():
        left.append(shared)
    for sibling in list(out.parent.iterdir()) if out.parent.is_dir() else []:
        found = pattern.fullmatch(sibling.name)
        if found is None:
            continue
        if _is_running(int(found[2])):
            if resume and found[1] == "partial":
                raise InputError(
                    f"{out}: process {found[2]} seems to write it, into {sibling.name}; wait for its end, or, where it "
                    f"is another with a killed run's number, rename the folder to .{out.name}.partial-999999999"
                )
            continue
        if found[1] == "replaced" and not out.exists():
            sibling.rename(out)
        elif found[1] == "replaced":
            shutil.rmtree(sibling)
        else:
            left.append(sibling)
    return sorted(left, key=lambda path: ((path / RUN).exists(), path == shared, path.stat().st_mtime))


def write_run(path: Path, run: Mapping[str, Any]) -> None:
    """Note what an unfinished folder is of."""
    write_text(path, json.dumps(run, indent=2, sort_keys=True))


def check_run(left: Path, run: Mapping[str, Any] | None, anew: str) -> None:
    """Refuse what another run has left; ``anew`` is the way out.

    Raises:
        InputError: says in what they differ.
    """
    found = json_in(left / RUN)
    if not isinstance(found, dict):
        raise InputError(f"{left}: does not say what run it is of; {anew}")
    wanted = run or {}
    # what parts have done is gathered without knowing how many they were
    refuse_other(left, {key: found[key] for key in found if key != PARTS or key in wanted}, wanted, "run", anew)


def _is_running(pid: int) -> bool:
    # A leftover under our own id is from an earlier process: in containers ids repeat from run to run.
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:  # another user's
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _sync(folder: Path) -> None:
    """Bring everything to the disk, so that the rename cannot outlive the data in a power cut."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _publish(partial: Path, out: Path, overwrite: bool) -> None:
    if not (overwrite and out.exists()):
        # Fails if a concurrent run has filled `out` in the meantime; an empty folder is replaced.
        partial.rename(out)
        return
    replaced = out.with_name(f".{out.name}.replaced-{os.getpid()}")
    out.rename(replaced)
    try:
        partial.rename(out)
    except BaseException:
        replaced.rename(out)
        raise
    shutil.rmtree(replaced, ignore_errors=True)
