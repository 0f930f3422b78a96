"""The units of work of an ascent, and what is kept of them so that one that was killed goes on from there.

A unit changes the values of some keys, and with them the distances of the tensors that they touch. What it finds
depends on nothing but where the match stood before it, so a unit that is kept need not run again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Protocol

from cobasin.matching.state import Match
from cobasin.symmetry.action import Values
from cobasin.symmetry.spec import Key

WORTH = 1.0  # seconds: what took less is found again as quickly
_ROUND = "round"


@dataclass(frozen=True)
class Outcome:
    """What a unit found: the values of its keys, the distances of their tensors, and what else it says, as JSON."""

    values: Values
    distances: dict[str, float]
    says: dict[str, Any] = field(default_factory=dict)


class Keep(Protocol):
    """Where outcomes are kept, by name."""

    def load(self, name: str) -> Outcome | None:
        """The outcome of that name, where there is one."""
        ...

    def save(self, name: str, outcome: Outcome) -> None:
        """Keep an outcome; it is there whole or not at all."""
        ...

    def drop_others(self, name: str) -> None:
        """Forget all outcomes but that one."""
        ...


class Units:
    """Runs the units of one ascent."""

    def __init__(self, match: Match, keep: Keep | None):
        self.match, self.keep = match, keep
        self._since, self._kept = time.perf_counter(), ""

    def run(self, name: str, keys: Collection[Key], work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Run a unit, or take over what it found; returns what it says.

        Args:
            name: of the unit within its round.
            keys: all that it may change.
            work: changes the match, and says something about that.
        """
        if self.keep is not None and (found := self.keep.load(name)) is not None:
            self.match.restore((found.values, found.distances))
            return found.says
        started = time.perf_counter()
        says = work()
        if self.keep is not None and time.perf_counter() - started >= WORTH:
            self.keep.save(name, self._outcome(keys, says))
        return says

    def last_round(self) -> dict[str, Any] | None:
        """Bring the match to the last round that is kept, and return what was said of it; None where there is none."""
        found = None if self.keep is None else self.keep.load(_ROUND)
        if found is None:
            return None
        self.match.restore((found.values, found.distances))
        self._kept = json.dumps(found.says)
        return found.says

    def end_round(self, says: dict[str, Any], last: bool = False) -> None:
        """Keep all of the match, instead of the units of the round; ``last`` is kept however little time it took."""
        now, said = time.perf_counter(), json.dumps(says)
        if self.keep is not None and said != self._kept and (last or now - self._since >= WORTH):
            self.keep.save(_ROUND, self._outcome(self.match.groups, says))
            self.keep.drop_others(_ROUND)
            self._since, self._kept = now, said

    def _outcome(self, keys: Collection[Key], says: dict[str, Any]) -> Outcome:
        match = self.match
        distances = {name: match.distances[name] for name in match.tensors_of(keys)}
        return Outcome({key: match.values[key] for key in keys}, distances, says)
