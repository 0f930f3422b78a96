"""The neurons of experts, whose order may be open: any of the source against any of the target.

Their tables may be large, and there are as many as pairs of experts. So they are made one pair at a time, and only of
pairs that a bound does not rule out: a neuron is at least as far from every neuron of another expert, in all weights,
as it is from the nearest of them in some weights, and what is true of all neurons is no less than what is of some.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial

import torch
from torch import Tensor

from cobasin.execution.once import once
from cobasin.matching.compared import Compared
from cobasin.matching.neurons import EVERY, MARGIN, ROUNDING, Neurons, nearest, some_weights, terms
from cobasin.symmetry.groups import Gram, Permutation, Value
from cobasin.symmetry.state import squared_size


class Experts:
    """The neurons that a key orders in the experts of a layer.

    Attributes:
        count: of experts.
        pair: the neurons of one of the source and one of the target.
    """

    def __init__(self, compared: Compared):
        group, found = compared.group, terms(compared)
        assert isinstance(group, Permutation)
        (space,) = compared.spec.batch_axes(compared.key[0])

        def pair(p: int, q: int) -> Neurons:
            own = [(charge, x[p], y[q]) for charge, x, y in found]
            return Neurons(group, own, partial(compared.gram, select={space: (p, q)}))

        self._group, self._terms = group, found
        self.count = compared.spec.sizes[space]
        self.pair = cache(pair)  # of no method: in a cycle the tensors of a layer would outlive it

    def best(self, pairs: Iterable[tuple[int, int]]) -> Value:
        """The best values of these pairs, source and target."""
        values = [self.pair(*pair).best for pair in pairs]
        return {part: torch.stack([value[part] for value in values]) for part in values[0]}

    def rough_bounds(self) -> Tensor:
        """No less than what any pair gains, by a part of its neurons and weights; float64 ``[source, target]``."""
        few = [(charge, some_weights(x[:, ::EVERY], like=y).flatten(0, 1), y) for charge, x, y in self._terms]
        apart = [
            nearest(self._group, [(charge, x, some_weights(y[q], like=x)) for charge, x, y in few])
            for q in range(self.count)
        ]
        return self._most_gained(torch.stack(apart, -1).unflatten(0, (self.count, -1)).sum(1).cpu())

    def rough_bound(self, p: int, q: int) -> float:
        """No less than what a pair gains, by a part of the weights of all its neurons."""
        parts = [(c, some_weights(x, like=y), some_weights(y, like=x)) for c, x, y in self.pair(p, q).terms]
        apart = torch.zeros(self.count, self.count, dtype=torch.float64, device="cpu")
        apart[p, q] = float(nearest(self._group, parts).sum())
        return float(self._most_gained(apart)[p, q])

    def _most_gained(self, apart: Tensor) -> Tensor:
        """No less than what every pair gains that is at least so far apart."""
        gain, squares = (self._group.gain_at(self._norms, x) for x in ((1 - MARGIN) * apart, torch.zeros_like(apart)))
        return gain + ROUNDING * squares

    @once
    def _norms(self) -> Gram:
        """Squared norms of the experts, as if each were a column."""
        norms = Gram()
        for charge, *sides in self._terms:
            sizes = torch.tensor([[*map(squared_size, side)] for side in sides], dtype=torch.float64, device="cpu")
            norms.add_norms(charge, *sizes)
        return norms
