"""The order of heads, KV groups and experts, by assignment on the optimum of the nested problem.

Which head is which cannot be read off while each is in its own basis. So every pair of heads gets the value of
its best basis change (a nuclear norm), and the assignment maximises their sum. Of models near each other a part of the
weights proves that heads stay in their places, as it does of neurons (`cobasin.matching.neurons`). Under grouped-query
attention the query heads of every pair of KV groups are assigned first, then the groups. A pair of experts gets the
value of the best assignment of their neurons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from cobasin.matching.compared import Compared
from cobasin.matching.experts import Experts
from cobasin.matching.neurons import MARGIN
from cobasin.matching.state import Match
from cobasin.symmetry.action import in_old_order
from cobasin.symmetry.groups import Gram, Permutation, Value
from cobasin.symmetry.groups.assignment import assign, assign_lazily
from cobasin.symmetry.groups.isometry import Isometry
from cobasin.symmetry.keys import Key
from cobasin.symmetry.spec import Site, Spec
from cobasin.symmetry.state import on_cpu

LARGE = 1 << 28  # bytes: tables of this size are not made side by side; their products use all threads anyway
SHARED = 4  # bases that are held whatever their size: more are not those of one layer
EVERY = 4  # of the weights of a head in a tensor, one is looked at to tell it from others
SOLVER = 3  # tables that a solver makes of a Gram


def pairs_size(spec: Spec, bases: Iterable[str], ordered: bool = True) -> int:
    """Bytes of the Grams of these spaces at a time, and of what the solver of the largest makes of it.

    Args:
        spec: of the models.
        bases: spaces; a Gram has two tables where there is a scale.
        ordered: whether all heads (or the heads of all KV groups) are compared with each other, or in their places.
    """
    held, tables = 0, []
    for space in bases:
        over = spec.batch_axes(space)
        orders = {one for one in over if ordered and spec.spaces[one].part == "heads"}
        orders |= {one for one, own in spec.spaces.items() if own.part == "heads" and orders & {*spec.batch_axes(one)}}
        pairs = math.prod(spec.sizes[one] for one in orders) ** 2
        rest = math.prod(spec.sizes[one] for one in over if one not in orders)
        tables.append(8 * pairs * rest * spec.sizes[space] ** 2)
        held += tables[-1] * (2 if getattr(spec.spaces[space].group, "scaled", False) else 1)
    return held + SOLVER * max(tables)


def propose_order(match: Match, base: Key) -> dict[Key, Value]:
    """New values for ``base`` and all keys that vary over it, found together.

    Grams of pairs have leading axes ``[P, Q, R, S, ...]``: source and target group, source and target head
    inside the group (size one where there is no such order), then what else a fibre varies over.
    """
    nested = _Nested(match, base)
    experts = {key: Experts(Compared(match, key, nested.family)) for key in nested.orders}
    in_place = nested.in_place()
    chosen = torch.arange(match.spec.sizes[base[0]], device="cpu")
    perm = chosen if in_place else _assign(nested.terms(), list(experts.values()))
    back = perm.argsort()  # elements act before the order changes, so they are listed in the source's order
    proposal: dict[Key, Value] = {base: {"perm": perm}}
    if nested.inner and nested.within is not None:
        proposal[nested.inner] = {"perm": nested.within[perm, chosen][back]}
    elsewhere = {key: value for key, value in (match.values | proposal).items() if key != base}
    for key in nested.bases:
        picked = in_place.get(key) or nested.matched(key).map(partial(_of_pairs, sources=perm, targets=chosen))
        value = _listed(on_cpu(match.groups[key].project(picked, not match.choice.paper)), back)
        place = match.spec.batch_axes(key[0]).index(base[0])
        value = {part: x.movedim(0, place) for part, x in value.items()}
        proposal[key] = in_old_order(match.spec, elsewhere, key, value)
    for key, own in experts.items():
        proposal[key] = _listed(on_cpu(own.best((p, q) for q, p in enumerate(perm.tolist()))), back)
    return proposal


class _Nested:
    """What is found together with an order, and what every pair of its items gains by it.

    Attributes:
        inner: the order inside the items, such as that of the query heads of a KV group, or of the entries of a book:
            these are told apart by what no basis is in.
        orders: of their own inside an item, such as the neurons of an expert: too large to hold the Grams of all pairs.
        bases: the other keys that vary over the order.
        family: all of these, the order first.
        within: of every pair of items and every target inside, the source inside, ``[P, Q, S]``; None without `inner`.
    """

    def __init__(self, match: Match, base: Key):
        fibres = match.fibres(base)
        self._match, self._base, self.inner = match, base, inner_order(match, base)
        self.orders = [key for key in fibres if key != self.inner and _of_items(match, key)]
        self.bases = [key for key in fibres if key != self.inner and key not in self.orders]
        self.family = [base, *fibres]
        pairs = (base[0], self.inner[0]) if self.inner else (base[0],)
        self._by_heads = partial(_by_heads, match, inner=self.inner, family=self.family, pairs=pairs)
        if len(self.bases) <= SHARED or pairs_size(match.spec, [key[0] for key in self.bases]) <= LARGE:
            self._by_heads = cache(self._by_heads)
        self._count = match.spec.sizes[self.inner[0]] if self.inner else 1
        self._many = self.inner is not None and match.spec.spaces[self.inner[0]].part != "heads"
        self._inside: list[Tensor] = []
        self.within = self._order_within(self.inner) if self.inner else None

    def _order_within(self, inner: Key) -> Tensor:
        match, base = self._match, self._base
        if sites := [site for site in match.sites(inner) if not _carries(match, site, self.bases)]:
            self._inside = [match.gram(inner, self.family, (base[0],), sites).total()]
        if self._count == 1:
            return torch.zeros(2 * (match.spec.sizes[base[0]],) + (1,), dtype=torch.int64, device="cpu")
        found = []
        for key in [] if self._many else self.bases:
            own, shared = self._by_heads(key)
            if own.cross:  # all else is the same for all heads of a group
                # of what all heads of a group have in common, a part for each
                each = own.plus(shared.map(lambda x: x / self._count))
                found.append(_support(match.groups[key].support(each), leading=4))
        return assign(_total([*found, *self._inside]))

    def _plain(self) -> list[Site]:
        """Where no free basis is: of a position bias for every head, or everywhere where bases are left alone."""
        _, *others = self.family
        return [site for site in self._match.sites(self._base) if not _carries(self._match, site, others)]

    def in_place(self) -> dict[Key, Gram]:
        """The Grams of all bases of items in their places, if these are proven to be the best ones; else none.

        Whatever their bases, two heads are at least as far apart in all weights as in some. So if every head is
        nearer to the one in its place than to any other in every fourth weight alone, all stay where they are.
        """
        match, space = self._match, self._base[0]
        groups = {key: group for key in self.bases if isinstance(group := match.groups[key], Isometry)}
        if not groups or len(groups) < len(self.bases) or self._count > 1 or self.orders or self._plain():
            return {}
        grams, near, norms = {}, [], []
        for key, group in groups.items():
            place = match.spec.batch_axes(key[0]).index(space)
            gram = match.gram(key, self.family, norms=True).map(lambda x, place=place: x.movedim(place, 0))
            near.append(_support(group.distance(gram), leading=1))
            sides = [*gram.source.values(), *gram.target.values()]
            norms += [_support(norm.sum(-1), leading=1) for norm in sides]
            grams[key] = gram
        distance = _total(near)
        if (EVERY * distance >= _total(norms)).any():  # more than there can be between others in every fourth weight
            return {}
        others = []
        for key, group in groups.items():
            some = match.gram(key, self.family, (space,), every=EVERY, norms=True)
            others.append(_support(group.least_distance(some), leading=2))
        nearest = _total(others).fill_diagonal_(math.inf).amin(0)
        return grams if (distance < (1 - MARGIN) * nearest).all() else {}

    def matched(self, key: Key) -> Gram:
        """The Gram of a basis for every pair of items, whose insides are in the best order."""
        if self._many and self.inner and self.within is not None:
            return self._in_order(key, self.inner, self.within)
        own, shared = self._by_heads(key)
        if self.within is not None and self.inner and self.inner[0] in self._match.spec.batch_axes(key[0]):
            return own.map(partial(_heads_of, self.within))  # every head has its own
        # what they share has none to sum over, and norms are those of all of them
        return own.map(self._over_heads, lambda x: x.sum((2, 3))).plus(shared.map(lambda x: x[:, :, 0, 0]))

    def _in_order(self, key: Key, inner: Key, within: Tensor) -> Gram:
        """The same of entries of books, whose Grams of all pairs would fit no memory: a target's after another's."""
        others, beside = [one for one in self.family if one != inner], copy(self._match)
        grams = []
        for target in range(within.shape[1]):
            beside.values = self._match.values | {inner: {"perm": within[:, target]}}
            grams.append(beside.gram(key, others, (self._base[0],)))
        cross = {c: torch.stack([one.cross[c][:, q] for q, one in enumerate(grams)], 1) for c in grams[0].cross}
        return replace(grams[0], cross=cross)  # norms are the same in any order

    def _over_heads(self, x: Tensor) -> Tensor:
        """Of ``[P, Q, R, S, ...]`` the sum over matched heads: ``[P, Q, ...]``."""
        if self.within is None or self._count == 1:
            return x[:, :, 0, 0]
        return _heads_of(self.within, x).sum(2)

    def terms(self) -> list[Tensor]:
        """What every pair of items gains, ``[P, Q]``, in parts; but for `orders`."""
        match, base = self._match, self._base
        terms = [self._over_heads(term) for term in self._inside]
        if plain := self._plain():
            terms.append(match.gram(base, self.family, sites=plain).total())
        return terms + [_support(match.groups[key].support(self.matched(key)), leading=2) for key in self.bases]


def _by_heads(
    match: Match, key: Key, inner: Key | None, family: list[Key], pairs: tuple[str, ...]
) -> tuple[Gram, Gram]:
    """The Grams ``[P, Q, R, S, ...]`` of a basis: of what every head has for itself, of what those of a group share."""
    if inner is None:
        return match.gram(key, family, pairs).map(lambda x: x.unsqueeze(2).unsqueeze(2)), Gram()
    sites = match.sites(key)
    own = [site for site in sites if _carries(match, site, [inner])]
    shared = [site for site in sites if site not in own]
    return match.gram(key, family, pairs, own), match.gram(key, family, pairs, shared)


def inner_order(match: Match, base: Key) -> Key | None:
    """The order inside the values of ``base`` whose items share bases: query heads of a KV group."""
    fibres = match.fibres(base)
    for key in fibres:
        others = [other for other in fibres if other != key]
        if _of_items(match, key) and any(_carries(match, site, others) for site in match.sites(key)):
            return key
    return None


def _of_items(match: Match, key: Key) -> bool:
    """Whether it is an order of heads or neurons; that of a head's own coordinates is a basis like others."""
    return isinstance(match.groups[key], Permutation) and match.spec.spaces[key[0]].part != "attention"


def _assign(terms: list[Tensor], experts: list[Experts]) -> Tensor:
    """The best assignment, given the pairs' values apart from those of their neurons."""
    if not experts:
        return assign(_total(terms))
    bounds = [one.rough_bounds() for one in experts]
    rest = _total(terms) if terms else torch.zeros_like(bounds[0])

    def gain(of: Callable[[Experts, int, int], float], p: int, q: int) -> float:
        return float(rest[p, q]) + sum(of(one, p, q) for one in experts)

    in_turn: list[Callable[[Experts, int, int], float]] = [
        Experts.rough_bound,
        lambda one, p, q: one.pair(p, q).bound,
        lambda one, p, q: one.pair(p, q).gain,
    ]
    return assign_lazily(_total([rest, *bounds]), [partial(gain, of) for of in in_turn])


def _listed(value: Value, order: Tensor) -> Value:
    return {part: x.index_select(0, order) for part, x in value.items()}


def _of_pairs(x: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    """Of ``[P, Q, ...]``, either of which may be of size one, some pairs of all heads: ``[pairs, ...]``."""
    return x.expand(len(sources), len(targets), *x.shape[2:])[sources, targets]


def _support(support: Tensor, leading: int) -> Tensor:
    """The value of the best element for every pair, summed over what else it varies over."""
    return support.flatten(leading).sum(-1) if support.ndim > leading else support


def _total(terms: list[Tensor]) -> Tensor:
    return torch.stack([term.double() for term in terms]).sum(0).cpu()


def _heads_of(within: Tensor, x: Tensor) -> Tensor:
    """Of ``[P, Q, R, S, ...]``, any of which may be of size one, the matched heads: ``[P, Q, S, ...]``."""
    index = within.to(x.device).reshape(*within.shape[:2], 1, -1, *[1] * (x.ndim - 4))
    return x.expand(*within.shape, within.shape[-1], *x.shape[4:]).take_along_dim(index, 2).squeeze(2)


def _carries(match: Match, site: Site, keys: list[Key]) -> bool:
    """Whether the block at ``site`` has a basis that one of ``keys`` moves."""
    block = match.spec.block_at(site)
    return any(axis.space == key[0] for axis in block.axes for key in keys)
