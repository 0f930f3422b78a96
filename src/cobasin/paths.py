"""Paths as users write them."""

from __future__ import annotations

from pathlib import Path

from cobasin.errors import InputError


def short(name: str | Path) -> str:
    """The last part of a path, or of a model's id."""
    return Path(name).name or str(name)


def expanded(path: str | Path) -> Path:
    """A path with the ``~`` or ``~user`` that it begins with resolved.

    Raises:
        InputError: there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InputError(f"{path}: no such user, or one without a home folder; write the whole path") from error
