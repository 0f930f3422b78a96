"""What models are called in the recipe of a merge that is asked for in Python, where some are in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from cobasin.errors import InputError, shown, whole
from cobasin.recipe.parts import same_model

WORDS = ("keep", "medoid", "consensus", "base", "union")
"""What may stand in a recipe where the name of a model could."""


def as_path(model: str | Path) -> str:
    """A folder's name, told apart from the words that a recipe has in a model's place."""
    return f"./{model}" if str(model) in WORDS else str(model)


def same_given(model: Any, other: Any) -> bool:
    """Whether two models are one: a folder may be written in several ways."""
    paths = [str(one) for one in (model, other) if isinstance(one, (str, Path))]
    return model is other or (len(paths) == 2 and same_model(*paths))


def unlike(name: str, taken: Collection[str]) -> str:
    """A name for a model in memory, which no other one has."""
    while name in taken:
        name += "'"
    return name


def named(names: Sequence[str], model: str | int, what: str) -> str:
    """A model by its name, which may be given by its position; words stay as they are.

    Raises:
        InputError: there is no such position; ``what`` was asked for.
    """
    if isinstance(model, str):
        return model
    if not whole(model):
        raise InputError(f"{what} {shown(model)}: expected a word, or the position of a model, from 0 on")
    if not 0 <= model < len(names):
        raise InputError(f"{what} {model} does not exist: there are models 0 to {len(names) - 1}")
    return names[model]
