"""Data sets of the Hugging Face library `datasets`: from the hub, saved ones, folders of data files, in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cobasin.data.config import ROLES, DataConfig
from cobasin.data.rows import Columns, Rows, class_names
from cobasin.errors import InputError, one_line, shown
from cobasin.paths import expanded

SAVED = ("dataset_info.json", "dataset_dict.json")  # what save_to_disk writes


class DatasetRows(Rows):
    """The rows of a `Dataset`; classes by their names, images as they are stored."""

    def __init__(
        self,
        dataset: Any,
        label: str = "rows",
        columns: Columns | None = None,
        where: Collection[str | int] = (),
        folder: Path = Path(),
    ):
        super().__init__(label, columns or {}, folder)
        self.all_names: list[str] = dataset.column_names
        wanted = {self.columns.get(role, role) for role in ROLES} | {*where}
        # columns that nobody asked for may need libraries to decode; without any a data set has no rows
        chosen = [name for name in self.all_names if name in wanted] or self.all_names[:1]
        self.dataset = dataset.with_format(None).select_columns(chosen)
        self._convert = {name: _converter(feature) for name, feature in self.dataset.features.items()}
        for name, feature in self.dataset.features.items():
            if hasattr(feature, "decode"):  # images, and sounds and videos that nobody asked for
                self.dataset = self.dataset.cast_column(name, replace(feature, decode=False))

    def __len__(self) -> int:
        return len(self.dataset)

    def names(self, index: int) -> list[Any]:  # noqa: D102
        return self.all_names

    def record(self, index: int) -> Mapping[Any, Any]:  # noqa: D102
        return {name: self._convert[name](value) for name, value in self.dataset[index].items()}


def opened(data: DataConfig) -> DatasetRows:
    """The rows of a data set on the hub or on the disk."""
    path = expanded(data.path)
    folder = path.parent if path.is_file() else path if path.is_dir() else Path()
    return DatasetRows(_open(data), data.path, data.columns, data.where.keys(), folder)


def is_dataset(given: Any) -> bool:
    """Whether it is a `Dataset` in memory, whose numbers of classes are places among names of its own.

    Raises:
        InputError: what its rows hold is computed as they are read, so it says nothing of classes.
    """
    library = sys.modules.get("datasets")
    if library is None or not isinstance(given, library.Dataset):
        return False
    if given.format["type"] == "custom":
        raise InputError(f"data: {shown(given)}: has a transform; give what its map() returns, or a list of rows")
    return True


def sliced(split: str | None) -> str:
    """The end of a message about a split that is not there, where a slice of one is asked for."""
    return "; slices such as train[10:] are for data sets of the hub" if split and "[" in split else ""


def _converter(feature: Any) -> Callable[[Any], Any]:
    """What makes a stored value the one that a row holds."""
    kind = type(feature).__name__
    if kind == "Image":
        return lambda image: image and (image["bytes"] or Path(image["path"]))
    if kind == "ClassLabel":
        names = class_names(feature.names)
        return lambda label: None if label is None or label < 0 else names[label]
    if kind in ("List", "LargeList"):
        one = _converter(feature.feature)
        return lambda values: values and [one(value) for value in values]
    return lambda value: value


def _open(data: DataConfig) -> Any:
    """The split; no code of the data set's is run."""
    try:
        import datasets
    except ImportError:
        raise InputError(f"{data.path}: reading it needs the library datasets: pip install 'cobasin[data]'") from None
    folder = expanded(data.path)
    saved = any((folder / name).exists() for name in SAVED)
    try:
        if saved:
            found = datasets.load_from_disk(folder)
        elif folder.is_file():
            kind = {".parquet": "parquet", ".arrow": "arrow"}.get(folder.suffix.lower())
            if kind is None:
                raise ValueError("of files, those that end in .parquet or .arrow")
            found = datasets.load_dataset(kind, data_files=str(folder))
        else:
            path = str(folder) if folder.is_dir() else data.path
            found = datasets.load_dataset(path, data.name, split=data.split or "train")
    except Exception as failed:  # datasets, its readers and the hub client raise their own kinds
        error = failed.__cause__ or failed  # of the library's own "an error occurred"
        where = "" if folder.exists() else "no such file or folder, and "
        raise InputError(f"{data.path}: {where}datasets cannot load it: {one_line(error)}") from failed
    if isinstance(found, datasets.DatasetDict):
        split = data.split or "train"
        if split not in found:
            raise InputError(
                f"{data.path}: no split {split!r} (there are: {', '.join(map(str, found))}){sliced(split)}"
            )
        found = found[split]
    elif saved and data.split not in (None, str(found.split)):
        raise InputError(
            f"{data.path}: no split {data.split!r}, it is a single one; leave out 'split'{sliced(data.split)}"
        )
    return found
