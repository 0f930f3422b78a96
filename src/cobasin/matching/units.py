"""The units of work of an ascent, kept, so that one that was killed goes on from there, or shared by parts.

A unit changes the values of some keys, and with them the distances of the tensors that they touch. What it finds
depends on nothing but where the match stood before it, so a unit that is kept need not run again, nor in all parts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from typing import Any

from cobasin.execution import outcomes
from cobasin.execution.outcomes import Keep, Outcome, found_by
from cobasin.matching.state import Match
from cobasin.symmetry.keys import Key

_ROUND = "round"


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
        if not ran or (self.keep is not None and self.keep.shared):  # there it may be what another part found
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
        if (
            self.keep is None
            or self.keep.shared
            or said == self._kept
            or not (last or now - self._since >= outcomes.WORTH)
        ):
            return
        self.keep.save(_ROUND, self._outcome(self.match.groups, says))
        for name in self._in_round:
            self.keep.drop(name)
        self._since, self._kept, self._in_round = now, said, []

    def _outcome(self, keys: Collection[Key], says: dict[str, Any]) -> Outcome:
        match = self.match
        distances = {name: match.distances[name] for name in match.tensors_of(keys)}
        return Outcome({key: match.values[key] for key in keys}, distances, says)
