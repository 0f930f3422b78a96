"""The recipe that the arguments of `cobasin merge` name or amount to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Options:
    """The options of `cobasin merge` that say how to merge, which the command line describes."""

    method: str | None
    weights: str | None
    set: Sequence[str]
    seed: int | None
    base: str | None
    tokenizer_source: str | None
    match: str | None
    anchor: str | None
    device: str | None
    head_from: str | None
    keep_heads: bool
    repair: bool
    heal: int | None
    data: str | None

    @property
    def for_models(self) -> dict[str, tuple[Any, str]]:
        """Those that go with models, None where they are not given; and where a recipe says what they do."""
        return {
            "--weights": (self.weights, "parameters"),
            "--set": (self.set or None, "parameters"),
            "--seed": (self.seed, "seed"),
            "--method": (self.method, "merge_method"),
            "--base": (self.base, "base_model"),
            "--tokenizer-source": (self.tokenizer_source, "tokenizer_source"),
            "--repair": (self.repair or None, "repair"),
            "--heal": (self.heal, "heal"),
            "--data": (self.data, "repair or heal"),
        }


def recipe_of(models: list[str], options: Options) -> Recipe:
    """The recipe that is named, with what options change in it; or that of models and options.

    Raises:
        InputError: for a recipe that cannot be read, and options that do not go with it or each other.
    """
    files = [model for model in models if model.lower().endswith((".yaml", ".yml")) and not Path(model).is_dir()]
    if not files:
        return _of_options(models, options)
    if len(models) > 1:
        raise InputError(
            f"{files[0]} is a recipe: it names all models itself, so give none beside it; "
            "the folder to write is --out FOLDER"
        )
    for option, (value, place) in options.for_models.items():
        if value is not None:
            raise InputError(f"{option} goes with models; in {files[0]} write it under {place}")
    recipe = Recipe.read(files[0])
    return recipe.changed(_match(options), _head(options, recipe.referenced))


def _of_options(models: list[str], options: Options) -> Recipe:
    base = options.base
    if len(models) + (base is not None) < 2:
        raise InputError(f"a merge needs two models or more, got {len(models)}; a recipe is a file named *.yaml")
    if options.weights is not None and any(one.partition("=")[0].strip() == "weight" for one in options.set):
        raise InputError("--weights and --set weight=...: one of the two")
    method = find("linear" if options.method is None else options.method)
    parameters = _settings(options.set)
    if method.statistics is not None:
        other = "" if options.data is None else "; --data is what --repair and --heal read"
        raise InputError(f"{method.name} needs data: write a recipe, with statistics: {{data: {{path: FILE}}}}{other}")
    if method.needs_base and base is None:
        raise InputError(f"{method.name} merges what the models have learned since their base: name it with --base")
    own = {} if options.weights is None else {"weight": shares(_numbers(options.weights), len(models))}
    blocks = {
        "match": {"symmetry": "full"} | _match(options),
        "seed": options.seed,
        "base_model": base,
        "tokenizer_source": options.tokenizer_source,
        "head": _head(options, [*models, *([] if base is None else [base])]),
    }
    return of_models(models, method.name, parameters, own, blocks | _after(options))


def _after(options: Options) -> dict[str, Any]:
    """What follows the merge, and its data."""
    content: dict[str, Any] = {"repair": {}} if options.repair else {}
    content |= {} if options.heal is None else {"heal": {"steps": options.heal}}
    if options.data is not None:
        if not content:
            raise InputError("--data is what --repair and --heal read: give one of them, or leave it out")
        content[next(iter(content))]["data"] = data_config(options.data)
    return content


def _match(options: Options) -> dict[str, str]:
    said = {"symmetry": options.match, "anchor": options.anchor, "device": options.device}
    return {key: value for key, value in said.items() if value is not None}


def _head(options: Options, models: list[str]) -> str | None:
    if options.head_from is None:
        return "keep" if options.keep_heads else None
    if options.keep_heads:
        raise InputError("--keep-heads and --head-from: one of the two")
    model = next((model for model in models if same_model(model, options.head_from)), None)
    if model is None:
        wanted = ", ".join(models)
        raise InputError(f"--head-from {options.head_from}: expected one of the models to merge: {wanted}")
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
