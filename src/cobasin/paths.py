"""Paths as users write them."""

from __future__ import annotations

import os
from pathlib import Path

from cobasin.errors import InputError, shown


def short(name: str | Path) -> str:
    """The last part of a path, or of a model's id."""
    return Path(name).name or str(name)


def check_name(model: str | Path) -> None:
    """Refuse the path of a model in which safetensors opens no file.

    Raises:
        InputError: it has bytes that are no UTF-8.
    """
    try:
        str(model).encode()
    except UnicodeEncodeError:
        raise InputError(f"{model}: this path is not text in UTF-8; rename it, or choose another") from None


def expanded(path: str | Path, what: str = "") -> Path:
    """A path with the ``~`` or ``~user`` that it begins with resolved; ``what`` is what messages call it.

    Raises:
        InputError: there is no such user; it is empty, or no path.
    """
    if not isinstance(path, (str, os.PathLike)) or not str(path) or "\0" in str(path):
        raise InputError(f"{what} {shown(path)}: expected a path".lstrip())
    try:
        os.fsencode(path)
    except UnicodeEncodeError:  # half of a letter, which YAML and JSON can say
        raise InputError(
            f"{what} {shown(path)}: expected a path, of letters that a file system can name".lstrip()
        ) from None
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InputError(f"{path}: no such user, or one without a home folder; write the whole path") from error


def resolved(path: str | Path, what: str = "") -> Path:
    """The place that an `expanded` path leads to, from the root on and through all links.

    Raises:
        InputError: as `expanded`; a link in it leads back to itself.
    """
    found = Path(os.path.realpath(expanded(path, what)))
    if any(map(os.path.islink, (found, *found.parents))):  # what could not be followed is left
        raise InputError(f"{path}: has a link in it that leads back to itself; remove that, or choose another path")
    return found
