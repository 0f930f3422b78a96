"""More than two models: which of them is closest to all others, and their consensus.

The consensus is generalised Procrustes (Gower, Psychometrika 1975) over the symmetry group: elements g_i that bring
the models A_i as close as can be to their own mean M, in ``Σ |g_i·A_i - M|²``. Apart from a constant that is
``(n-1)/n |g_i·A_i - M_i|²`` with M_i the mean of all others, so matching a model to the mean of the others never raises
it. There are many local optima: it is started from every model.

A map that is common to all models changes nothing, but a common scale changes what the entries of a tensor count. So
the model that all are written relative to, the reference, never rescales: the sum is that in its own frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cobasin.matching.choice import Choice
from cobasin.matching.state import Match, compared
from cobasin.matching.weights import EXACT, ascend
from cobasin.progress import Looks
from cobasin.symmetry.action import Values, act
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import Form
from cobasin.symmetry.state import Lazy, State, squared_distance, wide

MAX_SWEEPS = 50
SETTLED = 1e-5  # relative fall of the sum in a sweep over all models

Pairs = Mapping[tuple[int, int], Values]
"""For every pair of models, in both directions: the element that brings the first to the second."""


@dataclass(frozen=True)
class Models:
    """Models in canonical form.

    Attributes:
        forms: one a model; they differ in the sizes of task heads at most.
        states: the tensors.
        choice: what is free.
        excluded: tensors that are not compared.
        device: where they are matched.
    """

    forms: Sequence[Form]
    states: Sequence[State]
    choice: Choice
    excluded: Sequence[str]
    device: torch.device

    @property
    def tensors(self) -> list[str]:
        """Those that count."""
        return compared(self.forms[0], self.excluded)

    def match(
        self,
        source: int,
        anchor: State,
        values: Values | None = None,
        rigid: bool = False,
        distances: Mapping[str, float] | None = None,
    ) -> Match:
        """A match of one of them to ``anchor``; of a ``rigid`` one without scales; for the rest see `Match`."""
        choice = replace(self.choice, parts=self.choice.parts - {"scale"}) if rigid else self.choice
        return Match(
            self.forms[source], choice, self.states[source], anchor, self.excluded, values, distances, self.device
        )

    def moved(self, source: int, values: Values, name: str) -> Tensor:
        """A tensor of one of them, moved."""
        form = self.forms[source]
        return act(form.spec, values, form.group, name, self.states[source][name])

    def moved_state(self, source: int, values: Values) -> State:
        """All tensors of one of them, moved."""
        return Lazy(self.states[source], lambda name: self.moved(source, values, name))

    def inverse(self, source: int, values: Values) -> Values:
        """What undoes ``values``."""
        return Element(self.forms[source], values).inverse().values

    def composed(self, source: int, first: Values, then: Values) -> Values:
        """What acts like ``first`` and then like ``then``."""
        return Element(self.forms[source], first).compose(Element(self.forms[source], then)).values


@dataclass(frozen=True)
class Consensus:
    """Models brought to their mean.

    Attributes:
        values: for every model the element that brings it there, relative to the reference.
        rounds: for every model, how many rounds of matching it took.
        history: ``Σ |g_i·A_i - M|²`` of the models as they are, at the start, and after every sweep over them.
    """

    values: dict[int, Values]
    rounds: dict[int, int]
    history: list[float]


def both_ways(models: Models, found: Pairs) -> Pairs:
    """The elements found for every pair in one direction, and their inverses."""
    return {**found, **{(j, i): models.inverse(i, values) for (i, j), values in found.items()}}


def medoid(order: Sequence[int], distances: Mapping[tuple[int, int], float], among: Sequence[int]) -> int:
    """The model with the smallest sum of distances to the others; of several such, the first in ``order``.

    Args:
        order: the models.
        distances: of every pair, in both directions.
        among: the models that it may be.
    """
    candidates = [i for i in order if i in among]
    return min(candidates, key=lambda i: sum(distances[i, j] for j in order if j != i))


def consensus(
    models: Models,
    order: Sequence[int],
    pairs: Pairs,
    reference: int,
    report: Looks,
) -> dict[int, Consensus]:
    """Bring the models to their mean, starting from each of them as the anchor of all others.

    The result depends on the order in which models are processed, but for that on nothing else.

    Args:
        models: the models; between calls only the mean of all but one of them is held in memory.
        order: the models, in the order in which they are processed.
        pairs: where to start.
        reference: the model that the result is relative to.
        report: called after every round of matching with its number and the squared distance.

    Returns:
        What every start led to. With two models all starts are the same, and there is but one.
    """
    starts = order if len(order) > 2 else order[:1]
    return {
        start: _settle(models, order, _start(models, order, pairs, start, reference), reference, report)
        for start in starts
    }


def _start(models: Models, order: Sequence[int], pairs: Pairs, start: int, reference: int) -> dict[int, Values]:
    """All models matched to ``start``, and with it to the reference, which stays as it is."""
    values: dict[int, Values] = {reference: {}}
    for i in order:
        if i != reference:
            direct = reference if start in (i, reference) else start
            values[i] = pairs[i, direct]
            if direct != reference:
                values[i] = models.composed(i, values[i], pairs[start, reference])
    return values


def _settle(
    models: Models,
    order: Sequence[int],
    values: dict[int, Values],
    reference: int,
    report: Looks,
) -> Consensus:
    """Match every model to the mean of the others, in turn, until that makes no difference."""
    rounds, names = dict.fromkeys(order, 0), models.tensors
    history = [_scatter(models, {i: {} for i in order}), _scatter(models, values)]
    while len(history) < MAX_SWEEPS + 2 and history[-1] > EXACT * history[0]:
        for i in order:
            others = [j for j in order if j != i]
            mean = {name: _mean(models.moved(j, values[j], name) for j in others) for name in names}
            match = models.match(i, mean, values[i], rigid=i == reference)
            rounds[i] += ascend(match, report, warm=True).rounds
            values[i] = dict(match.values)
        history.append(_scatter(models, values))
        if history[-1] >= history[-2] * (1 - SETTLED):
            break
    back = models.inverse(reference, values[reference])
    return Consensus({i: models.composed(i, values[i], back) for i in order}, rounds, history)


def _mean(tensors: Iterable[Tensor]) -> Tensor:
    first, *others = map(wide, tensors)
    return sum(others, start=first) / (1 + len(others))


def _scatter(models: Models, values: Mapping[int, Values]) -> float:
    """Squared distance of all models from their mean."""
    total = 0.0
    for name in models.tensors:
        moved = [models.moved(i, value, name) for i, value in values.items()]
        mean = _mean(moved)
        total += sum(squared_distance(tensor, mean) for tensor in moved)
    return total
