"""Merged models, and ensembles of unmerged ones, ready to run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.evaluation.running import build, cast_floats, instantiate
from cobasin.finding.match import Matched
from cobasin.merging.merge import Merge
from cobasin.symmetry.state import Lazy, State


class Ensemble:
    """The mean of what several models predict, called like one of them: of probabilities, or of numbers."""

    def __init__(self, models: Sequence[Any], task: str):
        self.models, self.task = models, task
        self.config, self.device, self.dtype = models[0].config, models[0].device, models[0].dtype

    def __call__(self, **inputs: Tensor) -> SimpleNamespace:
        """The logits of the mean."""
        logits = torch.stack([model(**inputs).logits for model in self.models])
        if self.task == "regression":
            return SimpleNamespace(logits=logits.mean(0))
        if self.task == "multilabel":
            return SimpleNamespace(logits=logits.double().sigmoid().mean(0).logit(1e-12))
        return SimpleNamespace(logits=logits.softmax(-1).mean(0).log())


def models_of(merged: Merge) -> Iterator[tuple[int | None, Any]]:
    """The merged models, ready to run, each with the position of the model whose head it has; None for a merged head.

    The body that they share is computed once.
    """
    if merged.recipe.head != "keep":
        yield None, instantiate(merged.checkpoint, torch.float32)
        return
    body: dict[str, Tensor] = {}
    for place, (checkpoint, typed) in enumerate(zip(merged.checkpoints, merged.matched.typed, strict=True)):
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
    states = matched.states
    if owner is None:
        return [model.derived(state, torch.float32) for model, state in zip(matched.typed, states, strict=True)]
    typed = matched.typed[owner]
    heads = set(typed.task_heads)

    def headed(state: State) -> State:
        return Lazy(typed, lambda name: states[owner][name] if name in heads else state[name])

    return [typed.derived(headed(state), torch.float32) for state in states]
