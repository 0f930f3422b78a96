"""Two models on the same inputs: what their linear maps read and write, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cobasin.errors import InputError
from cobasin.statistics.modules import reading, writing
from cobasin.statistics.rows import Tokens, row_count

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ROWS = 16  # that a model runs on: what all its maps read and write is held


@torch.no_grad()
def joint_activations(
    models: Sequence[PreTrainedModel],
    maps: Sequence[Mapping[str, nn.Module]],
    batches: Iterable[Mapping[str, Tensor]],
) -> dict[str, tuple[Tensor, Tensor]]:
    """The inputs (``name:in``) and outputs (``name:out``) of the linear maps of two models, centred over tokens.

    Inner products within and between the two are all that is kept of them: of d columns in each 2d rows at most,
    however many tokens there are.

    Args:
        models: two of one architecture.
        maps: of each its linear maps by name.
        batches: keyword arguments of the models. Padding does not count.

    Returns:
        Two tensors ``[rows, d]`` for every map that both have, on the CPU.

    Raises:
        InputError: the models overflow on these inputs.
    """
    shared = [name for name in maps[0] if name in maps[1]]
    sums, near_mean = dict[str, Tensor](), dict[str, Tensor]()
    for batch in _pieces(batches):
        a, b = (
            _run(model, {name: own[name] for name in shared}, batch) for model, own in zip(models, maps, strict=True)
        )
        for name in a.keys() & b.keys():
            if a[name].shape != b[name].shape:  # experts choose their tokens
                continue
            both = torch.cat([a[name].new_ones(len(a[name]), 1), a[name], b[name]], 1)
            if name not in sums:
                # no variance is lost behind the decimals of a mean that is far larger
                near_mean[name] = torch.cat([both.new_zeros(1), both[:, 1:].mean(0)])
                sums[name] = both.new_zeros(both.shape[1], both.shape[1])
            both -= near_mean[name]
            sums[name].addmm_(both.mT, both)
    return {name: _centred(name, sums.pop(name).cpu()) for name in sorted(sums)}


def _pieces(batches: Iterable[Mapping[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """The same rows in pieces of `_ROWS` at most, none of a single row that was not alone."""
    for batch in batches:
        count = -(-row_count(batch) // _ROWS)
        parts = zip(*(x.tensor_split(count) for x in batch.values()), strict=True)
        yield from (dict(zip(batch, part, strict=True)) for part in parts)


def _centred(name: str, total: Tensor) -> tuple[Tensor, Tensor]:
    """Of tokens x the rows that have the inner products of the centred ones; told by ``Σ x̃ x̃ᵀ`` with x̃ = (1, x)."""
    from scipy.linalg import get_lapack_funcs  # dear to import, and matching by weights never needs it

    if not total.isfinite().all():
        weight = name.rpartition(":")[0]
        raise InputError(f"activations of {weight}: have NaN or infinite values; the models overflow on this data")
    rounding, exact = len(total) * torch.finfo(total.dtype).eps, total.double()
    gram = exact[1:, 1:] - exact[1:, :1] * (exact[:1, 1:] / exact[0, 0])
    size = gram.diagonal().clamp_min(torch.finfo(gram.dtype).tiny).sqrt()
    # pivoted Cholesky, as columns may depend on each other: what rounding has left of them is no row
    (pstrf,) = get_lapack_funcs(["pstrf"], dtype="float64")
    factor, order, rank, _ = pstrf((gram / size / size[:, None]).numpy(), tol=rounding)
    rows = torch.zeros(rank, len(gram), dtype=gram.dtype)
    rows[:, torch.from_numpy(order).long() - 1] = torch.from_numpy(factor[:rank]).triu()
    source, anchor = (rows * size).to(total.dtype).tensor_split(2, 1)
    return source, anchor


def _run(model: PreTrainedModel, maps: Mapping[str, nn.Module], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the maps read and write in one run, ``[tokens, n]``; several calls of a map one after the other."""
    tokens = Tokens(batch)
    kept: dict[str, list[Tensor]] = {}

    def keep(side: str, name: str, x: Tensor) -> None:
        kept.setdefault(f"{name}:{side}", []).append(tokens.counted(x))

    with (
        reading(maps, lambda name, x: keep("in", name, x)),
        writing({name: [module] for name, module in maps.items()}, lambda name, y: keep("out", name, y)),
    ):
        model(**batch)
    return {name: x for name, parts in kept.items() if len(x := torch.cat(parts))}
