"""The recipe that models and settings amount to, for a merge that is asked for without one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from cobasin.errors import InputError, shown
from cobasin.fusion.registry import find
from cobasin.recipe.recipe import Recipe


def of_models(
    models: Sequence[str],
    method: str,
    parameters: Mapping[str, Any],
    own: Mapping[str, Sequence[Any]],
    blocks: Mapping[str, Any],
) -> Recipe:
    """The recipe.

    Args:
        models: their names.
        method: how to merge them.
        parameters: of the method, for all models.
        own: parameters of which every model has one of its own, in the order of the models.
        blocks: all else that it says; None is left out.

    Raises:
        InputError: as `Recipe.of`.
    """
    each = [{key: values[i] for key, values in own.items()} for i in range(len(models))]
    content = {
        "merge_method": method,
        "models": [
            {"model": model} | ({"parameters": one} if one else {}) for model, one in zip(models, each, strict=True)
        ],
        "parameters": dict(parameters) or None,
        **blocks,
    }
    try:
        given = _plain({key: value for key, value in content.items() if value is not None})
    except RecursionError:
        raise InputError("merge: a list or mapping holds itself, or is nested too deeply") from None
    return Recipe.of(given, "merge")


def by_model(
    method: str, parameters: Mapping[str, Any], weights: Iterable[float] | None, count: int
) -> tuple[dict[str, Any], dict[str, Sequence[Any]]]:
    """The parameters of a method with one value for all models, and those with one for each.

    Raises:
        InputError: there are more values than models, or fewer.
    """
    parameters = {name.removesuffix("_"): value for name, value in parameters.items()}
    if weights is not None:
        if "weight" in parameters:
            raise InputError("weights and weight say the same; give one of them")
        parameters["weight"] = shares(weights, count)
    known = find(method).parameters
    common, own = dict[str, Any](), dict[str, Sequence[Any]]()
    for name, value in parameters.items():
        if not isinstance(value, (list, tuple)):
            common[name] = value
        elif name not in known or not known[name].each:
            common[name] = list(value)
        elif len(value) != count:
            raise InputError(f"{name}: {len(value)} values for {count} models; give one for each")
        else:
            own[name] = value
    return common, own


def shares(weights: Iterable[float], count: int) -> list[float]:
    """Weights, one a model.

    Raises:
        InputError: for another number of them, and for what are no numbers.
    """
    given: Any = weights
    try:
        given = list(weights)
        numbers = [float(weight) for weight in given]
    except (TypeError, ValueError):
        numbers = [math.nan]
    if isinstance(weights, str | Set | Mapping) or not all(map(math.isfinite, numbers)):
        raise InputError(f"weights {shown(given)}: expected finite numbers, in the order of the models")
    if len(numbers) != count:
        raise InputError(f"{len(numbers)} weights for {count} models; give one for each")
    return numbers


def _plain(content: Any) -> Any:
    """The same with Python's numbers in place of NumPy's, which a recipe does not know."""
    if isinstance(content, np.generic):
        return content.item()
    if isinstance(content, list):
        return [_plain(one) for one in content]
    return {key: _plain(one) for key, one in content.items()} if isinstance(content, dict) else content
