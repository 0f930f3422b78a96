"""What a long call says while it works."""

from __future__ import annotations

from collections.abc import Callable

from cobasin.errors import InputError, shown

Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, how far it is, and the end of it (None: not known)."""

Count = Callable[[int, int], None]
"""Called with how many are done, and how many there are."""

Bytes = Callable[[int], None]
"""Called with how many bytes more are done."""

Looks = Callable[[int, float], None]
"""Called with the number of a round or step, and what it has come to: a squared distance, or a loss."""


def silent(*_: object) -> None:
    """What is called where nobody listens."""


def progress_of(given: Callable[..., None] | None) -> Callable[..., None]:
    """What a call is to say its progress to: `silent` where none is given.

    Raises:
        InputError: it cannot be called.
    """
    if given is None:
        return silent
    if not callable(given):
        raise InputError(f"progress {shown(given)}: expected a function, which is called as cobasin.progress says")
    return given


def rounds(progress: Progress, doing: str = "matching") -> Looks:
    """What an ascent is to call after every round, with the round's number and the squared distance."""
    return lambda number, squared: progress(f"{doing}: round {number}, distance {squared**0.5:.6g}", number, None)
