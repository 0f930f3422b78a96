"""Arcee Fusion: what another model has where it matters most, the base elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cobasin.fusion.arithmetic import SLICE, widened
from cobasin.fusion.registry import method
from cobasin.symmetry.state import common_dtype

FLOOR = 1e-8  # is added to probabilities, as mergekit does; of wide rows it is no small part of them
SPREAD = 1.5  # interquartile ranges above the median


@method("arcee_fusion", reference="Arcee AI, MergeKit v0.1: Arcee Fusion, 2025", most=1)
def arcee_fusion(base: Tensor, tensors: Sequence[Tensor], dtype: torch.dtype | None = None) -> Tensor:
    """The other model's entries that matter most, the base's elsewhere.

    An entry matters by its distance from the base's, times the Kullback-Leibler divergence between the softmax of its
    row in the model and in the base. Those that matter by the median and 1.5 interquartile ranges, or more, are taken.

    Args:
        base: of any shape; a row runs along the last dimension.
        tensors: one, of its shape.
        dtype: of the result; float32 or better by default.
    """
    width = base.shape[-1] if base.dim() else 1

    def rows(tensor: Tensor) -> tuple[Tensor, ...]:
        return tensor.reshape(-1, width).split(max(SLICE // width, 1))

    matters = torch.empty(base.shape, dtype=common_dtype(base, *tensors))
    for part, *pair in zip(rows(matters), rows(base), rows(tensors[0]), strict=True):
        part.copy_(_matters(*widened(*pair)))
    least = _least(matters.view(-1).cpu().numpy())
    merged = torch.empty(base.shape, dtype=dtype or matters.dtype, device=base.device)
    for part, *pair in zip(rows(merged), rows(base), rows(tensors[0]), strict=True):
        ours, theirs = widened(*pair)
        part.copy_(torch.where(_matters(ours, theirs) >= least, theirs, ours))
    return merged


def _matters(base: Tensor, tensor: Tensor) -> Tensor:
    """How much every entry of some rows matters."""
    ours, theirs = (x.softmax(-1) + FLOOR for x in (base, tensor))
    divergence = (theirs * (theirs / ours).log()).sum(-1, keepdim=True)
    return (tensor - base).abs() * divergence


def _least(matters: np.ndarray) -> float:
    """The least of what is taken; quartiles are entries, not interpolated."""
    quarters = [int(part * (len(matters) - 1)) for part in (0.25, 0.5, 0.75)]
    matters.partition(quarters)  # in place
    low, median, high = matters[quarters].tolist()
    return median + SPREAD * (high - low)
