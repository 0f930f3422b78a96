"""Singular value decompositions, where they are fastest."""

from __future__ import annotations

import torch
from torch import Tensor

# cuSOLVER takes matrices of up to 32 columns many at a time, larger ones one by one: 1,024 of 64 columns took an H200
# 6.7 s (their singular values alone 12.9), a core of a CPU 0.4 (0.15). Of one of 384 it was the faster; 256 is a guess.
BATCHED_ON_GPU, FASTER_ON_GPU = 32, 256


def svd(m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``u``, the singular values and ``vh`` of square matrices ``[*batch, n, n]``, on their device."""
    u, sizes, vh = torch.linalg.svd(_brought(m))
    return u.to(m.device), sizes.to(m.device), vh.to(m.device)


def singular_values(m: Tensor) -> Tensor:
    """Of square matrices ``[*batch, n, n]``, on their device, ``[*batch, n]``."""
    return torch.linalg.svdvals(_brought(m)).to(m.device)


def _brought(m: Tensor) -> Tensor:
    slow = m.device.type == "cuda" and BATCHED_ON_GPU < m.shape[-1] < FASTER_ON_GPU
    return m.cpu() if slow else m  # where no data are, as for shapes alone, there is nothing to bring
