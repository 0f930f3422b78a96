"""Which of the models of a merge gives a result what is not merged, and its vocabulary."""

from __future__ import annotations

from cobasin.recipe import Recipe


def owners(recipe: Recipe) -> list[int]:
    """Of every result, the position of the model that gives it its other files, its dtypes, and its task head."""
    names = recipe.referenced
    models = recipe.between if recipe.head == "keep" else [recipe.head or recipe.base_model or names[0]]
    return [names.index(name) for name in models]


def giver(recipe: Recipe) -> int | None:
    """The position of the model whose vocabulary the results have, extended by ``union``; None for each its own."""
    source = recipe.vocabulary
    if source is None:
        return None
    return owners(recipe)[0] if source == "union" else recipe.referenced.index(source)
