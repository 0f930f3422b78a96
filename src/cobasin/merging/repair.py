"""REPAIR: the statistics of an averaged model reset to those between its parents.

Averaged features that do not quite agree cancel: they vary less than either parent's, the more so with every layer.
Jordan et al., *REPAIR: REnormalizing Permuted Activations for Interpolation Repair* (ICLR 2023), rescale and shift
every channel, so that its mean and its deviation are interpolated from the parents' as the weights are. They put batch
norms into the network for that; a transformer has norms of its own, whose gains and offsets take the correction. Of a
norm without an offset it is the root mean square that is interpolated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cobasin.errors import InputError
from cobasin.learning.descent import Data
from cobasin.progress import Count, silent
from cobasin.statistics.modules import writing
from cobasin.statistics.moments import Moments, moments
from cobasin.statistics.rows import TokenCalls, token_calls

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Norms = Mapping[str, list[nn.Module]]

LARGEST = 100.0  # a channel that varies less than a hundredth of what it should holds nothing but noise


def norms_of(holders: Norms) -> Norms:
    """The norms among the modules that hold a weight, by its spec name: their weight is a vector."""
    return {name: modules for name, modules in holders.items() if modules[0].weight.ndim == 1}


def repair(
    models: Sequence[PreTrainedModel],
    norms: Sequence[Norms],
    batches: Data,
    shares: Callable[[str], Sequence[float]],
    plus_one: frozenset[str] = frozenset(),
    progress: Count = silent,
) -> list[str]:
    """Reset the statistics of a model's norms, in place, to what is interpolated from its parents'.

    Norm by norm in the order in which a run comes to them, since a correction changes all that follows: each asks for a
    run of the model, up to there, on all batches.

    Args:
        models: the merged model, then its parents in the basis in which they were merged.
        norms: of each its norms by spec name, see `norms_of`.
        batches: inputs of the models, gone through again and again.
        shares: of the parents in a tensor of this name, one in all.
        plus_one: gains that are stored minus one.
        progress: called with the number of norms done, and of all.

    Returns:
        The norms that were corrected. Norms that do not see one vector a token (those of single heads, of tables of
        positions) stay as they are.

    Raises:
        InputError: there is none.
    """
    (merged, *parents), (own, *theirs) = models, norms
    inputs = next(iter(batches)).to(merged.device, merged.dtype).inputs
    calls: TokenCalls = token_calls(merged, inputs, partial(writing, own))
    order = [name for name in calls if any(calls[name])]
    if not order:
        raise InputError("repair: the models have no norm whose gain could take a correction; leave it out")
    wanted = [
        moments(parent, {name: found[name] for name in order}, calls, batches)
        for parent, found in zip(parents, theirs, strict=True)
    ]
    for done, name in enumerate(order, 1):
        target = Moments.between([one[name] for one in wanted], shares(name))
        _correct(own[name][0], moments(merged, {name: own[name]}, calls, batches)[name], target, int(name in plus_one))
        progress(done, len(order))
    return order


@torch.no_grad()
def _correct(norm: nn.Module, found: Moments, target: Moments, plus_one: int) -> None:
    """Give the outputs of a norm other statistics."""
    gain, offset = norm.weight, getattr(norm, "bias", None)
    assert isinstance(gain, Tensor)
    if offset is None:
        factor = _ratio(target.magnitude, found.magnitude)
    else:
        factor = _ratio(target.deviation, found.deviation)
        shift = target.mean - factor * found.mean
        offset.copy_(factor * offset.cpu().double() + shift)
    own = gain.cpu().double()
    gain.copy_(own + (factor - 1) * (own + plus_one))


def _ratio(target: Tensor, found: Tensor) -> Tensor:
    return torch.where(target < LARGEST * found, target / found, 1.0)
