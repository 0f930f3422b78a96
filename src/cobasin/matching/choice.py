"""What ``--symmetry`` and ``--layers`` ask for, and which groups that leaves free."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from cobasin.errors import InputError, shown
from cobasin.symmetry.groups import Group, Permutation
from cobasin.symmetry.keys import Key, is_layer, layer_of
from cobasin.symmetry.spec import Spec

PARTS = ("ffn", "experts", "heads", "attention", "scale", "residual")
WORDS = (*PARTS, "residual-order")
"""What a list may name. ``residual-order`` is the residual stream with no norm folded: by (signed) permutations alone,
except where its norms have no gains."""


@dataclass(frozen=True)
class Choice:
    """The parts of the symmetry group to match.

    Attributes:
        parts: a subset of `PARTS`; of adapters ``rank`` and ``scale``.
        paper: match as Zhang et al. (2025) do: plain FFN permutations, the scale solved after the rotation, all
            biases counted.
        folded: whether the norms are folded, so that the residual stream may turn.
        general: any invertible map in place of an isometry with a scale, where the architecture allows it.
        layers: only these layers (of every stack of layers); None for all. The residual stream runs through all
            of them, so it is left alone where layers are chosen.
    """

    parts: frozenset[str]
    paper: bool = False
    folded: bool = False
    general: bool = False
    layers: frozenset[int] | None = None

    @classmethod
    def parse(cls, symmetry: str, layers: str | None = None) -> Choice:
        """From ``"full"``, ``"gl"``, ``"paper"`` or a list like ``"ffn,heads"``, and layers like ``"0-4,7"``.

        Raises:
            InputError: for a word or a range that cannot be read.
        """
        for name, given in (("symmetry", symmetry), ("layers", "" if layers is None else layers)):
            if not isinstance(given, str):
                raise InputError(f"{name} {shown(given)}: expected a text, like 'ffn,heads' or '0-4,7'")
        chosen = None if layers is None else _parse_layers(layers)
        if symmetry == "paper":
            return cls(frozenset({"ffn", "attention", "scale"}), paper=True, layers=chosen)
        words = PARTS if symmetry in ("full", "gl") else tuple(word.strip() for word in symmetry.split(","))
        if unknown := [word for word in words if word not in WORDS]:
            why = "cannot be in a list" if unknown[0] in ("full", "gl", "paper") else "is unknown"
            raise InputError(
                f"symmetry {symmetry!r}: {unknown[0]!r} {why}; expected full, gl, paper, or a list out of "
                f"{', '.join(WORDS)}"
            )
        free = set(words) if chosen is None else set(words) - {"residual", "residual-order"}
        parts = frozenset("residual" if word == "residual-order" else word for word in free)
        return cls(parts, folded="residual" in free, general=symmetry == "gl", layers=chosen)

    def group(self, declared: Group) -> Group:
        """A declared group, without the scales and signs that are not asked for."""
        if self.paper and isinstance(declared, Permutation):
            return replace(declared, signed=False, scaled=False)
        return declared if "scale" in self.parts else without_scale(declared)

    def frees(self, spec: Spec, key: Key) -> bool:
        """Whether this choice leaves an element free."""
        space, layer = spec.spaces[key[0]], layer_of(spec.index(key))
        if space.part not in self.parts or (self.paper and layer is None):
            return False  # the paper's FFN permutation is that of the transformer's layers
        return self.layers is None or layer in self.layers

    def check(self, spec: Spec) -> None:
        """Raise InputError where a chosen layer does not exist."""
        if self.layers is None:
            return
        count = max((space.size for name, space in spec.spaces.items() if is_layer(name)), default=0)
        if max(self.layers) >= count:
            there = f"layers 0 to {count - 1}" if count else "none"
            raise InputError(f"layer {max(self.layers)} does not exist: the model has {there}")


def without_scale(group: Group) -> Group:
    """The same group without rescaling."""
    return replace(group, scaled=False) if group.scaled else group  # type: ignore[type-var]


def _parse_layers(text: str) -> frozenset[int]:
    layers: set[int] = set()
    for item in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,4})(?:\s*-\s*(\d{1,4}))?\s*", item)
        if not found or (found[2] and int(found[2]) < int(found[1])):
            raise InputError(f"layers {text!r}: {item!r} is not a number or a range; write them like 0-4,7")
        layers.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return frozenset(layers)
