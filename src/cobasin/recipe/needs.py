"""The data that a method needs, and whether a recipe names it."""

from __future__ import annotations

from cobasin.errors import InputError
from cobasin.fusion.registry import Method
from cobasin.recipe.blocks import Statistics

_NEEDS = {
    "fisher": "the Fisher information of its models on data",
    "grams": "the Grams of the inputs of its models' linear maps on data",
    "grams_in_turn": "the Grams of the inputs of its models' linear maps on data",
    "activations": "the activations of its models on data",
}


def check_statistics(method: Method, given: Statistics | None, models: int) -> list[str]:
    """Check that there is data where the method needs it, for so many models; return notes on what has no effect.

    Raises:
        InputError: there is none, or that of other models.
    """
    if method.statistics is None:
        return [] if given is None else [f"statistics have no effect: {method.name} needs none"]
    if given is None or given.data is None:
        raise InputError(
            f"merge_method {method.name} needs {_NEEDS[method.statistics]}: "
            "add statistics: {data: {path: FILE}} to the recipe"
        )
    if isinstance(given.data, list) and len(given.data) != models:
        raise InputError(
            f"statistics.data lists {len(given.data)} data sets for {models} models; give one for all, "
            "or one for each in their order"
        )
    notes = []
    if method.statistics != "fisher" and "fisher" in given.model_fields_set:
        notes.append(f"statistics.fisher has no effect: {method.name} reads no Fisher information")
    if method.statistics == "grams_in_turn" and given.cache is not None:
        notes.append(f"statistics.cache has no effect: those of {method.name} depend on all models")
    return notes
