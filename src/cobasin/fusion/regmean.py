"""RegMean: the linear map whose outputs are nearest to those of the models, each on its own inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from cobasin.errors import InputError
from cobasin.fusion.arithmetic import widened
from cobasin.fusion.average import linear
from cobasin.fusion.registry import method
from cobasin.statistics.grams import InputGram

RIDGE = 1e-10
"""This part of the diagonal is added to it, so that a singular sum can be solved; data are never so exact."""


@method("regmean", reference="Jin et al., Dataless knowledge fusion, ICLR 2023, Eq. 2", statistics="grams")
@method("regmean++", reference="Nguyen et al., RegMean++, 2025", statistics="grams_in_turn")
def regmean(
    tensors: Sequence[Tensor],
    grams: Sequence[InputGram],
    *,
    weight: tuple[Annotated[float, Ge(0)], ...] = (1.0,),
    reduce_nondiag: Annotated[float, Ge(0), Le(1)] = 0.9,
) -> Tensor:
    """Minimises ``Σ w_i |(W - W_i) X_i|²`` over W, from the Grams of the inputs X_i.

    ``W = (Σ w_i W_i G_i)(Σ w_i G_i)⁻¹`` for ``W: [out, in]``, the off-diagonal entries of every Gram G multiplied by
    ``reduce_nondiag``. It is solved in float64, as a correction to the weighted average: an input that never fires
    keeps the average's weights, and where inputs depend on each other (only with ``reduce_nondiag`` 1) the solution
    is the one with the smallest correction, inputs counting by their mean square.

    RegMean++ is the same function, of Grams that are collected layer by layer on the model merged so far.

    Args:
        tensors: weights of linear maps, [out, in] or [in, out], as the Grams say.
        grams: one a model.
        weight: one a model.
        reduce_nondiag: the paper's α, in [0, 1].

    Raises:
        InputError: all weights are 0; the Grams are not those of inputs.
    """
    tensors = widened(*tensors)
    axis = grams[0].axis
    maps = [tensor.double().movedim(axis, -1) for tensor in tensors]
    mean = linear(maps, weight=weight)
    whole, pull = torch.zeros_like(grams[0].matrix[:-1, :-1]).to(mean), torch.zeros_like(mean)
    for one, gram, share in zip(maps, grams, weight, strict=True):
        reduced = share * reduce_nondiag * gram.matrix[:-1, :-1].to(mean)
        reduced.diagonal().copy_(share * gram.matrix.diagonal()[:-1])
        whole += reduced
        pull += (one - mean) @ reduced
    return (mean + _divided(pull, whole)).movedim(-1, axis).to(tensors[0].dtype)


def _divided(pull: Tensor, whole: Tensor) -> Tensor:
    """X with ``X whole = pull``, for a positive semi-definite ``whole``; scaled to unit diagonal first."""
    energy = whole.diagonal()
    scale = torch.where(energy > 0, energy.rsqrt(), 0.0)
    correlation = scale[:, None] * whole * scale
    correlation.diagonal().fill_(1 + RIDGE)
    factor, failed = torch.linalg.cholesky_ex(correlation)
    if failed:
        raise InputError(
            "RegMean: the Grams are not positive semi-definite, so not those of inputs; collect them again, "
            "or set reduce_nondiag below 1"
        )
    return torch.cholesky_solve((pull * scale).mT, factor).mT * scale
