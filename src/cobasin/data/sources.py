"""Which reader a data set needs."""

from __future__ import annotations

import re
from pathlib import Path

from cobasin.data.arrays import ImageFolderRows, NpzRows, images_in, visible
from cobasin.data.config import DataConfig, Format
from cobasin.data.hub import SAVED, opened, sliced
from cobasin.data.rows import ChosenRows, Rows
from cobasin.data.text_files import ConllRows, CsvRows, JsonlRows, TextRows, json_rows
from cobasin.errors import InputError, one_line
from cobasin.paths import expanded

SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".conll": "conll",
    ".txt": "text",
    ".npz": "npz",
    ".parquet": "datasets",
    ".arrow": "datasets",
}
COMPRESSED = {".gz", ".bz2", ".xz", ".zst", ".zip"}
READERS = {"jsonl": JsonlRows, "json": json_rows, "csv": CsvRows, "conll": ConllRows, "text": TextRows}
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def rows_of(data: DataConfig) -> Rows:
    """The rows of a data set, by role.

    Files are read by record, so only what is asked for is in memory (npz and json: the whole file; plain text, too,
    for a language model, to which it is one document).

    Raises:
        InputError: there is no such data set, or it cannot be read; for a bad record, as that is read.
    """
    path = expanded(data.path)
    try:
        kind, path = _found(data, path)
        if data.name is not None and kind != "datasets":
            raise InputError(f"{data.path}: 'name' is for data sets of the hub, this one is read as {kind}")
        rows = _read(data, kind, path)
        return ChosenRows(rows, data.where) if data.where else rows
    except OSError as error:
        raise InputError(f"{data.path}: cannot be read: {one_line(error)}") from error


def _read(data: DataConfig, kind: Format, path: Path) -> Rows:
    if kind == "datasets":
        return opened(data)
    if kind == "images":
        return ImageFolderRows(path, data.columns)
    if kind == "npz":
        return NpzRows(path, data.columns, data.where)
    return READERS[kind](path, data.columns)


def _found(data: DataConfig, path: Path) -> tuple[Format, Path]:
    """The format, and the file or folder to read."""
    if path.is_file():
        if path.suffix.lower() in COMPRESSED:
            raise InputError(f"{data.path}: is compressed; decompress it first")
        if data.format is None and path.suffix.lower() in (".yaml", ".yml"):
            raise InputError(
                f"{data.path}: YAML is no data; give the keys that it has (path, columns, ...) in its place, or the "
                "file to --data of a command"
            )
        kind = data.format or SUFFIXES.get(path.suffix.lower())
        if kind is None:
            raise InputError(f"{data.path}: the suffix does not tell what it is; say the 'format'")
        if data.split is not None and kind != "datasets":
            raise InputError(f"{data.path}: is one file, without a split {data.split!r}{sliced(data.split)}")
        return kind, path
    if path.is_dir():
        return _in_folder(data, path)
    if data.format in (None, "datasets") and _HUB_ID.fullmatch(data.path) and path.suffix not in SUFFIXES:
        return "datasets", path
    raise InputError(f"{data.path}: no such file or folder")


def _has_classes(split: Path) -> bool:
    return split.is_dir() and any(images_in(one) for one in visible(split) if one.is_dir())


def _in_folder(data: DataConfig, folder: Path) -> tuple[Format, Path]:
    if data.format == "datasets" or any((folder / name).exists() for name in SAVED):
        return "datasets", folder
    classes = folder / (data.split or "")
    pictures = classes.is_dir() and any(images_in(one) for one in [classes, *visible(classes)] if one.is_dir())
    if data.format == "images" or (data.format is None and pictures):
        if not pictures:
            splits = [] if data.split else [one.name for one in sorted(visible(folder)) if _has_classes(one)]
            hint = f"; or say 'split', one of {', '.join(splits)}" if splits else sliced(data.split)
            raise InputError(f"{classes}: no images in it, nor in its subfolders; expected a subfolder a class{hint}")
        return "images", classes
    files = [file for file in sorted(visible(folder)) if file.is_file()]
    files = [file for file in files if data.format or SUFFIXES.get(file.suffix.lower(), "datasets") != "datasets"]
    if not files:
        return "datasets", folder
    chosen = [file for file in files if data.split in (None, file.stem)]
    if len(chosen) != 1:
        names = ", ".join(file.stem if data.split is None else file.name for file in files)
        raise InputError(
            f"{folder}: which of its files? Say 'split', one of {names}"
            if data.split is None
            else f"{folder}: {len(chosen)} files of the split {data.split!r} among {names}{sliced(data.split)}"
        )
    return data.format or SUFFIXES[chosen[0].suffix.lower()], chosen[0]
