"""A model's tensors by spec name, also where they are computed when asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from torch import Tensor

State = Mapping[str, Tensor]


class Lazy(Mapping[str, Tensor]):
    """Tensors that are computed each time they are asked for."""

    def __init__(self, names: Collection[str], compute: Callable[[str], Tensor]):
        self.names, self.compute = names, compute

    def __getitem__(self, name: str) -> Tensor:
        return self.compute(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
