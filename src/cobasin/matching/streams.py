"""The residual streams of a match: where they start, and their steps.

A stream runs through nearly every tensor, so its Gram is the dear part of a round. What reads and writes it is put
together by the spaces that it is typed with besides: the embeddings by none, the FFNs by their neurons. The Gram of
such a part is kept while nothing else has moved its tensors, as orders soon do not. Where a stream can only be
reordered and stands as it should, no Gram is made: a part of the weights proves it, as it does for neurons.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cobasin.matching.neurons import (
    Term,
    distances_in_some,
    gram_of_pairs,
    gram_of_terms,
    nearest_by_far,
    some_weights,
)
from cobasin.matching.state import Match, same
from cobasin.symmetry.groups import Gram, Group, Permutation, Value
from cobasin.symmetry.keys import Key
from cobasin.symmetry.spec import Site
from cobasin.symmetry.state import on_cpu

LEANING = 1e-10  # of the norm of what the ends say: far above the rounding of float64

Moved = dict[tuple[str, Key], Value]
"""By which values of other keys the tensors of a part are moved."""


@dataclass(frozen=True)
class _Part:
    """Some places of a stream: how they were last compared, and what that gave, where it is kept."""

    group: Group
    moved: Moved
    gram: Gram | None


class Streams:
    """The residual streams of a match, and what is known of their Grams."""

    def __init__(self, match: Match):
        self.match = match
        self.keys = [key for key in match.groups if match.spec.spaces[key[0]].part == "residual"]
        self._parts: dict[tuple[Key, tuple[str, ...]], _Part] = {}

    def turn_to_ends(self) -> bool:
        """Turn the streams so that the ends of the model agree, whose other axes are fixed (vocabulary, labels ...).

        A stream that is turned is an end of those that it meets. Each term counts alike. Says whether any has turned.
        """
        left, ends, turned = list(self.keys), set[str](), False
        while found := next(((key, sites) for key in left if (sites := self._ends(key, ends))), None):
            key, sites = found
            left.remove(key)
            gram = self.match.gram(key, sites=sites, normalise=True)
            if not gram.cross:  # tensors of zeros say nothing
                continue
            if self.match.groups[key].continuous:
                gram = gram.map(_leaning, norms=lambda norm: norm)
            value = on_cpu(self.match.groups[key].project(gram))
            if not same(value, self.match.values[key]):
                self.match.set({key: value})
                turned = True
            ends.add(key[0])
        return turned

    def update(self, key: Key) -> bool:
        """Take one exact step with a stream; says whether it has moved."""
        match = self.match
        if self._stays(key):
            return False
        value = on_cpu(match.groups[key].project(self._gram(key)))
        return not same(value, match.values[key]) and match.step({key: value})

    def _stays(self, key: Key) -> bool:
        """Whether the order of a stream is proven to be the best one as it is, which a part of the Gram tells.

        As of neurons (`cobasin.matching.neurons`), but with the tensors one after another. Whether it is worth
        looking at all of them, the largest tells.
        """
        group, n = self.match.groups[key], self.match.spec.sizes[key[0]]
        if not isinstance(group, Permutation) or group.scaled:
            return False
        there, some, pairs = torch.arange(n, device=self.match.device), Gram(), Gram()
        for term in self._terms(key):
            charge, source, target = term
            part = gram_of_terms([(charge, some_weights(source, like=target), some_weights(target, like=source))])
            if not some.cross and not group.distances(part).argmin(-1).equal(there):
                return False
            some, pairs = some.plus(part), pairs.plus(gram_of_pairs(term))
        sure = bool(some.cross) and nearest_by_far(group, distances_in_some(group, some), there, pairs)
        return sure and same(on_cpu(group.of_pairs(there, pairs)), group.identity((), n))  # with their signs

    def _terms(self, key: Key) -> Iterator[Term]:
        """What a stream is compared by as it stands, the largest tensor first."""
        spec, match = self.match.spec, self.match
        shapes = {site: spec.entries[site.tensor].layout.shape for site in match.sites(key)}
        for site in sorted(shapes, key=lambda site: -math.prod(shapes[site])):
            block = spec.block_at(site)
            ends = match.moved(site.tensor), match.anchor[site.tensor]
            charge = match.groups[key].charge(block.axes[site.axis].charge)
            for source, target in _matrices(*(block.view(end).movedim(site.axis, 0) for end in ends)):
                yield charge, source, target

    def _ends(self, key: Key, ends: Collection[str]) -> list[Site]:
        """Where a stream meets only what is fixed or is among ``ends``."""
        sites = []
        for site in self.match.sites(key):
            block = self.match.spec.block_at(site)
            others = [axis.space for i, axis in enumerate(block.axes) if i != site.axis and axis.space != "1"]
            if others and all(space in ends or self.match.spec.spaces[space].group is None for space in others):
                sites.append(site)
        return sites

    def _gram(self, key: Key) -> Gram:
        """The Gram of a stream, part by part, in an order that does not depend on what is kept."""
        total = Gram()
        for spaces, sites in self._by_spaces(key).items():
            now = _Part(self.match.groups[key], self._moved(key, sites), None)
            before = self._parts.get((key, spaces))
            still = _alike(now, before) if before else not now.moved
            gram = before.gram if before and still else None
            if gram is None:
                gram = self.match.gram(key, sites=sites)
            self._parts[key, spaces] = replace(now, gram=gram if still else None)
            total = total.plus(gram)
        return total

    def _by_spaces(self, key: Key) -> dict[tuple[str, ...], list[Site]]:
        """The places of a stream, by the spaces whose elements move their tensors, too."""
        found: dict[tuple[str, ...], list[Site]] = {}
        for site in self.match.sites(key):
            spaces = dict.fromkeys(other[0] for other in self.match.movers(site, key))
            found.setdefault(tuple(spaces), []).append(site)
        return found

    def _moved(self, key: Key, sites: list[Site]) -> Moved:
        return {
            (site.tensor, other): self.match.values[other] for site in sites for other in self.match.movers(site, key)
        }


def _matrices(source: Tensor, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Tensors with all axes but the first as one; of stacked experts one by one, as all would have to be copied."""
    try:
        yield source.view(len(source), -1), target.view(len(target), -1)
    except RuntimeError:  # no view has these axes in one
        for x, y in zip(source.unbind(1), target.unbind(1), strict=True):
            yield x.reshape(len(x), -1), y.reshape(len(y), -1)


def _alike(now: _Part, before: _Part) -> bool:
    """Whether a part is compared as it was before."""
    return (
        now.group == before.group
        and now.moved.keys() == before.moved.keys()
        and all(same(value, before.moved[at]) for at, value in now.moved.items())
    )


def _leaning(cross: Tensor) -> Tensor:
    """A cross-Gram that leaves a stream as it is where the ends, of fewer axes than it has, say nothing.

    Rounding would decide there, differently on every machine, and the ascent goes on from where this starts it.
    """
    as_it_is = torch.eye(cross.shape[-1], dtype=cross.dtype, device=cross.device)
    return cross + LEANING * torch.linalg.matrix_norm(cross) * as_it_is
