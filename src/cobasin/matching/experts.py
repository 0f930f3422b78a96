"""The neurons of experts, whose order may be open: any of the source against any of the target.

Their tables may be large, and there are as many as pairs of experts. So they are made one pair at a time, and only of
pairs that a bound does not rule out. Two experts are at least as far apart as some neurons of one, in some of their
weights, are from those of the other that are nearest to each.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial

import torch
from torch import Tensor

from cobasin.matching.compared import Compared
from cobasin.matching.neurons import EVERY, Neurons, most_gained, nearest, some_weights, squared_norm, terms
from cobasin.symmetry.groups import Gram, Permutation, Value


class Experts:
    """The neurons that a key orders in the experts of a layer.

    Attributes:
        count: of experts.
    """

    def __init__(self, compared: Compared):
        assert isinstance(compared.group, Permutation)
        self._compared, self._group, self._terms = compared, compared.group, terms(compared)
        (self._space,) = compared.spec.batch_axes(str(compared.key[0]))
        self.count = compared.spec.sizes[self._space]
        self.pair = cache(self._pair)

    def best(self, pairs: Iterable[tuple[int, int]]) -> Value:
        """The best values of these pairs, source and target."""
        values = [self.pair(*pair).best for pair in pairs]
        return {part: torch.stack([value[part] for value in values]) for part in values[0]}

    def rough_bounds(self) -> Tensor:
        """No less than what any pair gains, by a part of the source's neurons and weights; ``[source, target]``."""
        few = [(charge, some_weights(x[:, ::EVERY], like=y).flatten(0, 1), y) for charge, x, y in self._terms]
        apart = [
            nearest(self._group, [(charge, x, some_weights(y[q], like=x)) for charge, x, y in few])
            for q in range(self.count)
        ]
        norms = Gram()
        for charge, *sides in self._terms:
            source, target = (torch.stack([squared_norm(one) for one in side]) for side in sides)
            norms.add_norms(charge, source[:, None, None], target[:, None])
        return most_gained(self._group, norms, torch.stack(apart, -1).unflatten(0, (self.count, -1)).sum(1))

    def _pair(self, source: int, target: int) -> Neurons:
        terms = [(charge, x[source], y[target]) for charge, x, y in self._terms]
        return Neurons(self._group, terms, partial(self._compared.gram, select={self._space: (source, target)}))
