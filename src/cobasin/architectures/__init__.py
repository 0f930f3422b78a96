"""Declared architectures. A declaration is a function from a config to a `Spec`; no routine is written for it.

Every module of this package registers the Transformers classes it declares with `declares`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cobasin.errors import InputError
from cobasin.symmetry.spec import Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class Request:
    """What a declaration is made from.

    Attributes:
        config: the model's configuration.
        architecture: the Transformers class; ``head`` is its name without the family's.
        names: the tensor names in the file, for what no config says (a bare encoder's pooler).
    """

    config: PreTrainedConfig
    architecture: str
    head: str
    names: Collection[str] = ()

    def has(self, suffix: str) -> bool:
        """Whether the file has a tensor whose name ends in ``suffix``."""
        return any(name.endswith(suffix) for name in self.names)


Declaration = Callable[[Request], Spec]
_DECLARED: dict[str, tuple[Declaration, str, str]] = {}  # class -> declaration, head, model_type


def declares(family: str, model_type: str, *heads: str) -> Callable[[Declaration], Declaration]:
    """Register a declaration for the classes ``family + head``."""

    def register(declaration: Declaration) -> Declaration:
        for head in heads:
            _DECLARED[family + head] = (declaration, head, model_type)
        return declaration

    return register


def known() -> dict[str, str]:
    """Every declared class, with its ``model_type``."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return {architecture: model_type for architecture, (_, _, model_type) in _DECLARED.items()}


def declare(config: PreTrainedConfig, architecture: str, names: Collection[str] = ()) -> Spec:
    """The type of a model.

    Raises:
        InputError: for an architecture that is not declared, with the list of those that are; for a
            configuration that a declaration does not cover.
    """
    if architecture not in known():
        raise InputError(
            f"architecture {architecture!r} is not declared; known are: {', '.join(sorted(known()))}. "
            "An unknown architecture is never guessed"
        )
    declaration, head, _ = _DECLARED[architecture]
    return declaration(Request(config, architecture, head, names))
