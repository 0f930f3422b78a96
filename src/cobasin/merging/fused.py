"""Fusing: the merged tensors, each computed from the models' as it is asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.fusion.arithmetic import by_slices
from cobasin.fusion.registry import Method, find
from cobasin.merging.stacked import stacked
from cobasin.merging.statistics import Statistics
from cobasin.recipe import Recipe
from cobasin.statistics.grams import InputGram
from cobasin.symmetry.canonical import Folded, Unfolded
from cobasin.symmetry.element import Element
from cobasin.symmetry.keys import after_layers, is_layer, layer_of
from cobasin.symmetry.state import Lazy, State

NO_WEIGHT = 1e-8  # what is left of weights that cancel, as a part of them
LARGEST = torch.finfo(torch.float32).max


class Fusion:
    """The merged tensors, by spec name, computed as they are asked for.

    A tensor that stacks several of the file is fused as these, one by one.
    """

    def __init__(
        self,
        recipe: Recipe,
        typed: Sequence[Typed],
        states: Sequence[State],
        statistics: Statistics,
        element: Element | None = None,
    ):
        """The models and their tensors; of layers that are stacked, the stack is in the place of each.

        ``element``: one of those that brought the models together, which knows the form and gauge they are in.
        """
        if recipe.method.stacks:
            typed = states = [stacked(recipe, typed, states)] * len(typed)
        self.recipe, self.typed, self.states, self.statistics = recipe, typed, states, statistics
        self.method, self.spec = recipe.method, typed[0].spec
        self.fused = [0] if recipe.method.stacks else recipe.positions
        self._form = element.form if element is not None and self.method.in_canonical_form else None
        self._compared = states
        if element is not None and self._form is not None:
            gauge = element.target or {}  # of a form that fixes nothing
            self._compared = [Folded(self._form, state) for state in states]
            self._written = Unfolded(self._form, Lazy(states[0], lambda name: self.from_tensors(name, None)), gauge)
        self.base = None if recipe.base is None else recipe.referenced.index(recipe.base)
        self._after_layers = after_layers(self.spec.entries)
        self._disk = typed[0].disk_names

    @property
    def parts(self) -> list[str]:
        """What is fused: the tensors of the file, but for those that repeat another one."""
        return [name for name in self.spec.file_entries if name not in self.spec.tied]

    @property
    def unmoved(self) -> bool:
        """Whether the models are as their files have them."""
        return all(isinstance(state, Typed) for state in self.states)

    @property
    def idle(self) -> list[str]:
        """Which filters have no effect."""
        names = self.recipe.idle_filters([self.on_disk(part) for part in self.parts])
        return [f"filter {name} is part of no tensor's name, and has no effect" for name in names]

    @property
    def notes(self) -> list[str]:
        """`idle`; which tensors are averaged, because nothing was collected for them."""
        collected = {"grams": self.statistics.grams, "fishers": self.statistics.fishers}
        left = [
            sum(self.spec.file_entries[name][0] not in found for name in self.parts)
            for kind, found in collected.items()
            if kind in self.method.inputs
        ]
        return self.idle + [f"{count} tensors have no statistics and are averaged" for count in left if count]

    @property
    def weights(self) -> list[float] | None:
        """The weights of the models where all tensors have the same, shares of 1 where models are averaged."""
        (first, *others) = self.parameters.values()
        if "weight" not in first or any(other["weight"] != first["weight"] for other in others):
            return None
        total = sum(first["weight"]) if self._averages(first) else 1.0
        return [one / total for one in first["weight"]]

    def check(self, heads: Collection[str]) -> None:
        """Check the parameters of all tensors, but for those of task ``heads`` that are not fused.

        Raises:
            InputError: where a tensor has no value of a parameter, or is averaged with weights that add up to nothing.
        """
        for part in self.parts:
            if part in heads:
                continue
            parameters = self.parameters[part]
            weight, disk = parameters.get("weight", ()), self.on_disk(part)
            if any(abs(one) > LARGEST for one in weight):
                raise InputError(f"{disk}: a weight of {max(weight, key=abs):g} is beyond float32")
            if self.method.check:
                try:
                    self.method.check(parameters)
                except InputError as error:
                    raise InputError(f"{disk}: {error}") from None
            if self._averages(parameters) and sum(weight) <= NO_WEIGHT * sum(map(abs, weight)):
                shown = ", ".join(f"{one:g}" for one in weight)
                raise InputError(
                    f"{disk}: the weights {shown} sum to {sum(weight):g}; expected a positive sum"
                    + (", or normalize: false" if "normalize" in parameters else "")
                )

    @cached_property
    def parameters(self) -> dict[str, dict[str, Any]]:
        """The method's parameters for every tensor that is fused, by its spec name."""
        return {part: self._parameters_of(part) for part in self.parts}

    def _parameters_of(self, part: str) -> dict[str, Any]:
        name, _ = self.spec.file_entries[part]
        index = self.spec.entries[name].index
        layers = next((self.spec.sizes[space] for space in index if is_layer(space)), 1)
        return self.recipe.parameters_of(self.on_disk(part), layer_of(index), layers, name in self._after_layers)

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """One merged tensor, in float32 or better; in ``dtype``, if given, where it is fused slice by slice."""
        name = self.spec.tied.get(name, name)
        if self._form is not None and name in self._form.changed:
            return self._written[name]
        return self.from_tensors(name, self.statistics.grams.get(name), dtype)

    def part(self, part: str, dtype: torch.dtype | None = None) -> Tensor:
        """A merged tensor of the file that is one of a stack, of models whose tensors nothing moves; see `tensor`."""
        name, place = self.spec.file_entries[part]
        assert place is not None
        given = {
            "tensors": [self.typed[i].part(part) for i in self.fused],
            "base": None if self.base is None else self.typed[self.base].part(part),
            **_within(self._collected(name), place),
        }
        return self._fused(part, given, dtype)

    def _collected(self, name: str) -> dict[str, Any]:
        return {"fishers": self.statistics.fishers.get(name), "grams": self.statistics.grams.get(name)}

    def from_tensors(self, name: str, grams: list[InputGram] | None, dtype: torch.dtype | None = None) -> Tensor:
        """One merged tensor, given the Grams of its inputs (None: it has none)."""
        given = {
            "tensors": [self._compared[i][name] for i in self.fused],
            "base": None if self.base is None else self._compared[self.base][name],
            **self._collected(name),
            "grams": grams,
        }
        stack = self.spec.entries[name].stack
        if not stack:
            return self._fused(name, given, dtype)
        return torch.stack([self._fused(part, _within(given, i), dtype) for i, part in enumerate(stack)])

    def _fused(self, part: str, given: dict[str, Any], dtype: torch.dtype | None) -> Tensor:
        method, parameters, given = self.method, self.parameters[part], given | {"dtype": dtype}
        if not given["tensors"][0].numel():  # of a head without labels
            return given["tensors"][0]
        if any(given[kind] is None for kind in ("grams", "fishers") if kind in method.inputs):
            method, parameters = find("linear"), {"weight": parameters["weight"], "normalize": True}
        try:
            seed = f"{self.recipe.seed} {part}"
            if method.elementwise:
                return _by_slices(method, given, parameters, seed)
            return method.fuse(given | _drawing(method, seed), parameters)
        except InputError as error:
            raise InputError(f"{self.on_disk(part)}: {error}") from None

    def on_disk(self, part: str) -> str:
        """The name of a tensor in the file, which is what filters look at."""
        return self._disk.get(part, part)

    def _averages(self, parameters: dict[str, Any]) -> bool:
        """Whether the method divides by the sum of the weights."""
        return "weight" in parameters and self.base is None and parameters.get("normalize", True)


def _by_slices(method: Method, given: dict[str, Any], parameters: dict[str, Any], seed: str) -> Tensor:
    tensors = given["tensors"] + ([given["base"]] if method.takes_base else [])
    count = len(given["tensors"])

    def fuse(start: int, parts: list[Tensor]) -> Tensor:
        own = {"tensors": parts[:count], "base": parts[-1], **_drawing(method, f"{seed} {start}")}
        return method.fuse(given | own, parameters)

    return by_slices(fuse, *tensors, dtype=given["dtype"])


def _drawing(method: Method, seed: str) -> dict[str, Any]:
    """A generator for a method that draws."""
    if "generator" not in method.inputs:
        return {}
    digest = hashlib.sha256(seed.encode()).digest()
    return {"generator": np.random.Generator(np.random.SFC64(int.from_bytes(digest)))}  # the fastest there


def _within(given: Mapping[str, Any], i: int) -> dict[str, Any]:
    """What a method is given, of one of the tensors in a stack."""
    return {
        kind: value[i] if isinstance(value, Tensor) else value and [one[i] for one in value]
        for kind, value in given.items()
    }
