"""Properties that are computed once, by any number of threads at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class once(Generic[T]):
    """`functools.cached_property` without its lock, which before Python 3.12 all instances of a class share.

    While one thread computes, others would wait with instances of their own. Two that ask the same instance at a
    time both compute.
    """

    def __init__(self, compute: Callable[[Any], T]):
        self._compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        found = instance.__dict__[self._name] = self._compute(instance)  # where it is looked for first from now on
        return found
