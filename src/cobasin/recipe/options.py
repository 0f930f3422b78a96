"""The recipe that the arguments of `cobasin merge` name or amount to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from cobasin.errors import InputError
from cobasin.fusion.registry import find
from cobasin.recipe.data_file import data_config
from cobasin.recipe.document import read_value
from cobasin.recipe.given import of_models, shares
from cobasin.recipe.parts import same_model
from cobasin.recipe.recipe import Recipe

# where a recipe says what these options do; and what the command line calls those of other names
_IN_RECIPE = {
    "weights": "parameters",
    "set": "parameters",
    **{key: key for key in ("merge_method", "base_model", "tokenizer_source", "repair", "heal")},
    "data": "repair or heal",
}
_OPTION = {"merge_method": "method", "base_model": "base", "tokenizer_source": "tokenizer-source"}


def recipe_of(models: list[str], options: Mapping[str, Any]) -> Recipe:
    """The recipe that is named, with what options change in it; or that of models and options.

    Raises:
        InputError: for a recipe that cannot be read, and options that do not go with it or each other.
    """
    files = [model for model in models if model.lower().endswith((".yaml", ".yml")) and not Path(model).is_dir()]
    if not files:
        return _of_options(models, options)
    if len(models) > 1:
        raise InputError(f"{files[0]} is a recipe: it names all models itself, so give nothing beside it")
    if clash := [name for name in _IN_RECIPE if name in options]:
        option = _OPTION.get(clash[0], clash[0])
        raise InputError(f"--{option} goes with models; in {files[0]} write it under {_IN_RECIPE[clash[0]]}")
    recipe = Recipe.read(files[0])
    return recipe.changed(_match(options), _head(options, recipe.referenced))


def _of_options(models: list[str], options: Mapping[str, Any]) -> Recipe:
    if len(models) + ("base_model" in options) < 2:
        raise InputError(f"a merge needs two models or more, got {len(models)}; a recipe is a file named *.yaml")
    if "weights" in options and any(one.partition("=")[0].strip() == "weight" for one in options.get("set", [])):
        raise InputError("--weights and --set weight=...: one of the two")
    method = find(options.get("merge_method", "linear"))
    parameters = _settings(options.get("set", []))
    if method.statistics is not None:
        raise InputError(f"{method.name} needs data: write a recipe, with statistics: {{data: {{path: FILE}}}}")
    if method.needs_base and "base_model" not in options:
        raise InputError(f"{method.name} merges what the models have learned since their base: name it with --base")
    own = {"weight": shares(_numbers(options["weights"]), len(models))} if "weights" in options else {}
    base = options.get("base_model")
    blocks = {
        "match": {"symmetry": "full"} | _match(options),
        "base_model": base,
        "tokenizer_source": options.get("tokenizer_source"),
        "head": _head(options, [*models, *([] if base is None else [base])]),
    }
    return of_models(models, method.name, parameters, own, blocks | _after(options))


def _after(options: Mapping[str, Any]) -> dict[str, Any]:
    """What follows the merge, and its data."""
    content: dict[str, Any] = {"repair": {}} if "repair" in options else {}
    content |= {"heal": {"steps": options["heal"]}} if "heal" in options else {}
    if "data" in options:
        if not content:
            raise InputError("--data is what --repair and --heal read: give one of them, or leave it out")
        content[next(iter(content))]["data"] = data_config(options["data"])
    return content


def _match(options: Mapping[str, Any]) -> dict[str, str]:
    names = {"match": "symmetry", "anchor": "anchor", "device": "device"}
    return {key: options[option] for option, key in names.items() if option in options}


def _head(options: Mapping[str, Any], models: list[str]) -> str | None:
    if "head_from" not in options:
        return "keep" if "keep_heads" in options else None
    if "keep_heads" in options:
        raise InputError("--keep-heads and --head-from: one of the two")
    model = next((model for model in models if same_model(model, options["head_from"])), None)
    if model is None:
        wanted = ", ".join(models)
        raise InputError(f"--head-from {options['head_from']}: expected one of the models to merge: {wanted}")
    return model


def _settings(texts: Iterable[str]) -> dict[str, Any]:
    """Parameters from the values of ``--set``."""
    found: dict[str, Any] = {}
    for text in texts:
        name, given, value = map(str.strip, text.partition("="))
        if not (name and given and value):
            raise InputError(f"--set {text}: expected NAME=VALUE, like density=0.5")
        if name in found:
            raise InputError(f"--set {text}: {name} is set twice")
        try:
            found[name] = read_value(value)
        except (yaml.YAMLError, RecursionError):  # the latter of a thousand brackets
            raise InputError(f"--set {text}: {value!r} is not a value") from None
    return found


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"weights {text!r}: expected numbers like 0.7,0.3") from None
