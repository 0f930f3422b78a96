"""The merged checkpoints: each in the place of one of the parents, whose files and dtypes it has."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.typed import Typed
from cobasin.merging.fused import Fusion
from cobasin.recipe import Recipe
from cobasin.symmetry.state import Lazy, State


def result(recipe: Recipe, typed: Typed, state: State) -> Checkpoint:
    """A result in the place of one of its parents: its tensors are taken from ``state`` as they are asked for."""
    place = replace(typed.checkpoint, label="the merged model")
    return replace(typed, checkpoint=place).derived(state, _dtype(recipe))


def merged_state(fusion: Fusion, owner: int, own_head: bool, narrow: bool) -> State:
    """The merged tensors in the place of one of the parents, with that one's task head or the merged one.

    They are in float32 or better; ``narrow`` ones are in the dtype of the result where they are fused slice by slice.
    """
    typed = fusion.typed[owner]
    heads = set(typed.task_heads) if own_head else set()
    dtypes: dict[str, set[torch.dtype]] = {}
    for own, disk in typed.disk_names.items() if narrow else ():
        name, _ = typed.spec.file_entries[own]
        dtypes.setdefault(name, set()).add(_dtype(fusion.recipe) or typed.checkpoint.headers[disk].dtype)

    def dtype(name: str) -> torch.dtype | None:
        found = dtypes.get(name, ())
        return next(iter(found)) if len(found) == 1 else None

    def tensor(name: str) -> Tensor:
        return fusion.states[owner][name] if name in heads else fusion.tensor(name, dtype(name))

    def part(name: str) -> Tensor:
        return fusion.part(name, dtype(typed.spec.file_entries[name][0]))

    return Lazy(typed, tensor, part if fusion.unmoved else None)


def _dtype(recipe: Recipe) -> torch.dtype | None:
    """The dtype that all tensors of the result have, where the recipe names one."""
    name = recipe.out_dtype or recipe.dtype
    return None if name is None else getattr(torch, name)
