"""Two models on the same inputs: what their linear maps read and write, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cobasin.statistics.modules import reading, writing
from cobasin.statistics.rows import Tokens, row_count

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_FULL = 2  # times as many rows as columns: time to make it short
_ROWS = 16  # that a model runs on: what all its maps read and write is held


@torch.no_grad()
def joint_activations(
    models: Sequence[PreTrainedModel],
    maps: Sequence[Mapping[str, nn.Module]],
    batches: Iterable[Mapping[str, Tensor]],
) -> dict[str, tuple[Tensor, Tensor]]:
    """The inputs (``name:in``) and outputs (``name:out``) of the linear maps of two models, centred over tokens.

    Inner products within and between the two are all that is kept of them: of d columns in each as many rows as there
    are tokens, but at most 2d (on the way 4d).

    Args:
        models: two of one architecture.
        maps: of each its linear maps by name.
        batches: keyword arguments of the models. Padding does not count.

    Returns:
        Two tensors ``[rows, d]`` for every map that both have.
    """
    shared = [name for name in maps[0] if name in maps[1]]
    found: dict[str, Tensor] = {}
    for batch in _pieces(batches):
        a, b = (
            _run(model, {name: own[name] for name in shared}, batch) for model, own in zip(models, maps, strict=True)
        )
        for name in a.keys() & b.keys():
            if a[name].shape != b[name].shape:  # experts choose their tokens
                continue
            rows = torch.cat([a[name].new_ones(len(a[name]), 1), a[name], b[name]], 1)
            rows = torch.cat([found[name], rows]) if name in found else rows
            found[name] = _short(rows) if len(rows) > _FULL * rows.shape[1] else rows
    # The first column is of ones: without what lies along it the others are centred.
    short = {name: _short(found[name])[1:, 1:] for name in sorted(found)}
    return {name: (rows[:, : rows.shape[1] // 2], rows[:, rows.shape[1] // 2 :]) for name, rows in short.items()}


def _pieces(batches: Iterable[Mapping[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """The same rows in pieces of `_ROWS` at most, none of a single row that was not alone."""
    for batch in batches:
        count = -(-row_count(batch) // _ROWS)
        parts = zip(*(x.tensor_split(count) for x in batch.values()), strict=True)
        yield from (dict(zip(batch, part, strict=True)) for part in parts)


def _short(rows: Tensor) -> Tensor:
    """The same inner products of columns in at most as many rows as there are columns: R of ``rows = Q R``."""
    return torch.linalg.qr(rows, mode="r").R


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
