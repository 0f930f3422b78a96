"""What a job found, kept by name: a search that was killed goes on from there, parts of one share it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from cobasin.execution.jobs import run_jobs
from cobasin.symmetry.action import Values

WORTH = 1.0  # seconds: what took less is found again as quickly
PIECE = 16  # tensors, of which a number each is one outcome


@dataclass(frozen=True)
class Outcome:
    """What a unit found: the values of its keys, the distances of their tensors, and what else it says, as JSON."""

    values: Values
    distances: dict[str, float]
    says: dict[str, Any] = field(default_factory=dict)


class Keep(Protocol):
    """Where outcomes are kept, by name; it may be shared with other parts of the same search."""

    @property
    def shared(self) -> bool:
        """Whether other parts wait for what is found here."""
        ...

    def owns(self, job: int) -> bool:
        """Whether a job is to be done here, and not by another part."""
        ...

    def load(self, name: str, job: int = 0) -> Outcome | None:
        """The outcome of that name; None where there is none, and job number ``job`` has to be done to find it."""
        ...

    def save(self, name: str, outcome: Outcome) -> bool:
        """Keep an outcome, whole or not at all; False where another part has, whose is kept."""
        ...

    def drop(self, name: str) -> None:
        """Forget an outcome, where there is one."""
        ...


def found_by(keep: Keep | None, name: str, job: int, work: Callable[[], Outcome], always: bool = False) -> Outcome:
    """What ``work`` finds, unless it is kept or another part finds it; kept where that took a while, or ``always``."""
    if keep is None:
        return work()
    if (found := keep.load(name, job)) is not None:
        return found
    started = time.perf_counter()
    outcome = work()
    worth = always or keep.shared or time.perf_counter() - started >= WORTH
    if not worth or keep.save(name, outcome):
        return outcome
    # of what two parts have found all go on with the same: on other processors it may differ in rounding
    return keep.load(name, job) or outcome


def owns(keep: Keep | None, job: int) -> bool:
    """Whether a job is to be done here, and not by another part."""
    return keep is None or keep.owns(job)


def numbers(keep: Keep | None, what: str, names: Sequence[str], number: Callable[[str], float]) -> dict[str, float]:
    """A number for every tensor, which takes reading it; ``what`` they are called where they are kept."""
    pieces = [names[i : i + PIECE] for i in range(0, len(names), PIECE)]
    found = dict.fromkeys(names, 0.0)

    def of_piece(i: int) -> None:
        outcome = found_by(keep, f"{what}-{i}", i, lambda: Outcome({}, {name: number(name) for name in pieces[i]}))
        found.update(outcome.distances)

    jobs = {i: partial(of_piece, i) for i in range(len(pieces))}
    run_jobs([job for i, job in jobs.items() if owns(keep, i)])
    # what other parts do, last and in this thread: until then it may be done, and no signal would end another's waiting
    run_jobs([job for i, job in jobs.items() if not owns(keep, i)], one_by_one=True)
    return found
