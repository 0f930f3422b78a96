"""Fusing: the merged tensors, each computed from the models' as it is asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.fusion.arithmetic import by_slices
from cobasin.fusion.registry import Method, find
from cobasin.merging.parameters import Parameters
from cobasin.merging.statistics import Statistics
from cobasin.statistics.grams import InputGram
from cobasin.symmetry.canonical import Folded, Unfolded
from cobasin.symmetry.element import Element
from cobasin.symmetry.state import Lazy, State


class Fusion:
    """The merged tensors, by spec name, computed as they are asked for.

    A tensor that stacks several of the file is fused as these, one by one.
    """

    def __init__(
        self,
        parameters: Parameters,
        typed: Sequence[Typed],
        states: Sequence[State],
        statistics: Statistics | None = None,
        element: Element | None = None,
    ):
        """The models and their tensors as `as_fused` gives them, and what was collected, if anything was.

        ``element``: one of those that brought the models together, which knows the form and gauge they are in.
        """
        self.parameters, self.recipe = parameters, parameters.recipe
        self.typed, self.states, self.statistics = typed, states, statistics or Statistics()
        self.method, self.spec = self.recipe.method, parameters.spec
        self.fused = [0] if self.method.stacks else self.recipe.positions
        self._form = element.form if element is not None and self.method.in_canonical_form else None
        self._compared = states
        if element is not None and self._form is not None:
            gauge = element.target or {}  # of a form that fixes nothing
            self._compared = [Folded(self._form, state) for state in states]
            self._written = Unfolded(self._form, Lazy(states[0], lambda name: self.from_tensors(name, None)), gauge)
        self.base = None if self.recipe.base is None else self.recipe.referenced.index(self.recipe.base)

    @property
    def unmoved(self) -> bool:
        """Whether the models are as their files have them."""
        return all(isinstance(state, Typed) for state in self.states)

    @property
    def notes(self) -> list[str]:
        """Which filters have no effect; which tensors are averaged, because nothing was collected for them."""
        collected = {"grams": self.statistics.grams, "fishers": self.statistics.fishers}
        left = [
            sum(self.spec.file_entries[part][0] not in found for part in self.parameters)
            for kind, found in collected.items()
            if kind in self.method.inputs
        ]
        found = [f"{count} tensors have no statistics and are averaged" for count in left if count]
        return self.parameters.idle + found

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
            raise InputError(f"{self.parameters.on_disk(part)}: {error}") from None


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
