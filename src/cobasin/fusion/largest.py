"""The largest entries of a difference of two tensors, found without sorting it, or having it in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import hardshrink

from cobasin.fusion.arithmetic import of_slices, widened

_SAMPLE = 1 << 17  # entries
_SPREAD = 6  # standard deviations: the range misses in one of half a billion tensors, and all is then looked at
_ALL = -1.0, math.inf


@dataclass(frozen=True)
class Largest:
    """The entries with magnitudes above ``least``, and of those equal to it the ones up to position ``last``."""

    least: float
    last: int

    @staticmethod
    def of(base: Tensor, tensor: Tensor, rank: int) -> Largest:
        """The ``rank`` largest entries of ``tensor - base``; the first of equal ones.

        A sample tells about how large the least of them is. Then the entries above that range are counted, and those
        within it looked at.

        Args:
            base, tensor: of one shape; their difference is in their common dtype, float32 or better.
            rank: how many, from 1 on.
        """
        if rank >= base.numel():
            return Largest(0.0, base.numel())
        for low, high in (_around(base, tensor, rank), _ALL):
            starts, above, at_high, within, at_low = _counted(base, tensor, low, high)
            values = np.concatenate(within)
            parts = [int(at_high.sum()), len(values), int(at_low.sum())]
            left = rank - int(above.sum())  # of those from ``high`` on
            if 0 < left <= sum(parts):
                break
        if left <= parts[0]:
            least, equal = high, at_high
        elif (left := left - parts[0]) <= parts[1]:
            least = float(np.partition(values, -left)[-left])
            left -= int(np.count_nonzero(values > least))
            equal = np.array([np.count_nonzero(one == least) for one in within])
        else:
            left, least, equal = left - parts[1], low, at_low
        so_far = equal.cumsum()
        if left == so_far[-1]:
            return Largest(least, base.numel())
        at = int(np.searchsorted(so_far, left))
        ends = [*starts, base.numel()][at : at + 2]
        sizes = _magnitudes(widened(*(one.reshape(-1)[slice(*ends)] for one in (base, tensor))))
        places = np.flatnonzero(sizes == least)
        return Largest(least, ends[0] + int(places[left - int(so_far[at] - equal[at]) - 1]))

    def of_slice(self, difference: Tensor, start: int) -> Tensor:
        """A slice of the difference that begins at position ``start``; what is not among them is 0."""
        least = torch.tensor(self.least, dtype=difference.dtype)
        below = float(least.nextafter(torch.zeros_like(least)))
        split = min(max(self.last + 1 - start, 0), difference.numel())
        return torch.cat([hardshrink(difference[:split], below), hardshrink(difference[split:], self.least)])


def _around(base: Tensor, tensor: Tensor, rank: int) -> tuple[float, float]:
    """A range that almost certainly holds the magnitude of this rank, counted from the largest."""
    count = base.numel()
    if count <= _SAMPLE:
        return _ALL
    places = torch.from_numpy(np.sort(np.random.default_rng(0).integers(count, size=_SAMPLE))).to(base.device)
    sample = np.sort(_magnitudes(widened(*(one.reshape(-1)[places] for one in (base, tensor)))))
    middle, part = _SAMPLE * (1 - rank / count), rank / count
    spread = _SPREAD * math.sqrt(_SAMPLE * part * (1 - part)) + 1
    low, high = math.floor(middle - spread), math.ceil(middle + spread)
    return float(sample[low]) if low >= 0 else _ALL[0], float(sample[high]) if high < _SAMPLE else _ALL[1]


def _counted(
    base: Tensor, tensor: Tensor, low: float, high: float
) -> tuple[Sequence[int], np.ndarray, np.ndarray, Sequence[np.ndarray], np.ndarray]:
    """Of every slice of a difference: where it begins, how many magnitudes are above ``high`` and how many equal to it,
    those between, and how many are equal to ``low``."""

    def of_slice(start: int, parts: list[Tensor]) -> tuple[int, int, int, np.ndarray, int]:
        sizes = _magnitudes(parts)
        above, at_high, at_low = (int(np.count_nonzero(one)) for one in (sizes > high, sizes == high, sizes == low))
        return start, above, at_high, sizes[(sizes > low) & (sizes < high)], at_low

    starts, above, at_high, within, at_low = zip(*of_slices(of_slice, base, tensor), strict=True)
    return starts, np.array(above), np.array(at_high), within, np.array(at_low)


def _magnitudes(parts: Sequence[Tensor]) -> np.ndarray:
    """Those of a difference."""
    one, other = parts
    return (other - one).abs_().cpu().numpy()
