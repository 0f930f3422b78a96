"""Freedoms of a model besides its groups: what can be folded into a neighbour, and what nothing reads.

All names are templates of a `Spec`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Norm:
    """A norm in front of a branch, whose gain and offset can be folded into the ``readers`` of its output.

    ``centred``: LayerNorm, which also ignores the mean of the stream; otherwise RMSNorm. ``stream``: the space
    that it normalises.
    """

    weight: str
    readers: tuple[str, ...]
    bias: str | None = None
    centred: bool = True
    stream: str = "resid"


@dataclass(frozen=True)
class LayerScale:
    """A gain on the output of a branch, which the ``writers`` of the branch can take over."""

    weight: str
    writers: tuple[str, ...]
    stream: str = "resid"


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


@dataclass(frozen=True)
class RouterShift:
    """A vector common to all rows of a router ``weight``, which the softmax over ``space`` cancels."""

    weight: str
    space: str = "expert"


FreeGauge = KeyBias | ValueBias | RouterShift
