"""The values of a method's parameters: scalars, gradients over the layers, and filters on tensor names.

The meaning is mergekit's, so that one recipe does the same in both tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cobasin.errors import InputError, nearest, shown
from cobasin.fusion.registry import Parameter


@dataclass(frozen=True)
class Setting:
    """Values for the tensors that a filter lets through.

    Attributes:
        filter: a part of the names of these tensors; None or ``*`` for all.
        values: of the parameter's type; one, or a gradient from the first layer to the last.
    """

    filter: str | None
    values: tuple[Any, ...]

    def applies(self, name: str) -> bool:
        """Whether the filter lets a tensor of this on-disk name through."""
        return self.filter in (None, "*") or self.filter in name

    def at(self, t: float) -> Any:
        """The value at a position between 0, the first layer, and 1, the last one.

        Numbers are interpolated linearly (and rounded, for a parameter of whole numbers); of booleans and words
        the nearest one before the position is taken.
        """
        place = t * (len(self.values) - 1)
        before = int(place + ROUNDING)
        if not all(type(value) in (int, float) for value in self.values):
            return self.values[before]
        after = min(before + 1, len(self.values) - 1)
        share = place - before
        value = (1 - share) * self.values[before] + share * self.values[after]
        return round(value) if all(type(value) is int for value in self.values) else value


Scope = Mapping[str, tuple[Setting, ...]]
"""What one place of a recipe says: parameter name to settings, the first that applies being taken."""

ROUNDING = 1e-9  # of a position


def read_settings(parameter: Parameter, given: Any, where: str) -> tuple[Setting, ...]:
    """The settings that a recipe gives for a parameter: a scalar, a list, a ``filter`` with a ``value``, several such.

    Raises:
        InputError: for anything else, and for values that the parameter does not take.
    """
    if isinstance(given, Mapping):
        given = [given]
    if isinstance(given, list) and given and all(isinstance(one, Mapping) for one in given):
        return tuple(_filtered(parameter, one, where) for one in given)
    return (Setting(None, _values(parameter, given, where)),)


def _filtered(parameter: Parameter, given: Mapping[str, Any], where: str) -> Setting:
    if unknown := [str(key) for key in given if key not in ("filter", "value")]:
        raise InputError(f"{where}: unknown key {unknown[0]!r}{nearest(unknown[0], ['filter', 'value'])}")
    filter_ = given.get("filter")
    if filter_ is not None and not isinstance(filter_, str):
        raise InputError(f"{where}: filter {shown(filter_)}: expected a part of tensor names, like mlp")
    return Setting(filter_, _values(parameter, given.get("value"), f"{where} (filter {filter_})"))


def _values(parameter: Parameter, given: Any, where: str) -> tuple[Any, ...]:
    listed = given if isinstance(given, list) else [given]
    if given is None or not listed:
        raise InputError(f"{where}: has no value")
    return tuple(_value(parameter, one, where) for one in listed)


def _value(parameter: Parameter, given: Any, where: str) -> Any:
    if not isinstance(given, (bool, int, float, str)):
        raise InputError(f"{where}: {shown(given)}: expected a value, a list of values, or filter: and value:")
    try:
        return parameter.check(given)
    except ValueError as error:
        raise InputError(f"{where}: {shown(given)}: {error}") from None


def resolve(parameter: Parameter, scopes: Iterable[Scope], name: str, t: float) -> Any:
    """The value of a parameter for one tensor: of the first scope that has one, else the default (or `REQUIRED`).

    Args:
        scopes: the strongest first.
        name: the tensor's name on disk.
        t: as in `Setting.at`.
    """
    for scope in scopes:
        for setting in scope.get(parameter.name, ()):
            if setting.applies(name):
                return setting.at(t)
    return parameter.default
