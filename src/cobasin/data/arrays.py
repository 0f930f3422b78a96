"""Arrays of an npz file, and folders of images."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np

from cobasin.data.config import ROLES
from cobasin.data.rows import Columns, Rows, class_names
from cobasin.errors import InputError, one_line

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


class NpzRows(Rows):
    """The entries of arrays that run over the same rows: those that `columns` and `where` name.

    Nothing is unpickled.
    """

    def __init__(self, path: Path, columns: Columns, where: Collection[str | int]):
        super().__init__(str(path), columns, path.parent)
        wanted = {columns.get(role, role) for role in ROLES}
        with path.open("rb") as content:
            if not is_zipfile(content):  # numpy takes it for another kind of its files, and says so
                raise InputError(f"{path}: cannot be read as npz: is no zip file as numpy.savez writes it, or cut off")
        try:
            with np.load(path, allow_pickle=False) as file:
                self.all_names = list(file)
                self.arrays = {name: file[name] for name in self.all_names if name in wanted or name in where}
        except Exception as error:  # zipfile, zlib and numpy raise their own kinds
            hint = "; save texts as an array of dtype str" if "Object arrays" in str(error) else ""
            raise InputError(f"{path}: cannot be read as npz: {one_line(error)}{hint}") from error
        if not wanted & self.arrays.keys():
            raise InputError(
                f"{path}: none of its arrays ({', '.join(self.all_names)}) has a role's name ({', '.join(ROLES)}): "
                "say which is which in a data configuration, as columns: {image: x_test, label: y_test}"
            )
        if single := [name for name, array in self.arrays.items() if not array.ndim]:
            raise InputError(
                f"{path}: {single[0]} is a single value; expected arrays whose first axis runs over the rows"
            )
        lengths = {name: array.shape[0] for name, array in self.arrays.items()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise InputError(f"{path}: the arrays are of different lengths: {counts}")
        self.length = next(iter(lengths.values()))
        for name, array in self.arrays.items():
            if name in where and array.ndim != 1:
                shape = list(array.shape)
                raise InputError(f"{path}: 'where' names {name} of shape {shape}; expected an array of a value a row")

    def __len__(self) -> int:
        return self.length

    def names(self, index: int) -> list[Any]:  # noqa: D102
        return self.all_names

    def record(self, index: int) -> Mapping[Any, Any]:  # noqa: D102
        return {name: array[index] for name, array in self.arrays.items()}


class ImageFolderRows(Rows):
    """Image files; of those in subfolders, the subfolder's name is the label."""

    def __init__(self, folder: Path, columns: Columns):
        super().__init__(str(folder), columns)
        classes = [entry for entry in sorted(visible(folder)) if entry.is_dir() and images_in(entry)]
        numbers_first = sorted((one.name for one in classes), key=lambda name: int(name) if name.isdecimal() else inf)
        names = {name: name for name in class_names(numbers_first)}
        self.files = [(file, names[one.name]) for one in classes for file in images_in(one)]
        if not classes:
            self.files = [(file, None) for file in images_in(folder)]

    def __len__(self) -> int:
        return len(self.files)

    def where(self, index: int) -> str:  # noqa: D102
        return str(self.files[index][0])

    def record(self, index: int) -> Mapping[Any, Any]:  # noqa: D102
        file, label = self.files[index]
        return {"image": file} if label is None else {"image": file, "label": label}


def images_in(folder: Path) -> list[Path]:
    """The image files of a folder, sorted by name; not hidden ones, as a Mac puts one beside each."""
    return sorted(file for file in visible(folder) if file.suffix.lower() in IMAGE_SUFFIXES)


def visible(folder: Path) -> Iterator[Path]:
    """What is in a folder, but for what is hidden."""
    return (entry for entry in folder.iterdir() if not entry.name.startswith("."))
