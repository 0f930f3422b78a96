"""The order of neurons of models that nearly agree, proved by a part of what is compared.

Two neurons are at least as far apart in all of their weights as in some of them. So if every neuron's distance to its
partner, in all weights, is below its distance to any other neuron in every sixteenth weight alone, the partners are
the best order, and the table of all pairs is made of a sixteenth of the weights only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from cobasin.matching.compared import Compared
from cobasin.symmetry.groups import Gram, Permutation, Value
from cobasin.symmetry.groups.assignment import is_permutation

EVERY = 16  # of the weights of a neuron in a tensor, one is looked at
ROWS = 256  # neurons whose pairs are held at once; the first of them tell that models are independent
MARGIN = 0.01  # by which all others have to be further away
ROUNDING = 1e-5  # of squared norms, at most, in float32
Term = tuple[int, Tensor, Tensor]
"""How a tensor is charged, and the neurons of source and target in it, ``[n, weights]``; of experts a batch."""


def terms(compared: Compared) -> list[Term]:
    """All that tells the neurons of an FFN apart."""
    spec, found = compared.spec, list[Term]()
    over = spec.batch_axes(str(compared.key[0]))
    for site, *tensors in compared.tensors():
        block = spec.entries[site.tensor].layout.blocks[site.block]
        spaces = [axis.space for axis in block.axes]
        front = [*(spaces.index(space) for space in over), site.axis]
        views = (block.view(tensor).movedim(front, list(range(len(front)))) for tensor in tensors)
        source, target = (view.reshape(*view.shape[: len(front)], -1) for view in views)
        found.append((compared.group.charge(block.axes[site.axis].charge), source, target))
    return found


def proven_order(group: Permutation, terms: Sequence[Term]) -> Value | None:
    """The value that the Gram of these neurons would ask for, without a batch; None where it takes the Gram to tell."""
    parts = [(charge, *(side[:, ::EVERY].to(_dtype(x, y)).contiguous() for side in (x, y))) for charge, x, y in terms]
    (_, first, _), *_ = terms
    twins, grams = list[Tensor](), list[Gram]()
    for rows in torch.arange(len(first), device=first.device).split(ROWS):
        table = _gram([(charge, x[rows], y) for charge, x, y in parts])
        if group.scaled and any((norm <= 0).any() for charge, norm in table.source.items() if charge):
            return None  # what vanishes in the part looked at may have any scale
        distances = group.distances(table) - ROUNDING * sum(table.target.values())
        twin = distances.argmin(-1)
        others = distances.scatter(-1, twin[:, None], torch.inf).amin(-1)
        pairs = _gram([(charge, x[rows, None], y[twin, None]) for charge, x, y in terms])
        size = sum(norm[:, 0] for norms in (pairs.source, pairs.target) for norm in norms.values())
        if not (group.distances(pairs)[:, 0, 0] < (1 - MARGIN) * others - ROUNDING * size).all():
            return None
        twins.append(twin)
        grams.append(pairs)
    order = torch.cat(twins)
    return group.of_pairs(order, grams) if is_permutation(order) else None


def _gram(terms: Sequence[Term]) -> Gram:
    """The Gram of the neurons of both models, with all norms."""
    gram = Gram()
    for charge, source, target in terms:
        x, y = (side.to(_dtype(source, target)) for side in (source, target))
        gram.add(charge, x @ y.mT)
        gram.add_norms(charge, x.square().sum(-1), y.square().sum(-1))
    return gram


def _dtype(*tensors: Tensor) -> torch.dtype:
    return reduce(torch.promote_types, (one.dtype for one in tensors), torch.float32)
