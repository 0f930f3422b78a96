"""The weighted average."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def average(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """``Σ w_i x_i``, elementwise, in float32 or better.

    Args:
        tensors: of one shape.
        weights: as many; normalised by the caller.
    """
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    total = tensors[0].to(dtype) * weights[0]
    for tensor, weight in zip(tensors[1:], weights[1:], strict=True):
        total.add_(tensor.to(dtype), alpha=weight)
    return total
