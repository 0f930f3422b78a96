"""Freedoms of a model besides its groups: what can be folded into a neighbour, and what nothing reads.

All names are templates of a `Spec`; ``part`` is the word of ``--symmetry`` that a freedom belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Norm:
    """A norm in front of a branch, whose gain and offset can be folded into the ``readers`` of its output.

    Attributes:
        weight, bias: its gain and its offset.
        readers: the weights that read its output.
        centred: LayerNorm, which also ignores the mean of the stream; otherwise RMSNorm.
        stream: the space that it normalises.
        keys: those of the readers that are key projections without a bias; what they take from the offset is the same
            for all keys, and the softmax cancels it.
        keeps_mean: what writes to the stream keeps its mean, where this is read elsewhere or an activation stands in
            between; the readers of a LayerNorm lose theirs.
    """

    weight: str
    readers: tuple[str, ...]
    bias: str | None = None
    centred: bool = True
    stream: str = "resid"
    keys: tuple[str, ...] = ()
    keeps_mean: bool = False


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
    part: ClassVar[str] = "attention"


@dataclass(frozen=True)
class ValueBias:
    """A value bias that can move through the output projection ``weight`` into ``out_bias``."""

    bias: str
    weight: str
    out_bias: str
    block: int = 0
    part: ClassVar[str] = "attention"


@dataclass(frozen=True)
class SoftmaxShift:
    """What all values of ``space`` share in ``weight`` (a router's rows, a head's position biases).

    A softmax over the space cancels it.
    """

    weight: str
    space: str = "expert"
    part: str = "experts"


FreeGauge = KeyBias | ValueBias | SoftmaxShift
