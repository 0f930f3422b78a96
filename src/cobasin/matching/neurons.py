"""The order of an FFN's neurons: what tells them apart, and of models that nearly agree a proof by a part of it.

Two neurons are at least as far apart in all of their weights as in some of them. So if every neuron's distance to its
partner, in all weights, is below its distance to any other neuron in every sixteenth weight alone, the partners are
the best order, and the table of all pairs is made of a sixteenth of the weights only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cobasin.execution.memory import MAPPED
from cobasin.execution.once import once
from cobasin.matching.compared import Compared
from cobasin.symmetry.groups import Gram, Permutation, Value
from cobasin.symmetry.groups.assignment import is_permutation
from cobasin.symmetry.state import common_dtype

TABLE = MAPPED  # bytes of the table that are made at once, and a few more: in the heap they would leave holes
EVERY = 16  # of the weights of a neuron in a tensor, one is looked at
PAIRS = 1 << 21  # that are looked at at once, or a few more
MARGIN = 0.01  # by which all others have to be further away
ROUNDING = 1e-5  # of squared norms, at most, in float32
Term = tuple[int, Tensor, Tensor]
"""How a tensor is charged, and the neurons of source and target in it, ``[n, weights]``; of experts a batch."""


class Neurons:
    """The neurons of an FFN in both models, or of an expert in each.

    Args:
        group: that acts on them.
        terms: all that tells them apart.
        gram_of: the Gram of some of the source's.
    """

    def __init__(self, group: Permutation, terms: Sequence[Term], gram_of: Callable[[slice], Gram]):
        self.group, self.terms, self._gram_of = group, terms, gram_of
        (_, first, _), *_ = terms
        self._size = len(first)
        self._step = -(-TABLE // (4 * self._size))  # rows of the table that are made at once

    @once
    def best(self) -> Value:
        """The best value."""
        if self._proven is not None:
            return self._proven
        return in_order(self.group, self.terms, self.group.order_of(self._gram_of, self._size, self._step))

    @once
    def _proven(self) -> Value | None:
        return proven_order(self.group, self.terms)

    @once
    def gain(self) -> float:
        """What the best value gains."""
        matched, order = _Pairs(self.terms), self.best["perm"].argsort()
        for rows in matched.steps():
            matched.add(rows, order[rows])
        return float(self.group.pair_gain(matched.gram).double().sum())

    @property
    def bound(self) -> float:
        """No less than `gain`, and cheaper: that itself if it can be proven, else what the table says."""
        if self._proven is not None:
            return self.gain
        return self.group.bound(self._gram_of, self._size, self._step)


def terms(compared: Compared) -> list[Term]:
    """All that tells the neurons of an FFN apart."""
    spec, found = compared.spec, list[Term]()
    over = spec.batch_axes(compared.key[0])
    for site, *tensors in compared.tensors():
        block = spec.block_at(site)
        spaces = [axis.space for axis in block.axes]
        front = [*(spaces.index(space) for space in over), site.axis]
        views = (block.view(tensor).movedim(front, list(range(len(front)))) for tensor in tensors)
        source, target = (view.reshape(*view.shape[: len(front)], -1) for view in views)
        found.append((compared.group.charge(block.axes[site.axis].charge), source, target))
    return found


def proven_order(group: Permutation, terms: Sequence[Term]) -> Value | None:
    """The value that the Gram of these neurons would ask for, without a batch; None where it takes the Gram to tell."""
    parts = [(charge, some_weights(x, like=y), some_weights(y, like=x)) for charge, x, y in terms]
    matched = _Pairs(terms)
    for rows in matched.steps():
        distances = distances_in_some(group, gram_of_terms([(charge, x[rows], y) for charge, x, y in parts]))
        twin = distances.argmin(-1)
        if not nearest_by_far(group, distances, twin, matched.add(rows, twin)):
            return None
    return group.of_pairs(matched.order, matched.gram) if is_permutation(matched.order) else None


def distances_in_some(group: Permutation, some: Gram) -> Tensor:
    """No more than the squared distances of all pairs in all weights: what there is in some, but for rounding."""
    return group.least_distances(some) - ROUNDING * sum(some.target.values())


def nearest_by_far(group: Permutation, distances: Tensor, partners: Tensor, pairs: Gram) -> bool:
    """Whether all are nearer to their partners, in all weights, than to any other in some weights.

    Args:
        distances: `distances_in_some`.
        partners: of every neuron of the source that of the target.
        pairs: the Gram of these pairs alone, ``[n, 1, 1]``, with all norms.
    """
    others = distances.scatter(-1, partners[:, None], torch.inf).amin(-1)
    size = sum(norm[:, 0] for norms in (pairs.source, pairs.target) for norm in norms.values())
    return bool((group.distances(pairs)[:, 0, 0] < (1 - MARGIN) * others - ROUNDING * size).all())


def some_weights(neurons: Tensor, like: Tensor) -> Tensor:
    """A part of every neuron's weights, in float32 or better."""
    return neurons[..., ::EVERY].to(common_dtype(neurons, like)).contiguous()


def nearest(group: Permutation, parts: Sequence[Term]) -> Tensor:
    """Of every neuron of the source no more than the distance to the nearest one; float64 ``[n]``."""
    (_, first, target), *_ = parts
    found = []
    for rows in torch.arange(len(first), device=first.device).split(-(-PAIRS // len(target))):
        table = group.least_distances(gram_of_terms([(charge, x[rows], y) for charge, x, y in parts]))
        found.append(table.amin(-1).clamp(min=0))
    return torch.cat(found).double()


def in_order(group: Permutation, terms: Sequence[Term], order: Tensor) -> Value:
    """The best value that carries each neuron j of the source to neuron ``order[j]``."""
    matched = _Pairs(terms)
    for rows in matched.steps() if group.charged else ():
        matched.add(rows, order[rows])
    return group.of_pairs(order, matched.gram)


class _Pairs:
    """Neurons and their partners, some at a time.

    They are written to one place: a small tensor kept of every step would split the heap for the next step's tables.

    Attributes:
        order: int64 ``[n]``, for every neuron of the source its partner.
        gram: of these pairs alone, ``[n, 1, 1]``, with all norms.
    """

    def __init__(self, terms: Sequence[Term]):
        self._terms, self.gram = terms, Gram()
        (_, first, _), *_ = terms
        self.order = torch.empty(len(first), dtype=torch.int64, device=first.device)

    def steps(self) -> tuple[Tensor, ...]:
        """Which neurons are looked at together; first a few, which tell that models are independent."""
        rows = torch.arange(len(self.order), device=self.order.device)
        step = -(-PAIRS // len(rows))
        few = min(step, -(-len(rows) // EVERY))
        return rows[:few], *rows[few:].split(step)

    def add(self, rows: Tensor, partners: Tensor) -> Gram:
        """The Gram of these neurons and their partners alone."""
        pairs = gram_of_terms([(charge, x[rows, None], y[partners, None]) for charge, x, y in self._terms])
        if not self.gram.cross:
            self.gram = pairs.map(lambda x: x.new_empty(len(self.order), *x.shape[1:]))
        self.gram.put(rows, pairs)
        self.order[rows] = partners
        return pairs


def gram_of_pairs(term: Term) -> Gram:
    """The Gram of all neurons and those in their places in one tensor, ``[n, 1, 1]``, part by part; in float64."""
    charge, source, target = term
    step, gram = -(-PAIRS // len(source)), Gram()
    for ends in zip(source.split(step, 1), target.split(step, 1), strict=True):
        x, y = (end.to(common_dtype(*ends)) for end in ends)
        dot, *norms = (product.sum(-1).double()[:, None] for product in (x * y, x.square(), y.square()))
        gram.add(charge, dot[..., None])
        gram.add_norms(charge, *norms)
    return gram


def gram_of_terms(terms: Sequence[Term]) -> Gram:
    """The Gram of the neurons of both models, with all norms."""
    gram = Gram()
    for charge, source, target in terms:
        x, y = (side.to(common_dtype(source, target)) for side in (source, target))
        gram.add(charge, x @ y.mT)
        gram.add_norms(charge, x.square().sum(-1), y.square().sum(-1))
    return gram
