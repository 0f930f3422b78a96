"""A model whose parameters are given by spec name, for any declared architecture.

Transformers renames tensors as it loads a file, and joins or parts some (the experts of a layer, their gates and ups).
Where a tensor of the spec ends up is found by loading a model whose tensors hold their own running numbers: each is
then seen to lie in parameters as strided views of its rows. Nothing is known here of any architecture.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from cobasin.checkpoints.running import instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.symmetry.state import Lazy, State

# Running numbers in two digits, each of which float32 holds exactly; the first so large that no constant is. The base
# is a prime: no two tensors have the same last digits, so that none is taken for a tie.
_DIGIT = (1 << 22) - 3
_FIRST = _DIGIT << 21


@dataclass(frozen=True)
class Place:
    """Where rows of a tensor lie in a parameter.

    Attributes:
        name: of the tensor in the spec.
        rows: along its first axis; None for all.
        shape, strides, offset: of the view, as ``as_strided`` takes them.
    """

    name: str
    rows: slice | None
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class InMemory:
    """A model in float32 and evaluation mode that has a place for parameters, and none of its own.

    Attributes:
        names: the tensors of the spec that it reads, in the spec's order.
    """

    def __init__(self, typed: Typed, device: torch.device | str = "cpu"):
        """Build it, and find the places; the tensors of ``typed`` are not read.

        Raises:
            InputError: where a tensor of the spec is no view of a parameter.
        """
        spec, starts, end = typed.spec, dict[str, int](), _FIRST
        for name, entry in spec.entries.items():
            if name not in spec.tied:
                starts[name], end = end, end + math.prod(entry.layout.shape)
        high, low = (
            instantiate(typed.derived(Lazy(spec.entries, digit), torch.float32), torch.float32)
            for digit in (
                lambda name: (_numbers(typed, starts, name) // _DIGIT).float(),
                lambda name: (_numbers(typed, starts, name) % _DIGIT).float(),
            )
        )
        highs = high.state_dict()
        self._places: dict[str, tuple[torch.Size, list[Place]]] = {}
        left = {name: math.prod(spec.entries[name].layout.shape) for name in starts}
        with torch.no_grad():
            for name, own in (*low.named_parameters(), *low.named_buffers()):
                if name not in highs:
                    continue
                places = list(_places(typed, starts, highs[name].double() * _DIGIT + own.double()))
                if places:
                    self._places[name] = own.shape, places
                    own.data = own.new_empty(0)
                for place in places:
                    left[place.name] -= math.prod(place.shape)
        if missing := [name for name, count in left.items() if count and name not in spec.unread]:
            raise InputError(
                f"{typed.checkpoint.label}: {missing[0]} has no place in memory that can be told; take method weights"
            )
        self.names = [name for name, count in left.items() if not count]
        self.model: Any = low.requires_grad_(False).to(device)  # pyright: ignore[reportArgumentType]

    def parameters(self, state: State) -> dict[str, Tensor]:
        """The model's parameters from tensors by spec name, differentiable; those that are alike share memory."""
        return {name: _filled(shape, places, state) for name, (shape, places) in self._places.items()}

    def __call__(self, parameters: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> Any:
        """What the model with these parameters puts out, as Transformers gives it."""
        return functional_call(self.model, dict(parameters), (), dict(inputs))


def _numbers(typed: Typed, starts: Mapping[str, int], name: str) -> Tensor:
    """The running numbers of a tensor, in float64; of one that is tied those of the tensor that it repeats."""
    name = typed.spec.tied.get(name, name)
    shape = typed.spec.entries[name].layout.shape
    return torch.arange(starts[name], starts[name] + math.prod(shape), dtype=torch.float64).reshape(shape)


def _places(typed: Typed, starts: Mapping[str, int], found: Tensor) -> Iterator[Place]:
    """The tensors that lie in a parameter with these numbers."""
    flat, names = found.reshape(-1), list(starts)
    firsts = torch.tensor([*starts.values()], dtype=torch.float64)
    owner = torch.searchsorted(firsts, flat, right=True) - 1
    for i in owner.unique().tolist():
        if i >= 0 and (place := _place(flat, flat[owner == i], names[i], _numbers(typed, starts, names[i]))):
            yield place


def _place(flat: Tensor, own: Tensor, name: str, numbers: Tensor) -> Place | None:
    """The view of ``flat`` that holds the rows of a tensor to which the numbers ``own`` in it belong, if it is one."""
    rows = None
    if len(own) < numbers.numel() and numbers.ndim:
        size = numbers.numel() // len(numbers)
        first, last = (int(end - numbers.min()) // size for end in (own.min(), own.max()))
        rows = slice(first, last + 1)
        numbers = numbers[rows]

    def position(*index: int) -> int:
        where = (flat == numbers[index]).nonzero()
        return int(where[0]) if len(where) else -1

    corner = [0] * numbers.ndim
    offset = position(*corner)
    strides = tuple(
        position(*corner[:axis], 1, *corner[axis + 1 :]) - offset if size > 1 else 0
        for axis, size in enumerate(numbers.shape)
    )
    last = offset + sum(stride * (size - 1) for stride, size in zip(strides, numbers.shape, strict=True))
    if offset < 0 or min(strides, default=0) < 0 or last >= flat.numel():
        return None
    same = flat.as_strided(numbers.shape, strides, offset).equal(numbers)
    return Place(name, rows, tuple(numbers.shape), strides, offset) if same else None


def _filled(shape: torch.Size, places: list[Place], state: State) -> Tensor:
    parts = [state[place.name] if place.rows is None else state[place.name][place.rows] for place in places]
    if len(places) == 1 and places[0].strides == _row_major(places[0].shape):
        return parts[0].reshape(shape)
    result = parts[0].new_empty(shape)
    for place, part in zip(places, parts, strict=True):
        result.as_strided(place.shape, place.strides, place.offset).copy_(part)
    return result


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) if size > 1 else 0 for axis, size in enumerate(shape))
