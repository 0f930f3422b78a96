"""What a long call says while it works."""

from __future__ import annotations

from collections.abc import Callable

from cobasin.errors import InputError, shown

Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, how far it is, and the end of it (None: not known)."""

Count = Callable[[int, int], None]
"""Called with how many are done, and how many there are."""

Looks = Callable[[int, float], None]
"""Called with the number of a round or step, and what it has come to: a squared distance, or a loss."""


def check_progress(progress: Progress | None) -> None:
    """Raise InputError for what cannot be called."""
    if progress is not None and not callable(progress):
        raise InputError(f"progress {shown(progress)}: expected a function, which is called as cobasin.progress says")


def rounds(progress: Progress | None, doing: str = "matching") -> Looks | None:
    """What an ascent is to call after every round, with the round's number and the squared distance."""
    if progress is None:
        return None
    return lambda number, squared: progress(f"{doing}: round {number}, distance {squared**0.5:.6g}", number, None)
