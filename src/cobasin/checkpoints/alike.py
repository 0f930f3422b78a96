"""Models made alike in what is no part of their functions: what they leave unread, how they are laid out, and tied."""

from __future__ import annotations

import re
from collections.abc import Iterable

from cobasin.checkpoints.layouts import laid_out_as
from cobasin.checkpoints.typed import Typed


def alike(models: list[Typed]) -> list[Typed]:
    """The models, `equally_stored` and `equally_tied`."""
    return equally_tied(equally_stored(models))


def equally_stored(models: list[Typed]) -> list[Typed]:
    """With the same tensors, laid out as the first's.

    What only some have is left out where their class does not read it, as the heads of pre-training, and copied where
    nothing moves it, as the pooler of a bare model.
    """
    common = set.intersection(*({*model.spec.entries} for model in models))
    first, *others = [model.without({*model.spec.unread_names} - common) for model in models]
    models = [first, *(laid_out_as(model, first.spec) for model in others)]
    common = set.intersection(*({*model.spec.entries} for model in models))
    return [model.copying({*model.spec.entries} - common) for model in models]


def omissions(models: Iterable[Typed]) -> list[str]:
    """Notes on what was left out of them, and on what is no longer right."""
    found = []
    for model in models:
        label = model.checkpoint.label
        if model.left_out:
            found.append(f"{label}: {', '.join(model.left_out)} left out: not read by its class, and not in all models")
        if model.copied:
            found.append(f"{label}: {', '.join(model.copied)} neither compared nor merged: not in all models")
        if model.lacking:
            found.append(f"{label}: {', '.join(model.lacking)} taken for zero: it has none of these for this task")
        if model.unknown:
            found.append(f"{label}: its vocabulary lacks {len(model.unknown)} of {model.spec.sizes['vocab']} tokens")
        patterns = [re.compile(rf"(.*\.)?{pattern}") for pattern in model.spec.further]
        if further := sum(any(one.fullmatch(name) for one in patterns) for name in model.checkpoint.headers):
            found.append(
                f"{label}: {further} tensors of layers that predict further tokens, which its class does not read, are "
                "copied as they are: they no longer fit a stream that has moved"
            )
    return found


def equally_tied(models: list[Typed]) -> list[Typed]:
    """With all output heads untied, unless all are tied alike."""
    if all(model.spec.tied == models[0].spec.tied for model in models):
        return models
    return [model.untied() for model in models]
