"""The parameters of a merge method, for every tensor that is fused."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.recipe import Recipe
from cobasin.symmetry.keys import after_layers, is_layer, layer_of

NO_WEIGHT = 1e-8  # what is left of weights that cancel, as a part of them
LARGEST = torch.finfo(torch.float32).max


class Parameters(Mapping[str, dict[str, Any]]):
    """The method's parameters for every tensor that is fused, by its spec name.

    What is fused are the tensors of the file, but for those that repeat another one.

    Attributes:
        recipe: of the merge.
        spec: of the models as they are fused.
    """

    def __init__(self, recipe: Recipe, typed: Typed):
        """Read them from a recipe, for models like this one.

        Raises:
            InputError: where a tensor has no value of a parameter.
        """
        self.recipe, self.spec, self._disk = recipe, typed.spec, typed.disk_names
        after = after_layers(self.spec.entries)
        self._parameters: dict[str, dict[str, Any]] = {}
        for part, (name, _) in self.spec.file_entries.items():
            if part not in self.spec.tied:
                index = self.spec.entries[name].index
                layers = next((self.spec.sizes[space] for space in index if is_layer(space)), 1)
                own = recipe.parameters_of(self.on_disk(part), layer_of(index), layers, name in after)
                self._parameters[part] = own

    def __getitem__(self, part: str) -> dict[str, Any]:
        return self._parameters[part]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def on_disk(self, part: str) -> str:
        """The name of a tensor in the file, which is what filters look at."""
        return self._disk.get(part, part)

    @property
    def idle(self) -> list[str]:
        """Which filters have no effect."""
        names = self.recipe.idle_filters([self.on_disk(part) for part in self])
        return [f"filter {name} is part of no tensor's name, and has no effect" for name in names]

    @property
    def weights(self) -> list[float] | None:
        """The weights of the models where all tensors have the same, shares of 1 where models are averaged."""
        (first, *others) = self.values()
        if "weight" not in first or any(other["weight"] != first["weight"] for other in others):
            return None
        total = sum(first["weight"]) if self._averages(first) else 1.0
        return [one / total for one in first["weight"]]

    def check(self, heads: Collection[str]) -> None:
        """Check those of all tensors, but for task ``heads`` that are not fused.

        Raises:
            InputError: where a tensor has a value that cannot be, or is averaged with weights that add up to nothing.
        """
        for part, parameters in self.items():
            if part in heads:
                continue
            weight, disk = parameters.get("weight", ()), self.on_disk(part)
            if any(abs(one) > LARGEST for one in weight):
                raise InputError(f"{disk}: a weight of {max(weight, key=abs):g} is beyond float32")
            if self.recipe.method.check:
                try:
                    self.recipe.method.check(parameters)
                except InputError as error:
                    raise InputError(f"{disk}: {error}") from None
            if self._averages(parameters) and sum(weight) <= NO_WEIGHT * sum(map(abs, weight)):
                shown = ", ".join(f"{one:g}" for one in weight)
                raise InputError(
                    f"{disk}: the weights {shown} sum to {sum(weight):g}; expected a positive sum"
                    + (", or normalize: false" if "normalize" in parameters else "")
                )

    def _averages(self, parameters: dict[str, Any]) -> bool:
        """Whether the method divides by the sum of the weights."""
        return "weight" in parameters and self.recipe.base is None and parameters.get("normalize", True)
