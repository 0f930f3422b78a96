"""Merged models, and ensembles of unmerged ones, ready to run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.running import build, cast_floats, instantiate
from cobasin.finding.match import Matched
from cobasin.merging.merge import Merge
from cobasin.merging.owners import owners
from cobasin.symmetry.state import Lazy, State


def models_of(merged: Merge) -> Iterator[tuple[int | None, Any]]:
    """The merged models, ready to run, each with the position of the model whose head it has; None for a merged head.

    The body that they share is computed once.
    """
    if merged.recipe.head != "keep":
        yield None, instantiate(merged.checkpoint, torch.float32)
        return
    body: dict[str, Tensor] = {}
    for place, checkpoint in zip(owners(merged.recipe), merged.checkpoints, strict=True):  # a base may have none
        typed = merged.matched.typed[place]
        heads = {typed.disk_names[name] for name in typed.task_heads}
        state = {name: body[name] if name in body else checkpoint[name] for name in checkpoint}
        body = {name: tensor for name, tensor in state.items() if name not in heads}
        yield (
            place,
            build(
                checkpoint, {name: cast_floats(tensor, torch.float32) for name, tensor in state.items()}, torch.float32
            ),
        )


def with_head(matched: Matched, owner: int | None) -> list[Checkpoint]:
    """The matched models, all with the head of one of them, or each with its own."""
    if owner is None:
        return matched.ends
    states, typed = matched.states, matched.typed[owner]
    heads = set(typed.task_heads)

    def headed(state: State) -> State:
        return Lazy(typed, lambda name: states[owner][name] if name in heads else state[name])

    return [typed.derived(headed(state), torch.float32) for state in states]
