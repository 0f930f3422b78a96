"""The units of work of an ascent, and what is kept of them: one that was killed goes on from there, parts share it.

A unit changes the values of some keys, and with them the distances of the tensors that they touch. What it finds
depends on nothing but where the match stood before it, so a unit that is kept need not run again, nor in all parts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from cobasin.execution.jobs import run_jobs
from cobasin.matching.state import Match
from cobasin.symmetry.action import Values
from cobasin.symmetry.spec import Key

WORTH = 1.0  # seconds: what took less is found again as quickly
PIECE = 16  # tensors, of which a number each is one outcome
_ROUND = "round"


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

    def save(self, name: str, outcome: Outcome) -> None:
        """Keep an outcome; it is there whole or not at all."""
        ...

    def drop(self, name: str) -> None:
        """Forget an outcome, where there is one."""
        ...


def found_by(keep: Keep | None, name: str, job: int, work: Callable[[], Outcome]) -> Outcome:
    """What ``work`` finds, unless it is kept or another part finds it."""
    if keep is None:
        return work()
    if (found := keep.load(name, job)) is not None:
        return found
    started = time.perf_counter()
    outcome = work()
    if keep.shared or time.perf_counter() - started >= WORTH:
        keep.save(name, outcome)
    return outcome


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


class Units:
    """Runs the units of one ascent."""

    def __init__(self, match: Match, keep: Keep | None):
        self.match, self.keep = match, keep
        self._since, self._kept = time.perf_counter(), ""
        self._in_round: list[str] = []

    def run(self, name: str, job: int, keys: Collection[Key], work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Run a unit, or take over what it found; returns what it says.

        Args:
            name: of the unit.
            job: its number among those that are independent of each other, which says whose it is.
            keys: all that it may change.
            work: changes the match, and says something about that.
        """
        ran = False

        def outcome() -> Outcome:
            nonlocal ran
            says, ran = work(), True
            return self._outcome(keys, says)

        found = found_by(self.keep, name, job, outcome)
        if not ran:
            self.match.restore((found.values, found.distances))
        self._in_round.append(name)
        return found.says

    def last_round(self) -> dict[str, Any] | None:
        """Bring the match to the last round that is kept, and return what was said of it; None where there is none."""
        found = None if self.keep is None or self.keep.shared else self.keep.load(_ROUND)
        if found is None:
            return None
        self.match.restore((found.values, found.distances))
        self._kept = json.dumps(found.says)
        return found.says

    def end_round(self, says: dict[str, Any], last: bool = False) -> None:
        """Keep all of the match, instead of the units of the round; ``last`` is kept however little time it took.

        Where other parts may still be in that round, its units stay.
        """
        now, said = time.perf_counter(), json.dumps(says)
        if self.keep is None or self.keep.shared or said == self._kept or not (last or now - self._since >= WORTH):
            return
        self.keep.save(_ROUND, self._outcome(self.match.groups, says))
        for name in self._in_round:
            self.keep.drop(name)
        self._since, self._kept, self._in_round = now, said, []

    def _outcome(self, keys: Collection[Key], says: dict[str, Any]) -> Outcome:
        match = self.match
        distances = {name: match.distances[name] for name in match.tensors_of(keys)}
        return Outcome({key: match.values[key] for key in keys}, distances, says)
