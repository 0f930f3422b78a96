"""From matches of all pairs of models to all of them: brought to the medoid, or to their mean."""

from __future__ import annotations

import math
import time
from functools import cache, partial
from itertools import combinations

from cobasin.execution.outcomes import Outcome, found_by
from cobasin.finding.common_form import CommonForm, Found
from cobasin.finding.kept import Kept
from cobasin.matching.many import Pairs, both_ways, consensus, medoid
from cobasin.progress import Progress, rounds


def from_pairs(
    common: CommonForm, order: list[int], anchor: str | int, progress: Progress, keep: Kept | None
) -> tuple[int, dict[int, Found], dict]:
    """Match all pairs, and from there all models to the medoid or to their mean.

    Returns the reference; for every other model what brings it there, and the search for it; and a report.
    """
    started = time.perf_counter()
    pairs = {(j, i): common.find(j, i, progress, keep) for i, j in combinations(order, 2)}
    distances = {pair: search["objective"][-1] for pair, (_, search) in pairs.items()}
    distances |= {(j, i): distance for (i, j), distance in distances.items()}
    # what a model lacks is zero, and brings nothing together
    whole = [i for i in common.anchors if not common.typed[i].lacking]
    reference = medoid(order, distances, whole or common.anchors)
    others = [i for i in order if i != reference]
    report: dict = {"distances": [[distances.get((i, j), 0.0) for j in sorted(order)] for i in sorted(order)]}
    if anchor == "consensus":
        values = both_ways(common.models, {pair: values for pair, (values, _) in pairs.items()})
        at_mean = _at_mean(common, order, values, reference, progress, keep)
        says = at_mean[others[0]].says
        report |= {"objective": says["objective"], "starts": {int(start): end for start, end in says["starts"].items()}}
        seconds = time.perf_counter() - started
        found = {i: (one.values, {"rounds": one.says["rounds"], "seconds": seconds}) for i, one in at_mean.items()}
        return reference, found, report
    # what undoes the other direction would do as well, were it not for scales: those are the best of one direction
    found = {i: pairs.get((i, reference)) or common.find(i, reference, progress, keep) for i in others}
    return reference, found, report


def _at_mean(
    common: CommonForm, order: list[int], pairs: Pairs, reference: int, progress: Progress, keep: Kept | None
) -> dict[int, Outcome]:
    """What brings every model but the reference to the mean of all, starting from the elements of all pairs."""
    ascent = cache(lambda: consensus(common.models, order, pairs, reference, rounds(progress)))

    def settled(i: int) -> Outcome:
        ends = {str(start): math.sqrt(outcome.history[-1]) for start, outcome in ascent().items()}
        best = min(ascent().values(), key=lambda outcome: outcome.history[-1])
        says = {"rounds": best.rounds[i], "objective": [math.sqrt(value) for value in best.history], "starts": ends}
        return Outcome(best.values[i], {}, says)

    # one ascent finds all of them: whichever is asked for first takes its time, the others none
    return {i: found_by(keep, f"consensus-{i}", 0, partial(settled, i), always=True) for i in order if i != reference}
