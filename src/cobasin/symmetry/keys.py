"""Names of the elements of a group, and of the layers that they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cobasin.symmetry.spec import Entry

Key = tuple[str, *tuple[int, ...]]
"""Names one element: its space, then the index values it belongs to, as ``("ffn", 3)`` for layer 3."""


def key_text(key: Key) -> str:
    """A key as in files: ``ffn.3``."""
    return ".".join(str(part) for part in key)


def key_of(text: str) -> Key:
    """The inverse of `key_text`.

    Raises:
        ValueError: it is no key.
    """
    space, *index = text.split(".")
    return (space, *(int(i) for i in index))


def worst_by_space(figures: Iterable[tuple[Key, float]]) -> dict[str, float]:
    """The largest figure of every space."""
    worst: dict[str, float] = {}
    for key, figure in figures:
        worst[key[0]] = max(worst.get(key[0], 0.0), figure)
    return worst


def is_layer(space: str) -> bool:
    """Whether an index space counts layers: ``layer``, or ``decoder_layer`` where there is more than one stack."""
    return space == "layer" or space.endswith("_layer")


def layer_of(index: Mapping[str, int]) -> int | None:
    """The layer among some index values, in whatever stack of layers; None where there is none."""
    return next((value for space, value in index.items() if is_layer(space)), None)


def after_layers(entries: Mapping[str, Entry]) -> frozenset[str]:
    """Of all tensors of a model those that come after its layers: declared behind the first of these, and in none."""
    within = [layer_of(entry.index) is not None for entry in entries.values()]
    first = within.index(True) if True in within else len(within)
    return frozenset(name for i, name in enumerate(entries) if i > first and not within[i])
