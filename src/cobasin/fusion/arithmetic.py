"""What merge methods compute with: one dtype, slices that fit a cache, accurate inner products, sums of weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from cobasin.errors import InputError
from cobasin.execution.jobs import share_out
from cobasin.execution.memory import settle_malloc
from cobasin.symmetry.state import common_dtype

SLICE = 1 << 18
"""Entries that are computed with at a time: in float32 they fit a cache, and need no memory that is mapped anew."""

_SEVERAL = 8  # slices: fewer are computed before other threads would have started
_THREADS = 8  # more would wait for Python's lock


def widened(*tensors: Tensor) -> list[Tensor]:
    """The tensors in their common dtype, float32 or better."""
    dtype = common_dtype(*tensors)
    return [tensor.to(dtype) for tensor in tensors]


Found = TypeVar("Found")


def of_slices(compute: Callable[[int, list[Tensor]], Found], *tensors: Tensor) -> list[Found]:
    """What ``compute`` returns of every slice, in their order; several are computed at a time, each by one thread.

    Args:
        compute: given the position of the first entry of a slice, and the slices, `widened`; run by any thread.
        tensors: of one shape and on one device.
    """
    settle_malloc()
    flat = [tensor.reshape(-1) for tensor in tensors]
    starts = range(0, flat[0].numel(), SLICE)
    found: dict[int, Found] = {}

    def one(start: int) -> None:
        found[start] = compute(start, widened(*(one[start : start + SLICE] for one in flat)))

    several = len(starts) >= _SEVERAL and flat[0].device.type == "cpu"
    workers = min(torch.get_num_threads(), _THREADS) if several else 1
    share_out([partial(one, start) for start in starts], workers, 1)
    return [found[start] for start in starts]


def by_slices(
    compute: Callable[[int, list[Tensor]], Tensor], *tensors: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """What ``compute`` makes of each of the slices (see `of_slices`), in one tensor of their shape.

    Args:
        compute: entry by entry.
        tensors: of one shape and on one device.
        dtype: of the result; by default their common one, float32 or better.
    """
    result = torch.empty(tensors[0].shape, dtype=dtype or common_dtype(*tensors), device=tensors[0].device)
    flat = result.view(-1)

    def place(start: int, parts: list[Tensor]) -> None:
        flat[start : start + SLICE] = compute(start, parts)

    of_slices(place, *tensors)
    return result


def inner_products(tensors: Sequence[Tensor]) -> Tensor:
    """The inner products of all pairs, float64 ``[n, n]``.

    ``sum`` adds pairwise; ``torch.dot`` and ``Tensor.norm`` do not, and lost up to 1 % on 1e8 float32 entries.
    """
    rows, columns = torch.tril_indices(len(tensors), len(tensors)).tolist()

    def of_slice(_: int, parts: list[Tensor]) -> list[float]:
        return [float((parts[i] * parts[j]).sum()) for i, j in zip(rows, columns, strict=True)]

    products = torch.zeros(len(tensors), len(tensors), dtype=torch.float64)
    sums = torch.tensor(of_slices(of_slice, *tensors), dtype=torch.float64).sum(0)
    products[rows, columns] = sums
    products[columns, rows] = sums
    return products


def weight_sum(weight: Sequence[float]) -> float:
    """The sum of the weights, to divide by.

    Raises:
        InputError: it is 0.
    """
    total = sum(weight)
    if total == 0:
        raise InputError(f"the weights {', '.join(f'{one:g}' for one in weight)} sum to 0: nothing is left to average")
    return total
