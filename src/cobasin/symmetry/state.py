"""A model's tensors by spec name, also where they are computed when asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import reduce

import torch
from torch import Tensor

State = Mapping[str, Tensor]

_CHUNK = 1 << 18  # entries: their float64 copy fits a cache


def squared_distance(x: Tensor, y: Tensor) -> float:
    """``|x - y|²``, summed in float64; in chunks, so that a large embedding needs no copy of itself."""
    dtype = common_dtype(x, y)
    total = 0.0
    for a, b in zip(x.reshape(-1).split(_CHUNK), y.reshape(-1).split(_CHUNK), strict=True):
        total += float(torch.linalg.vector_norm(a.to(dtype) - b.to(dtype), dtype=torch.float64)) ** 2
    return total


def squared_size(x: Tensor) -> float:
    """``|x|²``, like `squared_distance`."""
    chunks = x.reshape(-1).split(_CHUNK)
    return math.fsum(float(torch.linalg.vector_norm(chunk, dtype=torch.float64)) ** 2 for chunk in chunks)


def apart(x: State, y: State, names: Iterable[str]) -> float:
    """The distance of some tensors of two models, all taken together."""
    return math.sqrt(math.fsum(squared_distance(x[name], y[name]) for name in names))


def size_of(x: State, names: Iterable[str]) -> float:
    """The size of some tensors of a model, all taken together."""
    return math.sqrt(math.fsum(squared_size(x[name]) for name in names))


def common_dtype(*tensors: Tensor) -> torch.dtype:
    """What the tensors are computed with in: their common dtype, float32 or better."""
    return reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)


def wide(tensor: Tensor) -> Tensor:
    """The tensor in float32, or in float64 where it is that."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by name, made on whatever device, where elements and sums are kept."""
    return {name: tensor.cpu() for name, tensor in tensors.items()}


class Computed(Mapping[str, Tensor]):
    """Tensors of these names; a subclass says what each of them is as it is asked for."""

    def __init__(self, names: Collection[str]):
        self.names = names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class Lazy(Computed):
    """Tensors that are computed each time they are asked for.

    Attributes:
        part: computes a tensor of the file that is one of a stack; None where all of the stack has to be computed.
    """

    def __init__(
        self, names: Collection[str], compute: Callable[[str], Tensor], part: Callable[[str], Tensor] | None = None
    ):
        super().__init__(names)
        self.compute, self.part = compute, part

    def __getitem__(self, name: str) -> Tensor:
        return self.compute(name)


class Remembered(Computed):
    """A state whose tensors are computed once, as long as they take ``room`` bytes at most in all.

    Small models are mostly overhead: of them each tensor is asked for some hundred times in a match.
    """

    def __init__(self, state: State, room: int):
        super().__init__(state)
        self.state, self.room = state, room
        self._known: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name in self._known:
            return self._known[name]
        tensor = self.state[name]
        if tensor.nbytes <= self.room:
            self.room -= tensor.nbytes
            self._known[name] = tensor
        return tensor
