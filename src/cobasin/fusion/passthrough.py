"""Passthrough: no fusion. Layers of one model or of several are stacked, and their tensors may be scaled."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cobasin.fusion.arithmetic import widened
from cobasin.fusion.registry import method


@method(
    "passthrough", reference="Goddard et al., MergeKit, EMNLP 2024", most=1, elementwise=True, linear=True, stacks=True
)
def passthrough(tensors: Sequence[Tensor], *, scale: tuple[float, ...] = (1.0,)) -> Tensor:
    """Layers of one model or of several, one on top of the other; every tensor times ``scale``.

    Args:
        tensors: one.
        scale: its factor.
    """
    (tensor,) = widened(*tensors)
    return tensor * scale[0]
