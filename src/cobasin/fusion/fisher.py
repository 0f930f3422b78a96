"""Fisher merging."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from cobasin.fusion.arithmetic import weight_sum, widened
from cobasin.fusion.registry import method

FLOOR = torch.finfo(torch.float32).eps ** 2
"""This part of the largest entry is added to every one: the square of a gradient that is only rounding."""


@method(
    "fisher",
    reference="Matena & Raffel, Merging models with Fisher-weighted averaging, NeurIPS 2022",
    statistics="fisher",
)
def fisher(
    tensors: Sequence[Tensor],
    fishers: Sequence[Tensor],
    *,
    weight: tuple[Annotated[float, Ge(0)], ...] = (1.0,),
) -> Tensor:
    """``Σ w_i F_i x_i / Σ w_i F_i``, entry by entry: the mode of the product of the models' Laplace posteriors.

    The Fishers enter as they are: that one model's are larger than another's says that it is surer of its parameters.
    Models whose scales cannot be compared are balanced by ``weight``. A floor of 1.4e-14 of the tensor's largest entry
    is added, so that parameters on which no model depends get the weighted average; the common scale has no effect.

    Args:
        tensors: of one shape.
        fishers: the diagonal Fisher information of each, of that shape; not negative.
        weight: one a model.

    Raises:
        InputError: all weights are 0.
    """
    weight_sum(weight)
    tensors = widened(*tensors)
    peak = max((float(one.max()) for one in fishers if one.numel()), default=0.0) or 1.0
    merged, whole = torch.zeros_like(tensors[0]), torch.zeros_like(tensors[0])
    for tensor, one, w in zip(tensors, fishers, weight, strict=True):
        share = w * ((one / peak).to(merged) + FLOOR)
        merged.addcmul_(tensor, share)
        whole += share
    return merged / whole
