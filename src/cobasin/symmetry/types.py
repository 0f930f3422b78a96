"""The type language: what every axis of a tensor means.

A type is written axis by axis, separated by blanks: ``"(head qk) resid"`` is a matrix whose rows run over
heads and, inside a head, over its Q-K basis, and whose columns are the residual stream.

    a b        two axes
    (a b)      one axis that is a product, laid out row-major
    (a + b)    one axis that is a concatenation
    a'         the contragredient side of a rescaling: divided where ``a`` is multiplied
    a~         a side that a rescaling (and a change of sign) leaves alone
    1          an axis of size one
    scalar     no axis at all

A type without sums is a monomial. Every type is a disjoint union of monomials, and the part of a tensor that
belongs to one of them is a strided view with one axis per elementary space: a `Block`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from torch import Tensor

_TOKEN = re.compile(r"\s*(?:([A-Za-z_]\w*|1)(['~]?)(?=[\s()+]|$)|([()+])|(\S))")
_CHARGE = {"": 1, "'": -1, "~": 0}


class TypeSyntaxError(ValueError):
    """A type that cannot be parsed, or that does not fit a shape; the message quotes both."""


@dataclass(frozen=True)
class Axis:
    """An elementary axis: its space and its charge under rescaling (+1, -1 for ``'``, 0 for ``~``)."""

    space: str
    charge: int = 1


@dataclass(frozen=True)
class Product:
    """``(a b)``: row-major product of its parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Sum:
    """``(a + b)``: concatenation of its parts."""

    parts: tuple[Node, ...]


Node = Axis | Product | Sum


@cache
def parse(text: str) -> tuple[Node, ...]:
    """Parse a type into one node per tensor axis.

    Raises:
        TypeSyntaxError: on unbalanced parentheses, empty groups or stray characters; quotes the type.
    """
    if text.strip() == "scalar":
        return ()
    tokens: list[Axis | str] = []
    for space, mark, punctuation, stray in _TOKEN.findall(text):
        if stray:
            raise TypeSyntaxError(f"type {text!r}: unexpected character {stray!r}")
        tokens.append(punctuation or Axis(space, _CHARGE[mark]))
    tokens.reverse()  # consumed from the end

    def product() -> Node:
        parts: list[Node] = []
        while tokens and tokens[-1] not in (")", "+"):
            token = tokens.pop()
            parts.append(group() if token == "(" else token)  # type: ignore[arg-type]
        if not parts:
            raise TypeSyntaxError(f"type {text!r}: an empty term")
        return parts[0] if len(parts) == 1 else Product(tuple(parts))

    def group() -> Node:
        parts = [product()]
        while tokens and tokens[-1] == "+":
            tokens.pop()
            parts.append(product())
        if not tokens:
            raise TypeSyntaxError(f"type {text!r}: '(' without ')'")
        tokens.pop()
        return parts[0] if len(parts) == 1 else Sum(tuple(parts))

    axes: list[Node] = []
    while tokens:
        token = tokens.pop()
        if token in (")", "+"):
            raise TypeSyntaxError(f"type {text!r}: {token!r} outside parentheses")
        axes.append(group() if token == "(" else token)  # type: ignore[arg-type]
    if not axes:
        raise TypeSyntaxError("an empty type")
    return tuple(axes)


def unparse(nodes: tuple[Node, ...]) -> str:
    """The type that `parse` reads as ``nodes``."""

    def text(node: Node, bare: bool = False) -> str:
        if isinstance(node, Axis):
            return node.space + {1: "", -1: "'", 0: "~"}[node.charge]
        joined = " ".join(map(text, node.parts))
        if isinstance(node, Sum):
            joined = " + ".join(text(part, bare=True) for part in node.parts)
        return joined if bare and isinstance(node, Product) else f"({joined})"

    return " ".join(map(text, nodes)) or "scalar"


def axes_of(node: Node) -> Iterator[Axis]:
    """The elementary axes of a node, from left to right."""
    if isinstance(node, Axis):
        yield node
    else:
        for part in node.parts:
            yield from axes_of(part)


def size(node: Node, sizes: Mapping[str, int]) -> int:
    """Number of entries along a node, given the size of every space."""
    if isinstance(node, Axis):
        return 1 if node.space == "1" else sizes[node.space]
    part_sizes = [size(part, sizes) for part in node.parts]
    return math.prod(part_sizes) if isinstance(node, Product) else sum(part_sizes)


@dataclass(frozen=True)
class Block:
    """One monomial of a type: its elementary axes and the recipe of its view into a tensor."""

    axes: tuple[Axis, ...]
    steps: tuple[tuple, ...]  # ("unflatten", dim, sizes) or ("narrow", dim, start, length)

    def view(self, tensor: Tensor) -> Tensor:
        """The strided view of ``tensor`` with one axis per elementary axis; shares its memory."""
        for step, *arguments in self.steps:
            tensor = getattr(tensor, step)(*arguments)
        return tensor


@dataclass(frozen=True)
class Layout:
    """A type whose spaces have sizes: the tensor's shape and its blocks."""

    text: str
    shape: tuple[int, ...]
    blocks: tuple[Block, ...]
    nodes: tuple[Node, ...]

    @property
    def axes(self) -> Iterator[Axis]:
        """The axes of all blocks, one block after the other; a space may be among them more than once."""
        return (axis for block in self.blocks for axis in block.axes)

    def axis_of(self, space: str, last: bool = False) -> int | None:
        """The first tensor axis (or the ``last``) that is exactly ``space``, or None."""
        found = [i for i, node in enumerate(self.nodes) if isinstance(node, Axis) and node.space == space]
        return found[-1 if last else 0] if found else None

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise TypeSyntaxError unless ``shape`` is the type's; the message quotes both."""
        if tuple(shape) != self.shape:
            raise TypeSyntaxError(f"shape {tuple(shape)}, but type {self.text!r} needs {self.shape}")


def layout(text: str, sizes: Mapping[str, int]) -> Layout:
    """Bind a type to sizes: its shape and the recipe of every block, worked out once.

    Raises:
        TypeSyntaxError: for a type that cannot be parsed, or that names a space without a size.
    """
    nodes = parse(text)
    spaces = (axis.space for node in nodes for axis in axes_of(node))
    if unknown := [space for space in spaces if space != "1" and space not in sizes]:
        raise TypeSyntaxError(f"type {text!r}: {unknown[0]!r} is not a declared space")
    blocks: list[Block] = []

    def walk(todo: list[Node], done: list[Axis], steps: list[tuple]) -> None:
        if not todo:
            blocks.append(Block(tuple(done), tuple(steps)))
            return
        node, rest, dim = todo[0], todo[1:], len(done)
        if isinstance(node, Axis):
            walk(rest, [*done, node], steps)
        elif isinstance(node, Product):
            parts = tuple(size(part, sizes) for part in node.parts)
            walk([*node.parts, *rest], done, [*steps, ("unflatten", dim, parts)])
        else:
            start = 0
            for part in node.parts:
                length = size(part, sizes)
                walk([part, *rest], done, [*steps, ("narrow", dim, start, length)])
                start += length

    walk(list(nodes), [], [])
    return Layout(text, tuple(size(node, sizes) for node in nodes), tuple(blocks), nodes)
