"""Rows of a data set, read when they are asked for."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cobasin.data.config import ROLES, Role
from cobasin.errors import InputError, shown

Columns = Mapping[Role, str | int | None]


class Numeral(str):
    """The name of a class that is a number other than the class's place, and so no index."""


def class_names(names: Sequence[str]) -> list[str]:
    """The names of a data set's classes, in the order of their places; those that are no indices marked."""
    return [Numeral(name) if name.isdecimal() and int(name) != place else name for place, name in enumerate(names)]


class Rows(ABC):
    """A data set as a sequence of rows by role.

    A source says how many records it has and reads one, by column name; `columns` maps roles to columns. Files that it
    names are relative to `folder`.
    """

    def __init__(self, label: str, columns: Columns, folder: Path = Path()):
        self.label = label
        self.columns = columns
        self.folder = folder

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def record(self, index: int) -> Mapping[Any, Any]:
        """One record by column.

        Raises:
            InputError: it cannot be read.
        """

    def where(self, index: int) -> str:
        """Where a row is, for messages."""
        return f"{self.label}[{index}]"

    def names(self, index: int) -> list[Any]:
        """The columns that there are."""
        return list(self.record(index))

    def documents(self) -> Rows:
        """The texts that a language model reads from their beginnings: the rows themselves."""
        return self

    def __getitem__(self, index: int) -> dict[Role, Any]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        record = self.record(index)
        row: dict[Role, Any] = {}
        for role in ROLES:
            column = self.columns.get(role, role)
            if column is None:
                continue
            if column in record:
                row[role] = record[column]
            elif role in self.columns:
                raise self.missing(index, column)
        return row

    def __iter__(self) -> Iterator[dict[Role, Any]]:
        return (self[index] for index in range(len(self)))

    def missing(self, index: int, column: str | int) -> InputError:
        """That a row lacks a column, with those that it has and the way out."""
        there = ", ".join(map(str, self.names(index))) or "none"
        return InputError(
            f"{self.where(index)}: no column {column!r} (there are: {there}); say which one it is under 'columns'"
        )

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all rows by role, in hexadecimal."""
        sha = hashlib.sha256()
        for row in self:
            feed(sha, row)
        return sha.hexdigest()


class MemoryRows(Rows):
    """Rows that are in memory."""

    def __init__(
        self,
        records: Sequence[Mapping[Any, Any]],
        label: str = "rows",
        columns: Columns | None = None,
        folder: Path = Path(),
    ):
        super().__init__(label, columns or {}, folder)
        sequence = hasattr(records, "__getitem__") and hasattr(records, "__len__")
        if not sequence or hasattr(records, "iloc"):
            raise InputError(
                f"data: {shown(records)}: expected a path, keys and values, or a list of rows (of a DataFrame: "
                "to_dict('records'))"
            )
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def record(self, index: int) -> Mapping[Any, Any]:  # noqa: D102
        record = self.records[index]
        if not isinstance(record, Mapping):
            raise InputError(f"{self.where(index)}: is {shown(record)}; expected a mapping of columns to values")
        return record


class ChosenRows(Rows):
    """The rows of another data set that have certain values in certain columns."""

    def __init__(self, rows: Rows, where: Mapping[str | int, str | bool | int | float]):
        super().__init__(rows.label, rows.columns, rows.folder)
        self.rows, self.places = rows, array("Q")
        for index in range(len(rows)):
            record = rows.record(index)
            if missing := [column for column in where if column not in record]:
                raise rows.missing(index, missing[0])
            # or by its text: a file of text has no numbers
            if all(record[column] == value or str(record[column]) == str(value) for column, value in where.items()):
                self.places.append(index)
        if not self.places and len(rows):
            wanted = " and ".join(f"{column} = {value!r}" for column, value in where.items())
            raise InputError(f"{rows.label}: none of its {len(rows)} rows has {wanted}; see 'where'")

    def __len__(self) -> int:
        return len(self.places)

    def where(self, index: int) -> str:  # noqa: D102
        return self.rows.where(self.places[index])

    def names(self, index: int) -> list[Any]:  # noqa: D102
        return self.rows.names(self.places[index])

    def record(self, index: int) -> Mapping[Any, Any]:  # noqa: D102
        return self.rows.record(self.places[index])


def feed(sha: Any, value: Any) -> None:
    """Add a value to a hash, such that other values, however nested, add other bytes; of a path, the file's.

    Raises:
        InputError: the file of a path cannot be read.
    """
    parts: Sequence[Any] = ()
    if isinstance(value, Path):
        try:
            value = value.read_bytes()
        except OSError as error:
            raise InputError(f"{value}: cannot be read: {error.strerror or error}") from error
    if isinstance(value, np.ndarray):
        kind, content = f"{value.dtype.str}{value.shape}", value.tobytes()
    elif isinstance(value, bytes):
        kind, content = "bytes", value
    elif isinstance(value, Mapping):
        parts = [part for item in sorted(value.items()) for part in item]
        kind, content = f"map of {len(parts)}", b""
    else:  # numbers of numpy are like those of Python
        kind, content = "value", json.dumps(value, default=lambda number: number.item()).encode()
    sha.update(f"{kind}:{len(content)}:".encode() + content)
    for part in parts:
        feed(sha, part)


def check_text(text: str, where: str, what: str) -> None:
    """Refuse what no tokenizer takes: half of a character, which JSON can hold where something was cut.

    Raises:
        InputError: names the half.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise InputError(f"{where}: {what} has half of a character ({half!r}); repair it, or leave it out") from None
