"""Files of statistics, whole or added up so far: what they are of, and whether that is what is asked for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

import cobasin
from cobasin.errors import InputError, one_line
from cobasin.statistics.grams import InputGram
from cobasin.statistics.slices import Sums
from cobasin.whole_files import DAMAGED, read_tensors, write_tensors

_LAYOUT = 2  # of the files; a number of its own for every change that makes old ones wrong
_TOTAL, _OWN = "total/", "own/"  # names in the file of a pass that was stopped


@dataclass(frozen=True)
class Source:
    """What statistics are of.

    Attributes:
        kind: as in `cobasin.statistics.collect.collect`.
        model: the fingerprint of the checkpoint.
        data: the digest of the data.
        rows: how many rows of it.
        settings: what else the values depend on.
    """

    kind: str
    model: str
    data: str
    rows: int
    settings: Mapping[str, int]

    @property
    def file_name(self) -> str:
        """The name of the file that holds them."""
        return f"{self.kind}-{hashlib.sha256(self.text.encode()).hexdigest()[:16]}.safetensors"

    @property
    def text(self) -> str:
        """The same as text, for the file's metadata."""
        return json.dumps({**asdict(self), "layout": _LAYOUT}, sort_keys=True)


def prepare(folder: Path) -> None:
    """Make the folder for files of statistics.

    Raises:
        InputError: that cannot be, or nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {one_line(error)}; choose another folder") from error


def write(path: Path, source: Source, values: Mapping[str, Tensor | InputGram], **notes: Any) -> None:
    """Write statistics; the file is there whole or not at all. A Gram that maps share is written once.

    Raises:
        InputError: the file cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    grams: dict[str, tuple[str, int]] = {}
    stored: dict[int, str] = {}
    for name, value in values.items():
        if isinstance(value, InputGram):
            at = stored.setdefault(id(value.matrix), name)
            grams[name], tensors[at] = (at, value.axis), value.matrix
        else:
            tensors[name] = value
    metadata = {"cobasin": cobasin.__version__, "source": source.text, "grams": json.dumps(grams)}
    try:
        write_tensors(path, tensors, metadata | {name: json.dumps(note) for name, note in notes.items()})
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be written: {one_line(error)}") from error


def read(path: Path, source: Source) -> tuple[dict[str, Any], dict[str, Any]]:
    """The statistics in a file, and the notes that were written with them.

    Raises:
        InputError: the file is damaged, or holds the statistics of something else.
    """
    try:
        metadata, tensors = read_tensors(path)
        if "source" not in metadata:
            raise InputError(f"{path}: holds no statistics; remove it, or choose another folder")
        found = json.loads(metadata.pop("source"))
        if different := [key for key, value in json.loads(source.text).items() if found.get(key) != value]:
            raise InputError(
                f"{path}: holds statistics of another {' and '.join(different)} than its name says; remove it, "
                "and they are collected again"
            )
        notes = {name: json.loads(value) for name, value in metadata.items() if name != "cobasin"}
        grams = {name: InputGram(tensors[at], axis) for name, (at, axis) in notes.pop("grams").items()}
    except DAMAGED as error:
        raise InputError(f"{path}: is damaged ({one_line(error)}); remove it, and it is collected again") from error
    return grams or tensors, notes


@dataclass
class Partial:
    """What was added up so far, in a file."""

    path: Path
    source: Source

    def save(self, total: Sums, own: Sums, done: int, row: int) -> None:
        """Keep the sums of the slices that are done, of the one at hand, and how many batches and rows these are."""
        state = {f"{_TOTAL}{name}": tensor for name, tensor in total.items()}
        state |= {f"{_OWN}{name}": tensor for name, tensor in own.items()}
        write(self.path, self.source, state, done=done, row=row)

    def load(self) -> tuple[Sums, Sums, int, int]:
        """Find them again; nothing, where nothing was kept."""
        if not self.path.exists():
            return {}, {}, 0, 0
        state, notes = read(self.path, self.source)
        total, own = (
            {name.removeprefix(kind): tensor for name, tensor in state.items() if name.startswith(kind)}
            for kind in (_TOTAL, _OWN)
        )
        return total, own, notes["done"], notes["row"]
