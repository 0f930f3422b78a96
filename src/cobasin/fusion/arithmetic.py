"""What merge methods compute with: one dtype, slices that fit a cache, accurate inner products, sums of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce

import torch
from torch import Tensor

from cobasin.errors import InputError
from cobasin.execution.jobs import torch_threads
from cobasin.execution.memory import settle_malloc

SLICE = 1 << 17
"""Entries that are computed with at a time: in float32 they fit a cache, and need no memory that is mapped anew."""


def common_dtype(*tensors: Tensor) -> torch.dtype:
    """What the tensors are computed with in: their common dtype, float32 or better."""
    return reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)


def widened(*tensors: Tensor) -> list[Tensor]:
    """The tensors in their common dtype, float32 or better."""
    dtype = common_dtype(*tensors)
    return [tensor.to(dtype) for tensor in tensors]


def sliced(*tensors: Tensor) -> Iterator[tuple[int, list[Tensor]]]:
    """Tensors of one shape, flattened, in slices, widened: the position of the first entry, and the slices."""
    settle_malloc()
    flat = [tensor.reshape(-1) for tensor in tensors]
    for start in range(0, flat[0].numel(), SLICE):
        yield start, widened(*(one[start : start + SLICE] for one in flat))


one_thread = torch_threads(1)
"""Decorates work on slices: operations on so little gain nothing from a second thread, which is free to write."""


@one_thread
def by_slices(
    compute: Callable[[int, list[Tensor]], Tensor], *tensors: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """What ``compute`` makes of each of the slices (see `sliced`), in one tensor of their shape.

    Args:
        compute: entry by entry.
        tensors: of one shape and on one device.
        dtype: of the result; by default their common one, float32 or better.
    """
    result = torch.empty(tensors[0].shape, dtype=dtype or common_dtype(*tensors), device=tensors[0].device)
    flat = result.view(-1)
    for start, parts in sliced(*tensors):
        flat[start : start + SLICE] = compute(start, parts)
    return result


@one_thread
def inner_products(tensors: Sequence[Tensor]) -> Tensor:
    """The inner products of all pairs, float64 ``[n, n]``.

    ``sum`` adds pairwise; ``torch.dot`` and ``Tensor.norm`` do not, and lost up to 1 % on 1e8 float32 entries.
    """
    products = torch.zeros(len(tensors), len(tensors), dtype=torch.float64)
    for _, parts in sliced(*tensors):
        for i, x in enumerate(parts):
            for j, y in enumerate(parts[: i + 1]):
                products[i, j] += float((x * y).sum())
    return products.tril() + products.tril(-1).T


def weight_sum(weight: Sequence[float]) -> float:
    """The sum of the weights, to divide by.

    Raises:
        InputError: it is 0.
    """
    total = sum(weight)
    if total == 0:
        raise InputError(f"the weights {', '.join(f'{one:g}' for one in weight)} sum to 0: nothing is left to average")
    return total
