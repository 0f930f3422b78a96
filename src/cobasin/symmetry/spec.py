"""What is declared about an architecture, and what follows from it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from cobasin.symmetry.groups import Group
from cobasin.symmetry.types import Axis, Layout, TypeSyntaxError, layout

Key = tuple[str | int, ...]
"""Names one element: its space, then the index values it belongs to, as ``("ffn", 3)`` for layer 3."""


@dataclass(frozen=True)
class Space:
    """A set of coordinates that tensor axes run over.

    Attributes:
        size: how many.
        group: what may act on it; None where the coordinates have a meaning of their own (vocabulary, labels).
        over: the spaces its element varies over, outermost first: ``("layer", "head")`` for a head's basis.
        part: which word of ``--symmetry`` frees it: ffn, heads, attention or residual.
        folded: the larger group that acts once the norms are folded into their readers, if there is one.
    """

    size: int
    group: Group | None = None
    over: tuple[str, ...] = ()
    part: str = ""
    folded: Group | None = None


@dataclass(frozen=True)
class Norm:
    """A norm in front of a branch, whose gain and offset can be folded into the ``readers`` of its output.

    ``centred``: LayerNorm, which also ignores the mean of the stream; otherwise RMSNorm.
    """

    weight: str
    readers: tuple[str, ...]
    bias: str | None = None
    centred: bool = True


@dataclass(frozen=True)
class KeyBias:
    """A key bias that the softmax cancels: block ``block`` of tensor ``bias`` is pure gauge."""

    bias: str
    block: int = 0


@dataclass(frozen=True)
class ValueBias:
    """A value bias that can move through the output projection ``weight`` into ``out_bias``."""

    bias: str
    weight: str
    out_bias: str
    block: int = 0


BiasGauge = KeyBias | ValueBias


@dataclass(frozen=True)
class Site:
    """Where a space occurs: axis ``axis`` of block ``block`` of tensor ``tensor``."""

    tensor: str
    block: int
    axis: int


@dataclass(frozen=True)
class Entry:
    """One tensor: its layout and the values of the index spaces in its name."""

    layout: Layout
    index: Mapping[str, int]


@dataclass(frozen=True)
class Spec:
    """The type of a checkpoint: spaces, and the type of every tensor by its on-disk name.

    Attributes:
        architecture: the Transformers class, as in ``config.architectures``.
        templates: tensor name (with ``{layer}`` for an index space) to type. Names are without ``prefix``,
            which files of a model with a head carry and files of a bare model may lack.
        tied: tensors that repeat another one and may be absent from the file.
        norms, biases: the norms that can be folded, the biases that are gauge.
        buffers: regular expressions of constants that old files carry; copied, never transformed.
        function_keys: the config keys that change the function at equal shapes.
    """

    architecture: str
    spaces: Mapping[str, Space]
    templates: Mapping[str, str]
    prefix: str = ""
    tied: Mapping[str, str] = field(default_factory=dict)
    norms: tuple[Norm, ...] = ()
    biases: tuple[BiasGauge, ...] = ()
    buffers: tuple[str, ...] = ()
    function_keys: tuple[str, ...] = ()
    version: int = 1

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Size of every space."""
        return {name: space.size for name, space in self.spaces.items()}

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """Every tensor of the model by name, with its layout."""
        return {
            name: Entry(layout(type_, self.sizes), index)
            for template, type_ in self.templates.items()
            for name, index in self.expand(template)
        }

    def expand(self, template: str) -> Iterable[tuple[str, dict[str, int]]]:
        """The names that a template stands for, each with its index values."""
        spaces = re.findall(r"\{(\w+)\}", template)
        for values in itertools.product(*(range(self.sizes[space]) for space in spaces)):
            index = dict(zip(spaces, values, strict=True))
            yield template.format(**index), index

    @cached_property
    def index_spaces(self) -> frozenset[str]:
        """Spaces that live in tensor names, not in axes."""
        return frozenset(space for template in self.templates for space in re.findall(r"\{(\w+)\}", template))

    def batch_axes(self, space: str) -> tuple[str, ...]:
        """The spaces that an element of ``space`` varies over inside a tensor."""
        return tuple(over for over in self.spaces[space].over if over not in self.index_spaces)

    def batch(self, space: str) -> tuple[int, ...]:
        """Leading shape of an element of ``space``."""
        return tuple(self.sizes[over] for over in self.batch_axes(space))

    def key(self, space: str, index: Mapping[str, int]) -> Key:
        """The element of ``space`` that acts on a tensor with these index values."""
        return (space, *(index[over] for over in self.spaces[space].over if over in self.index_spaces))

    def index(self, key: Key) -> dict[str, int]:
        """The index values that a key belongs to; the inverse of `key`."""
        over = [space for space in self.spaces[str(key[0])].over if space in self.index_spaces]
        return dict(zip(over, key[1:], strict=True))  # type: ignore[arg-type]

    @cached_property
    def sites(self) -> dict[Key, list[Site]]:
        """For every element that a group may act with: all places where it acts.

        Raises:
            TypeSyntaxError: where a tensor uses a space whose element varies over an axis the tensor lacks.
        """
        found: dict[Key, list[Site]] = {}
        for name, entry in self.entries.items():
            for b, block in enumerate(entry.layout.blocks):
                spaces = [axis.space for axis in block.axes]
                for a, axis in enumerate(block.axes):
                    space = self.spaces.get(axis.space)
                    if space is None or space.group is None:
                        continue
                    missing = [o for o in space.over if o not in spaces and o not in entry.index]
                    if missing:
                        raise TypeSyntaxError(
                            f"{name}: type {entry.layout.text!r} uses {axis.space!r}, which varies over "
                            f"{', '.join(missing)}, but the tensor has no such axis"
                        )
                    found.setdefault(self.key(axis.space, entry.index), []).append(Site(name, b, a))
        return found

    def group(self, space: str, folded: bool) -> Group | None:
        """The group of a space, with norms folded or not."""
        declared = self.spaces[space]
        return declared.folded if folded and declared.folded is not None else declared.group

    def acting_order(self, axes: tuple[Axis, ...]) -> list[int]:
        """Axis positions in the order in which elements act: a fibre before the spaces it varies over."""
        return sorted(range(len(axes)), key=lambda i: -self._depth(axes[i].space))

    def _depth(self, space: str) -> int:
        over = [o for o in self.batch_axes(space)] if space in self.spaces else []
        return 1 + max((self._depth(o) for o in over), default=0)

    def disk_names(self, names: Iterable[str]) -> dict[str, str]:
        """Spec name to on-disk name, for all names that are not buffers.

        A file may carry the base model's prefix or not, and BERT files of 2018 call a norm's parameters gamma
        and beta.
        """
        found = {}
        for name in names:
            own = name.removeprefix(self.prefix)
            own = re.sub(r"(LayerNorm)\.gamma$", r"\1.weight", re.sub(r"(LayerNorm)\.beta$", r"\1.bias", own))
            if not any(re.fullmatch(buffer, own) for buffer in self.buffers):
                found[own] = name
        return found

    def problems(self, headers: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> list[str]:
        """All that is wrong with a checkpoint's headers (on-disk name to shape and dtype), one line each."""
        names, found = self.disk_names(headers), []
        for disk in headers:
            for name in self.disk_names([disk]):
                if names[name] != disk:
                    found.append(f"{disk} and {names[name]} are the same tensor under two names")
        for name in sorted(self.entries.keys() - names.keys() - self.tied.keys()):
            found.append(f"missing tensor {name} {self.entries[name].layout.shape}")
        for name, disk in names.items():
            shape, dtype = headers[disk]
            if name not in self.entries:
                found.append(f"unexpected tensor {disk} {tuple(shape)}, not part of {self.architecture}")
            elif tuple(shape) != self.entries[name].layout.shape:
                want = self.entries[name].layout
                found.append(f"{disk} has shape {tuple(shape)}, its type {want.text!r} needs {want.shape}")
            elif not dtype.is_floating_point or dtype.itemsize < 2:
                found.append(f"{disk} has dtype {dtype}, expected float64, float32, float16 or bfloat16")
        return found
