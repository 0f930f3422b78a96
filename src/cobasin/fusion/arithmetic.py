"""What merge methods compute with: one dtype, accurate inner products, weights that can be divided by."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from cobasin.errors import InputError


def widened(*tensors: Tensor) -> list[Tensor]:
    """The tensors in their common dtype, float32 or better."""
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)
    return [tensor.to(dtype) for tensor in tensors]


def inner(x: Tensor, y: Tensor) -> float:
    """The inner product of all entries.

    ``sum`` adds pairwise; ``torch.dot`` and ``Tensor.norm`` do not, and lost up to 1 % on 1e8 float32 entries.
    """
    return float((x * y).sum())


def weight_sum(weight: Sequence[float]) -> float:
    """The sum of the weights, to divide by.

    Raises:
        InputError: it is 0.
    """
    total = sum(weight)
    if total == 0:
        raise InputError(f"the weights {', '.join(f'{one:g}' for one in weight)} sum to 0: nothing is left to average")
    return total
