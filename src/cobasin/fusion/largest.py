"""The largest entries of a difference of two tensors, found without sorting it, or having it in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import hardshrink

from cobasin.fusion.arithmetic import common_dtype, one_thread, sliced

_SMALL = 1 << 15  # entries; of fewer, 65,536 counts would take longer than a second pass over the entries


@dataclass(frozen=True)
class Largest:
    """The entries of the largest magnitudes: those above ``least``, and equal ones up to position ``last``."""

    least: float
    last: int

    @staticmethod
    @one_thread
    def of(base: Tensor, tensor: Tensor, density: float) -> Largest:
        """The ``int(density n)`` largest entries of ``tensor - base``, at least one; the first of equal ones.

        Magnitudes are in the order of their bits. Those of the least are found sixteen at a time (of small tensors
        eight), from counts of what the next ones are in those magnitudes that begin like it.

        Args:
            base, tensor: of one shape; their difference is in their common dtype, float32 or better.
            density: the part of the entries to keep.
        """
        left = max(int(density * base.numel()), 1)  # of those that begin like the least
        if left >= base.numel():
            return Largest(0.0, base.numel())
        width = 8 if base.numel() < _SMALL else 16
        integers = np.dtype(f"i{common_dtype(base, tensor).itemsize}")
        least, counted = 0, 0
        for shift in range(8 * integers.itemsize - width, -1, -width):
            counts = np.zeros(1 << width, np.int64)
            for _, bits in _magnitudes(base, tensor, integers):
                if shift + width < 8 * integers.itemsize:
                    bits = bits[bits >> (shift + width) == least]
                counts += np.bincount(bits >> shift & (len(counts) - 1), minlength=len(counts))
            from_here = counts[::-1].cumsum()[::-1]
            digit = np.count_nonzero(from_here >= left) - 1
            counted = int(counts[digit])
            left -= int(from_here[digit]) - counted
            least = least << width | digit
        value = float(np.array(least, integers).view(f"f{integers.itemsize}"))
        if left == counted:
            return Largest(value, base.numel())
        for start, bits in _magnitudes(base, tensor, integers):
            equal = bits == least
            found = np.count_nonzero(equal)
            if found >= left:
                return Largest(value, start + int(np.flatnonzero(equal)[left - 1]))
            left -= found
        raise AssertionError("fewer entries equal the least than were counted")

    def of_slice(self, difference: Tensor, start: int) -> Tensor:
        """A slice of the difference that begins at position ``start``; what is not among them is 0."""
        least = torch.tensor(self.least, dtype=difference.dtype)
        below = float(least.nextafter(torch.zeros_like(least)))
        split = min(max(self.last + 1 - start, 0), difference.numel())
        return torch.cat([hardshrink(difference[:split], below), hardshrink(difference[split:], self.least)])


def _magnitudes(base: Tensor, tensor: Tensor, integers: np.dtype) -> Iterator[tuple[int, np.ndarray]]:
    """The bits of the difference's magnitudes, slice by slice: the position of the first entry, and the slice."""
    for start, (one, other) in sliced(base, tensor):
        yield start, (other - one).abs_().cpu().numpy().view(integers)
