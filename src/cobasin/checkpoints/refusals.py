"""What is no output folder: refused before any work, or when the system will not write it."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from cobasin.architectures import files
from cobasin.errors import InputError, shown
from cobasin.paths import check_name, expanded, resolved

_WAYS_OUT = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        "free some space, raise the limit, or choose a folder on another disk",
    ),
    **dict.fromkeys(
        (errno.ENOTEMPTY, errno.EEXIST),
        "something else, maybe another run, has written to it meanwhile; choose another folder",
    ),
}


def check_output(out: Path, overwrite: bool, inputs: Iterable[Path | None] = ()) -> None:
    """Refuse, before any work, an output folder that `save` would refuse after it.

    Raises InputError if `out` is a file or a mount point, is or holds the working directory, has a path that no model
    is read from, holds files without `overwrite`, cannot be written to, or overlaps with one of the folders `inputs`
    (None: a model without a folder), with a file that one of these links to, or with one that declares an architecture;
    and if `overwrite` is neither True nor False.
    """
    if not isinstance(overwrite, bool):  # "no" would count as yes
        raise InputError(f"overwrite {shown(overwrite)}: expected True or False")
    target = resolved(out, "out")
    check_name(target)
    with output_errors(target):
        if target.exists() and not target.is_dir():
            raise InputError(f"{out}: is a file; give a folder for the output")
        if target.is_mount():
            raise InputError(f"{out}: is a mount point, which no finished folder can replace; choose a folder in it")
        for source in (path.resolve() for path in inputs if path is not None):
            if target == source or source in target.parents:
                raise InputError(f"{out}: lies in the input folder {source}; choose a folder outside of it")
            if target in source.parents:
                raise InputError(f"{out}: holds the input folder {source}; choose another folder")
            if target.is_dir() and (linked := next(_links(source, target), None)):
                raise InputError(f"{out}: holds the input {linked}; choose another folder")
        if _worked_in(target):
            raise InputError(
                f"{out}: is the working directory, or holds it, and would be replaced; choose a new folder"
            )
        if target.is_dir() and not overwrite and any(target.iterdir()):
            raise InputError(
                f"{out}: is not empty; choose another folder, or replace it with --overwrite (in Python overwrite=True)"
            )
        check_place(target.parent, str(out))
    check_read(out, files())


def _worked_in(folder: Path) -> bool:
    """Whether a folder is the working directory of this process, or holds it."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it was removed
        return False
    return folder in (here, *here.parents)


def check_place(folder: Path, called: str) -> None:
    """Refuse, before any work, a folder that cannot be made, or be written to; ``called`` begins the message."""
    there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), folder)
    if not there.is_dir():
        raise InputError(f"{called}: {there} is a file; choose another folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{called}: {there} cannot be written to; choose another folder")


def _links(source: Path, target: Path) -> Iterator[Path]:
    """The links in a folder that lead to another one, or through it."""
    for link in (path for path in source.rglob("*") if path.is_symlink()):
        step = link.parent / link.readlink()
        for place in (Path(os.path.realpath(step.parent)) / step.name, Path(os.path.realpath(link))):
            if target in (place, *place.parents):
                yield link


def check_read(out: Path, read: Iterable[str | Path | None], filled: Path | str | None = None) -> None:
    """Refuse an output folder that holds, or is, what the run reads beside the models; it would be replaced.

    Args:
        out: the folder.
        read: files and folders; what is not there is something else, such as the id of a data set.
        filled: a folder that the run reads and fills, which need not be there yet.

    Raises:
        InputError: says what it holds.
    """
    target = resolved(out)
    there = [path for path in read if path is not None and expanded(path).exists()]
    for path in [*there, *([filled] if filled is not None else [])]:
        place = resolved(path)
        if target in (place, *place.parents):
            raise InputError(f"{out}: holds {path}, which is read; choose another folder")


@contextmanager
def output_errors(out: Path) -> Iterator[None]:
    """Errors of the system while ``out`` is written, as InputError."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = error.errno if isinstance(error, OSError) else _errno_in(error)
        if number is None:
            raise
        what_to_do = _WAYS_OUT.get(number, "choose another folder or change its permissions")
        raise InputError(f"{out}: cannot be written: {os.strerror(number)}; {what_to_do}") from error


def _errno_in(error: SafetensorError) -> int | None:
    """The number of the operating system's error, which safetensors gives only in its text."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None
