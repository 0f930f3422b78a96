"""The weighted average."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cobasin.fusion.arithmetic import weight_sum, widened
from cobasin.fusion.registry import method


@method("linear", reference="Wortsman et al., Model soups, ICML 2022", elementwise=True, linear=True)
def linear(tensors: Sequence[Tensor], *, weight: tuple[float, ...] = (1.0,), normalize: bool = True) -> Tensor:
    """``Σ w_i x_i``, divided by ``Σ w_i`` with ``normalize``; in float32 or better.

    Args:
        tensors: of one shape.
        weight: one a model.
        normalize: whether the weights are divided by their sum.

    Raises:
        InputError: that sum is 0.
    """
    total = weight_sum(weight) if normalize else 1.0
    tensors = widened(*tensors)
    result = tensors[0] * (weight[0] / total)
    for tensor, share in zip(tensors[1:], weight[1:], strict=True):
        result.add_(tensor, alpha=share / total)
    return result
