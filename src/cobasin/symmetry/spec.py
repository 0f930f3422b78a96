"""What is declared about an architecture, and what follows from it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from cobasin.symmetry.gauges import FreeGauge, LayerScale, Norm
from cobasin.symmetry.groups import Group, Orthogonal
from cobasin.symmetry.keys import Key
from cobasin.symmetry.types import Axis, Block, Layout, Product, TypeSyntaxError, layout, parse

UNDECLARED = 0


@dataclass(frozen=True)
class Space:
    """A set of coordinates that tensor axes run over.

    Attributes:
        size: how many.
        group: what may act on it; None where the coordinates have a meaning of their own (vocabulary, labels).
        over: the spaces its element varies over, outermost first: ``("layer", "head")`` for a head's basis.
        part: which word of ``--symmetry`` frees it: ffn, experts, heads, attention or residual;
            ``rank`` of an adapter, which no word frees.
        folded: the larger group that acts once the norms are folded into their readers, if there is one.
        within, values: of an index space in names: it stands for some values of another one, as where not all layers
            have tensors of the same type. What varies over that one varies over it.
    """

    size: int
    group: Group | None = None
    over: tuple[str, ...] = ()
    part: str = ""
    folded: Group | None = None
    within: str = ""
    values: tuple[int, ...] = ()


@dataclass(frozen=True)
class Site:
    """Where a space occurs: axis ``axis`` of block ``block`` of tensor ``tensor``."""

    tensor: str
    block: int
    axis: int


@dataclass(frozen=True)
class Entry:
    """One tensor: its layout, the values of the index spaces in its name, and the file's tensors it stacks."""

    layout: Layout
    index: Mapping[str, int]
    stack: tuple[str, ...] = ()


@dataclass(frozen=True)
class Spec:
    """The type of a checkpoint: spaces, and the type of every tensor by its on-disk name.

    Attributes:
        architecture: the Transformers class, as in ``config.architectures``.
        templates: tensor name (with ``{layer}`` for an index space) to type. Names are without ``prefix``,
            which files of a model with a head carry and files of a bare model may lack. Where the space in the
            name is also the first axis of the type (``experts.{expert}.w1: expert ffn resid``), the file has one
            tensor for each of its values; here they are one, stacked, named ``experts.*.w1``. A product is named
            by all its spaces (``norms.{kv rep}: (kv rep) freq``). What runs before the layers stands before theirs,
            what runs behind them behind.
        aliases: what some files have in place of the beginning of a name, without ``prefix``, to what it is here.
        absent: regular expressions of names that the templates give, but that the model does not have.
        tied: tensors that repeat another one and may be absent from the file.
        norms, scales, biases: the norms and layer scales that can be folded, the biases that are gauge.
        plus_one: templates of gains that the file stores minus one.
        buffers, further: regular expressions of constants that old files carry, and of layers that predict further
            tokens, which the class does not read; copied, never transformed.
        unread: tensors that files may carry and the class does not read, by template or, of some layers only, one by
            one. They move with what they read and write, so that the file stays right for the class that reads them.
        function_keys: the config keys that change the function at equal shapes.
        version: of the declaration; elements say which one they were found for. `UNDECLARED` where there is none.
    """

    architecture: str
    spaces: Mapping[str, Space]
    templates: Mapping[str, str]
    prefix: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)
    norms: tuple[Norm, ...] = ()
    scales: tuple[LayerScale, ...] = ()
    biases: tuple[FreeGauge, ...] = ()
    plus_one: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    function_keys: tuple[str, ...] = ()
    version: int = 1

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Size of every space."""
        return {name: space.size for name, space in self.spaces.items()}

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """Every tensor of the model by name, with its layout."""
        found = {}
        for template, type_ in self.templates.items():
            layout_ = layout(type_, self.sizes)
            for name, index in self.expand(template):
                stack = ()
                if _stacked(template, type_) is not None:
                    stack = tuple(name.replace("*", str(i)) for i in range(layout_.shape[0]))
                found[name] = Entry(layout_, index, stack)
        return found

    @cached_property
    def file_entries(self) -> dict[str, tuple[str, int | None]]:
        """For every tensor of the file, by name without prefix: the entry it belongs to, its place in a stack."""
        found: dict[str, tuple[str, int | None]] = {}
        for name, entry in self.entries.items():
            found |= {part: (name, i) for i, part in enumerate(entry.stack)} if entry.stack else {name: (name, None)}
        return found

    def expand(self, template: str, index: Mapping[str, int] | None = None) -> Iterable[tuple[str, dict[str, int]]]:
        """The names of tensors that a template stands for, each with its index values; ``index`` fixes some.

        Values are those of the whole index space, of a space `within` it, too.
        """
        stacked = _stacked(template, self.templates.get(template, "1"))
        spaces = [space for space in re.findall(r"\{(\w+)\}", template) if space != stacked]
        for values in itertools.product(*(self._values(space, index or {}) for space in spaces)):
            found = dict(zip(spaces, values, strict=True))
            name = template.format(**found, **({stacked: "*"} if stacked else {}))
            if not any(re.fullmatch(pattern, name) for pattern in self.absent):
                yield name, {self._whole(space): value for space, value in found.items()}

    def _values(self, space: str, index: Mapping[str, int]) -> Iterable[int]:
        declared, whole = self.spaces[space], self._whole(space)
        values = declared.values if declared.within else range(declared.size)
        return [value for value in values if value == index[whole]] if whole in index else values

    def _whole(self, space: str) -> str:
        return self.spaces[space].within or space

    def names_of(self, index: Mapping[str, int]) -> dict[str, int]:
        """What templates call these index values: those of an index space, and of the spaces within it."""
        return dict(index) | {s: index[space.within] for s, space in self.spaces.items() if space.within in index}

    @cached_property
    def index_spaces(self) -> frozenset[str]:
        """Spaces that live in tensor names, not in axes."""
        return frozenset(
            self._whole(space)
            for template, type_ in self.templates.items()
            for space in re.findall(r"\{(\w+)\}", template)
            if space != _stacked(template, type_)
        )

    def batch_axes(self, space: str) -> tuple[str, ...]:
        """The spaces that an element of ``space`` varies over inside a tensor."""
        return self._batch_axes[space]

    @cached_property
    def _batch_axes(self) -> dict[str, tuple[str, ...]]:
        index = self.index_spaces
        return {name: tuple(over for over in space.over if over not in index) for name, space in self.spaces.items()}

    def batch(self, space: str) -> tuple[int, ...]:
        """Leading shape of an element of ``space``."""
        return tuple(self.sizes[over] for over in self.batch_axes(space))

    def key(self, space: str, index: Mapping[str, int]) -> Key:
        """The element of ``space`` that acts on a tensor with these index values."""
        return (space, *(index[over] for over in self.spaces[space].over if over in self.index_spaces))

    def index(self, key: Key) -> dict[str, int]:
        """The index values that a key belongs to; the inverse of `key`."""
        over = [space for space in self.spaces[key[0]].over if space in self.index_spaces]
        return dict(zip(over, key[1:], strict=True))

    @cached_property
    def sites(self) -> dict[Key, list[Site]]:
        """For every element that a group may act with: all places where it acts.

        Raises:
            TypeSyntaxError: where a tensor uses a space whose element varies over an axis the tensor lacks.
        """
        found: dict[Key, list[Site]] = {}
        for name, entry in self.entries.items():
            for b, block in enumerate(entry.layout.blocks):
                axes = {axis.space for axis in block.axes} - self.index_spaces
                for a, axis in enumerate(block.axes):
                    space = self.spaces.get(axis.space)
                    if space is None or space.group is None:
                        continue
                    missing = [o for o in space.over if o not in axes and o not in entry.index]
                    if missing:
                        raise TypeSyntaxError(
                            f"{name}: type {entry.layout.text!r} uses {axis.space!r}, which varies over "
                            f"{', '.join(missing)}, but the tensor has no such axis, nor one in its name"
                        )
                    found.setdefault(self.key(axis.space, entry.index), []).append(Site(name, b, a))
        return found

    def block_at(self, site: Site) -> Block:
        """The block of a site."""
        return self.entries[site.tensor].layout.blocks[site.block]

    def group(self, space: str, folded: bool) -> Group | None:
        """The group of a space, with norms folded or not."""
        declared = self.spaces[space]
        return declared.folded if folded and declared.folded is not None else declared.group

    def acting_order(self, axes: tuple[Axis, ...]) -> list[int]:
        """Axis positions in the order in which elements act: a fibre before the spaces it varies over."""
        return sorted(range(len(axes)), key=lambda i: -self._depths.get(axes[i].space, 1))

    @cached_property
    def _depths(self) -> dict[str, int]:
        """Of every space: how many lie on the way from it to one that varies over none."""

        def depth(space: str) -> int:
            return 1 + max((depth(over) for over in self.batch_axes(space)), default=0)

        return {space: depth(space) for space in self.spaces}

    def disk_names(self, names: Iterable[str]) -> dict[str, str]:
        """Spec name to on-disk name, for all names that are not buffers.

        A file may hold a tied tensor under the name of another one only: it is that of the tensor that they repeat.
        """
        found = {own: name for name in names if (own := self.own_name(name)) is not None}
        for tied, owner in self.tied.items():
            if owner not in found and tied in found:
                found[owner] = found.pop(tied)
        return found

    def own_name(self, disk: str) -> str | None:
        """The spec name of a tensor of the file; None for what is only copied.

        A file may carry the base model's prefix or not, have an alias in place of a beginning, and BERT files of 2018
        call a norm's parameters gamma and beta.
        """
        own = disk.removeprefix(self.prefix)
        alias = next((alias for alias in self.aliases if own.startswith(alias)), "")
        own = self.aliases.get(alias, "") + own.removeprefix(alias)
        if own.endswith((".gamma", ".beta")):
            own = re.sub(r"(LayerNorm)\.gamma$", r"\1.weight", re.sub(r"(LayerNorm)\.beta$", r"\1.bias", own))
        return None if any(re.fullmatch(copied, own) for copied in (*self.buffers, *self.further)) else own

    def names_beside(self, missing: Iterable[str], present: Mapping[str, str]) -> dict[str, str]:
        """What a file whose tensors are ``present``, spec name to on-disk name, would call those that it lacks."""
        prefixed = {own.split(".")[0] for own, disk in present.items() if disk.removeprefix(self.prefix) != disk}
        bare = [disk.removeprefix(self.prefix) for disk in present.values()]
        used = {alias.split(".")[0] for alias in self.aliases if any(disk.startswith(alias) for disk in bare)}
        aliases = {alias: start for alias, start in self.aliases.items() if alias.split(".")[0] in used}
        found = {}
        for name in missing:
            alias = next((alias for alias, start in aliases.items() if name.startswith(start)), "")
            prefix = self.prefix if name.split(".")[0] in prefixed else ""
            found[name] = f"{prefix}{alias}{name.removeprefix(aliases.get(alias, ''))}"
        return found

    @property
    def unread_names(self) -> list[str]:
        """The tensors of `unread`."""
        return [name for template in self.unread for name, _ in self.expand(template)]

    @cached_property
    def unties(self) -> bool:
        """Whether a tied tensor reads a norm: folded, the norm gives it values of its own."""
        readers = (name for norm in self.norms for reader in norm.readers for name, _ in self.expand(reader))
        return not self.tied.keys().isdisjoint(readers)

    @cached_property
    def invertible(self) -> frozenset[str]:
        """Spaces that any map may act on: it multiplies one side of a product, its contragredient the other."""
        charges: dict[str, set[int]] = {name: set() for name in self.spaces} | {"1": set()}
        for entry in self.entries.values():
            for axis in entry.layout.axes:
                charges[axis.space].add(axis.charge)
        free = (name for name, space in self.spaces.items() if space.group == Orthogonal(scaled=True))
        return frozenset(name for name in free if charges[name] == {1, -1})


def _stacked(template: str, type_: str) -> str | None:
    """The space in a name that is also the first axis of the type; the spaces, where this is a product."""
    first = next(iter(parse(type_)), None)
    parts = first.parts if isinstance(first, Product) else (first,)
    name = " ".join(part.space for part in parts if isinstance(part, Axis))
    return name if f"{{{name}}}" in template else None
