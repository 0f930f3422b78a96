"""Where a match stands: the current element, the distance of every tensor, and steps that may only lower it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from copy import copy
from functools import partial

import torch
from torch import Tensor

from cobasin.execution.jobs import CPU
from cobasin.matching.choice import Choice, without_scale
from cobasin.symmetry.action import Values, act, along
from cobasin.symmetry.canonical import canonical
from cobasin.symmetry.cross_gram import cross_gram
from cobasin.symmetry.form import Form
from cobasin.symmetry.groups import Gram, Group, Permutation, Value
from cobasin.symmetry.keys import Key
from cobasin.symmetry.spec import Site
from cobasin.symmetry.state import Lazy, Remembered, State, squared_distance

# A step is taken unless it raises the squared distance by more than rounding.
_ROUNDING = 1e-9
HELD = 1 << 28  # bytes, at most, of tensors that are held as keys which stay have moved them


def compared(form: Form, excluded: Iterable[str] = ()) -> list[str]:
    """The tensors that count: a tied one repeats another, and a folded norm is the same in all models."""
    uncounted = {*form.spec.tied, *form.norm_parameters, *form.scale_parameters, *excluded}
    return [name for name in form.spec.entries if name not in uncounted]


def free_groups(form: Form, choice: Choice, excluded: Iterable[str] = ()) -> dict[Key, Group]:
    """The group that each free key is solved in; a key that acts on nothing that counts is not free."""
    counted, spec = frozenset(compared(form, excluded)), form.spec
    return {
        key: choice.group(form.group(key))
        for key, sites in spec.sites.items()
        if choice.frees(spec, key) and any(site.tensor in counted for site in sites)
    }


def orders(form: Form, groups: Mapping[Key, Group], part: str) -> dict[Key, Permutation]:
    """Those of these groups that are orders, of spaces that a ``part`` of the symmetry frees."""
    spaces = form.spec.spaces
    found = {key: group for key, group in groups.items() if isinstance(group, Permutation)}
    return {key: group for key, group in found.items() if spaces[key[0]].part == part}


def identity(form: Form, groups: Mapping[Key, Group]) -> Values:
    """The identity of every key."""
    spec = form.spec
    return {key: group.identity(spec.batch(key[0]), spec.sizes[key[0]]) for key, group in groups.items()}


def same(a: Value, b: Value) -> bool:
    """Whether two values of a key are equal, part by part."""
    return a is b or (a.keys() == b.keys() and all(part.equal(b[name]) for name, part in a.items()))


class Match:
    """The state of a match of ``source`` to ``anchor``, both in canonical form and by spec name.

    It starts from ``values``, or else from the identity. To read all tensors for the ``distances`` there takes a while:
    whoever knows them gives them.

    Attributes:
        values: the current group element of every free key.
        groups: the group that each free key is solved in; without scales while ``hold_scales`` is set.
        tensors: those that count; see `compared`.
        distances: the squared distance of each of them.
        device: where the tensors are brought, one by one, to be moved and multiplied; the values stay on the CPU.
    """

    def __init__(
        self,
        form: Form,
        choice: Choice,
        source: State,
        anchor: State,
        excluded: Iterable[str] = (),
        values: Mapping[Key, Value] | None = None,
        distances: Mapping[str, float] | None = None,
        device: torch.device = CPU,
    ):
        self.form, self.spec, self.choice, self.device = form, form.spec, choice, device
        self.tensors = compared(form, excluded)
        self._counted = frozenset(self.tensors)
        self.source, self.anchor = (
            end if device == CPU else Lazy(end, lambda name, end=end: end[name].to(device)) for end in (source, anchor)
        )
        self.hold_scales = False
        self._groups = free_groups(form, choice, excluded)
        self._held = {key: without_scale(group) for key, group in self._groups.items()}
        # every key is there from the start: threads then only replace entries, never add them
        self.values: Values = identity(form, self.groups) | dict(values or {})
        self._keys_of: dict[str, list[Key]] = {}
        for key in self.groups:
            for name in self.tensors_of([key]):
                self._keys_of.setdefault(name, []).append(key)
        self.distances = dict(distances or {name: self.distance(name) for name in self.tensors})

    @classmethod
    def of(cls, form: Form, choice: Choice, source: State, anchor: State, excluded: Iterable[str] = ()) -> Match:
        """The match of two models as their files have them."""
        return cls(form, choice, canonical(form, source), canonical(form, anchor), excluded)

    @property
    def groups(self) -> dict[Key, Group]:
        """The group that each free key is solved in."""
        return self._held if self.hold_scales else self._groups

    @property
    def total(self) -> float:
        """Squared distance between the moved source and the anchor, in canonical form."""
        return sum(self.distances.values())

    def sites(self, key: Key) -> list[Site]:
        """Where a key acts on tensors that count."""
        return [site for site in self.spec.sites[key] if site.tensor in self._counted]

    def tensors_of(self, keys: Iterable[Key]) -> list[str]:
        """The tensors that these keys touch."""
        return list(dict.fromkeys(site.tensor for key in keys for site in self.sites(key)))

    def moved(self, name: str, without: Iterable[Key] = ()) -> Tensor:
        """A source tensor moved by the current element, some keys left out."""
        values = {key: self.values[key] for key in self._keys_of.get(name, ()) if key not in without}
        return act(self.spec, values, self.form.group, name, self.source[name])

    def while_still(self, still: Collection[Key], family: Iterable[Key]) -> Match:
        """This match for steps of a family of keys while others stay, which move its tensors only once.

        Args:
            still: keys whose elements vary over nothing, so that none has to act before them.
            family: its steps change the values and distances of this match.
        """
        if not still:
            return self
        names = self.tensors_of(family)
        others = {name: [key for key in self._keys_of[name] if key not in still] for name in names}
        beside = copy(self)
        beside.source = Remembered(Lazy(names, lambda name: self.moved(name, others[name])), HELD)
        beside._keys_of = others
        return beside

    def in_bfloat16(self, key: Key) -> bool:
        """Whether all that a key touches is in bfloat16 in both models, on the CPU, and moved by no other key."""
        names = self.tensors_of([key])
        return (
            self.device == CPU
            and all(self._keys_of[name] == [key] for name in names)
            and all(end[name].dtype == torch.bfloat16 for name in names for end in (self.source, self.anchor))
        )

    def distance(self, name: str) -> float:
        """Squared distance of one tensor."""
        return squared_distance(self.moved(name), self.anchor[name])

    def gram(
        self,
        key: Key,
        without: Iterable[Key] = (),
        pairs: tuple[str, ...] = (),
        sites: list[Site] | None = None,
        normalise: bool = False,
        group: Group | None = None,
        every: int = 1,
        norms: bool = False,
    ) -> Gram:
        """The cross-Gram of one key, the source moved by all other keys but those in ``without``.

        It has what ``group`` needs, by default the one that the key is solved in. See `cross_gram`.
        """
        return cross_gram(
            self.spec,
            key[0],
            group or self.groups[key],
            self.sites(key) if sites is None else sites,
            lambda site: self.moved_elsewhere(site, key, without),
            lambda site: self.anchor[site.tensor],
            pairs,
            normalise,
            every=every,
            norms=norms,
        )

    def moved_elsewhere(self, site: Site, key: Key, without: Iterable[Key]) -> Tensor:
        """The source tensor at ``site`` moved by all keys but ``key`` and those in ``without``.

        Where ``key`` acts on another axis of the block as well (a square map of the stream), it is left out on the
        site's axis only.
        """
        moved = self.moved(site.tensor, {key, *without})
        if key in without:
            return moved
        block = self.spec.block_at(site)
        for i, axis in enumerate(block.axes):
            if i != site.axis and axis.space == key[0]:
                act_once = partial(self.groups[key].act, self.values[key], charge=axis.charge)
                moved = along(block.view(moved), [], i, act_once).reshape(moved.shape)
        return moved

    def movers(self, site: Site, key: Key) -> list[Key]:
        """The keys that move what ``key`` meets at ``site``; itself, where it acts on another axis there as well."""
        axes = self.spec.block_at(site).axes
        twice = any(i != site.axis and axis.space == key[0] for i, axis in enumerate(axes))
        return [other for other in self._keys_of[site.tensor] if other != key or twice]

    def fibres(self, base: Key) -> list[Key]:
        """The free keys whose elements vary over ``base``."""
        spec, index = self.spec, self.spec.index(base).items()
        there = [key for key in self.groups if base[0] in spec.batch_axes(key[0])]
        return [key for key in there if index <= spec.index(key).items()]

    def set(self, values: Mapping[Key, Value]) -> None:
        """Take new values, whatever they do to the distance."""
        self.values.update(values)
        self.distances.update({name: self.distance(name) for name in self.tensors_of(values)})

    def step(self, values: Mapping[Key, Value]) -> bool:
        """Take new values unless they raise the distance; says whether they were taken."""
        if all(same(value, self.values[key]) for key, value in values.items()):
            return True
        touched = self.tensors_of(values)
        old_values = {key: self.values[key] for key in values}
        old_distances = {name: self.distances[name] for name in touched}
        self.set(values)
        taken = sum(self.distances[name] for name in touched) <= sum(old_distances.values()) * (1 + _ROUNDING)
        if not taken:
            self.values.update(old_values)
            self.distances.update(old_distances)
        return taken

    def snapshot(self) -> tuple[Values, dict[str, float]]:
        """What `restore` needs to come back to this state."""
        return dict(self.values), dict(self.distances)

    def restore(self, snapshot: tuple[Values, dict[str, float]]) -> None:
        """Come back to a state."""
        self.values.update(snapshot[0])
        self.distances.update(snapshot[1])
