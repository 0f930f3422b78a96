"""Which models are fused, and which parameters hold for which tensor."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import product
from typing import Any, Literal

from cobasin.errors import InputError, nearest
from cobasin.fusion.registry import REQUIRED, Method, Parameter
from cobasin.recipe.blocks import LAYER_BY_LAYER, Module
from cobasin.recipe.parts import Given, parts_of, same_model, stacked_parts
from cobasin.recipe.settings import Scope, Setting, read_settings, resolve


def without_effect(method: str, name: str, value: Any) -> bool:
    """What mergekit's recipes may say and its method does nothing with, or what saves it memory."""
    if name == "int8_mask" or (method == "slerp" and name == "embed_slerp" and value is True):
        return True
    if method == "multislerp":  # nothing is divided by what may be 0; the sum of weights has normalize_weights
        return name in ("eps", "normalize")
    if method in ("sce", "model_stock", "arcee_fusion"):  # published recipes give them what task vectors share
        return name in ("weight", "density", "normalize", "rescale", "lambda")
    if method == "task_arithmetic":  # mergekit's methods of task vectors all take these, and this one drops no entries
        return name in ("density", "rescale")
    return method in ("ties", "breadcrumbs", "breadcrumbs_ties") and name == "rescale" and value is False


class Layout:
    """The models and parameters of a recipe, put in order for its method.

    Attributes:
        models: as listed; those whose layers are stacked, each once.
        base: for a method that is given one.
        fused: the positions of the models whose tensors are fused, among those of a part.
        notes: what has no effect.
    """

    def __init__(self, method: Method, body: Module, shared: Given, base_model: str | None):
        """Read all parameters.

        Args:
            method: whose parameters they are.
            body: models or slices, with parameters of their own.
            shared: the parameters of the whole recipe.
            base_model: if one is named.

        Raises:
            InputError: for models that the method cannot take, parameters that it does not have, bad values,
                required ones without any.
        """
        self.method = method
        self.notes: list[str] = []
        self._parts = stacked_parts(body) if method.stacks else parts_of(body)
        self.models = self._parts[0].models
        if method.stacks:
            self.models = list(dict.fromkeys(part.models[0] for part in self._parts))
        self.base, self.fused = self._roles(base_model)
        common = [self._read(body.parameters or {}, ""), self._read(shared, "")]
        self._scopes = []
        """For every part: the settings of each model, then those that all models share, strongest first."""
        for part in self._parts:
            own = [
                self._read(given, f" of {model}{part.label}", "model")
                for model, given in zip(part.models, part.own, strict=True)
            ]
            self._scopes.append((own, [self._read(part.shared, part.label, "slice"), *common]))
        self._check_required()

    @property
    def inputs(self) -> list[str]:
        """The models whose tensors are fused, in the order in which the method is given them; or are stacked."""
        return self.models if self.method.stacks else [self.models[i] for i in self.fused]

    @property
    def referenced(self) -> list[str]:
        """All models, each once; a base that is not listed comes last."""
        return list(dict.fromkeys([*self.models, *([] if self.base is None else [self.base])]))

    @property
    def _settings(self) -> list[Setting]:
        scopes = [scope for own, shared in self._scopes for scope in (*own, *shared)]
        return [setting for scope in scopes for found in scope.values() for setting in found]

    def _roles(self, base_model: str | None) -> tuple[str | None, list[int]]:
        """The base that the method is given, as listed, and the positions of the models that are fused."""
        method, positions = self.method, list(range(len(self.models)))
        if base_model is None and method.first_is_base:
            base_model = self.models[0]
        bases = [i for i in positions if base_model is not None and same_model(self.models[i], base_model)]
        others = [i for i in positions if i not in bases]
        if method.takes_base:
            if base_model is None and method.needs_base:
                raise InputError(f"base_model is missing: {method.name} merges what the models have learned since it")
            base, fused = self.models[bases[0]] if bases else base_model, others
        elif base_model is not None and not bases:
            use = "take layers of it" if method.stacks else "list it under models to merge it"
            raise InputError(
                f"base_model {base_model!r} is none of the models, and {method.name} has no base; {use}, or leave it "
                "out"
            )
        else:
            base, fused = None, [0] if method.stacks else positions
        self._check_count(len(fused), base)
        if repeated := sorted({name for name in self.models if self.models.count(name) > 1}):
            self.notes.append(f"{', '.join(repeated)} is listed more than once, and counts as often")
        if method.takes_base and (names := {name for part in self._parts for i in bases for name in part.own[i]}):
            self.notes.append(f"{base} is the base: its own parameters ({', '.join(sorted(names))}) have no effect")
        return base, fused

    def _check_count(self, count: int, base: str | None) -> None:
        """Refuse too few or too many models."""
        fewest, most = self.method.fewest, self.method.most
        if count < fewest or (most is not None and count > most):
            wanted = f"{fewest}" if fewest == most else f"{fewest} or more" if most is None else f"{fewest} to {most}"
            beside = f" beside the base ({base})" if base else ""
            raise InputError(f"{self.method.name} merges {wanted} model(s){beside}, got {count}")

    def _read(self, given: Given, of: str, place: Literal["model", "slice", "recipe"] = "recipe") -> Scope:
        """The parameters that one place of the recipe names."""
        method, scope = self.method, {}
        for name, value in given.items():
            parameter = method.parameters.get(name)
            if parameter is None:
                if not without_effect(method.name, name, value):
                    known = nearest(name, method.parameters)
                    raise InputError(f"{name}{of}: {method.name} has no such parameter{known}")
                if (note := f"{name} has no effect") not in self.notes:
                    self.notes.append(note)
                continue
            if place == "model" and not parameter.each:
                raise InputError(
                    f"{name}{of}: {method.name} has one {name} for all models; write it under the recipe's parameters"
                )
            if parameter.whole and (place == "slice" or isinstance(value, (list, Mapping))):
                raise InputError(
                    f"{name}{of}: {method.name} has one {name} for the whole merge; write a single value under the "
                    "recipe's parameters"
                )
            scope[name] = read_settings(parameter, value, name + of)
        return scope

    def _check_required(self) -> None:
        """Refuse a required parameter that is nowhere given a value."""
        required = [parameter for parameter in self.method.parameters.values() if parameter.default is REQUIRED]
        for parameter, (own, shared), i in product(required, self._scopes, self.fused):
            given = [own[i], *shared] if parameter.each else shared
            if not any(parameter.name in scope for scope in given):
                raise InputError(
                    f"{self._needs(parameter, i)}; write it under parameters"
                    + (" of that model, or of the recipe for all" if parameter.each else "")
                    + f", or --set {parameter.name}=VALUE"
                )

    def _needs(self, parameter: Parameter, i: int) -> str:
        return f"{self.method.name} needs {parameter.name}" + (f" of {self.models[i]}" if parameter.each else "")

    def check_layers(self, count: int) -> None:
        """Raise InputError unless the slices, if any, are all layers of a model with that many; some, to be stacked."""
        if self.method.stacks:
            for i, part in enumerate(self._parts):
                if part.stop is not None and (stop := part.start + part.stop - part.first) > count:
                    raise InputError(
                        f"slices[{i}].layer_range [{part.start}, {stop}]: {part.models[0]} has {count} layers; the "
                        "second number is exclusive"
                    )
            return
        stop = self._parts[-1].stop
        if stop not in (None, count):
            raise InputError(
                f"the slices end at layer {stop}, and the models have {count} layers: {LAYER_BY_LAYER}, all of them"
            )

    def check_named(self, layers: bool) -> None:
        """Raise InputError where the recipe says more of layers than names tell: ``layers``, whether they tell any."""
        sliced = self._parts[0].stop is not None
        if len(self._parts) > 1:
            raise InputError(
                "slices: the names of tensors do not tell which come before the layers and which behind; give "
                "gradients or filters"
            )
        if not layers and (sliced or any(len(setting.values) > 1 for setting in self._settings)):
            raise InputError(
                f"{'slices' if sliced else 'gradients'}: the names of tensors do not tell the layers; give filters"
            )

    def stacked(self, count: int) -> list[tuple[str, int]]:
        """Of every layer that is stacked the model, of so many layers, and which of these it is."""
        lengths = [(count if part.stop is None else part.stop) - part.first for part in self._parts]
        return [
            (part.models[0], part.start + i)
            for part, length in zip(self._parts, lengths, strict=True)
            for i in range(length)
        ]

    def parameters_of(self, name: str, layer: int | None, layers: int, after_layers: bool) -> dict[str, Any]:
        """See `Recipe.parameters_of`."""
        part, t = self._place(layer, layers, after_layers)
        own, shared = self._scopes[part]

        def value(parameter: Parameter, i: int) -> Any:
            found = resolve(parameter, [own[i], *shared] if parameter.each else shared, name, t)
            if found is REQUIRED:
                raise InputError(
                    f"{self._needs(parameter, i)} for {name}: no filter applies; add an entry without a filter"
                )
            return found

        return {
            key: tuple(value(parameter, i) for i in self.fused) if parameter.each else value(parameter, self.fused[0])
            for key, parameter in self.method.parameters.items()
        }

    def idle_filters(self, names: Collection[str]) -> list[str]:
        """The filters that let no tensor of these on-disk names through."""
        idle = [setting.filter for setting in self._settings if not any(map(setting.applies, names))]
        return list(dict.fromkeys(filter(None, idle)))

    def _place(self, layer: int | None, layers: int, after_layers: bool) -> tuple[int, float]:
        """The part that a tensor belongs to, and its position there, 0 to 1."""
        if layer is None:
            return (len(self._parts) - 1 if after_layers else 0), 0.0
        for i, part in enumerate(self._parts):
            stop = layers if part.stop is None else part.stop
            if layer < stop:
                count = stop - part.first
                return i, (layer - part.first) / (count - 1) if count > 1 else 1.0
        raise ValueError(f"layer {layer} is beyond the slices")


def one_base(body: Module, base_model: str | None) -> str | None:
    """The base model of a recipe, which slices may name, too.

    Raises:
        InputError: they name two.
    """
    for i, one in enumerate(body.slices or ()):
        if one.base_model is None:
            continue
        if base_model is not None and not same_model(one.base_model, base_model):
            raise InputError(f"slices[{i}].base_model {one.base_model!r}: there is one base, {base_model!r}")
        base_model = one.base_model
    return base_model
