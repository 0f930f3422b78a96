"""Text files of records: JSON lines, CSV, CoNLL, plain text."""

from __future__ import annotations

import csv
import json
import re
from abc import abstractmethod
from array import array
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any, BinaryIO

from cobasin.data.rows import Columns, MemoryRows, Rows
from cobasin.errors import InputError, one_line, shown

# of one text; by default the csv module stops at 131,072 characters
csv.field_size_limit(max(csv.field_size_limit(), 2**31 - 1))

Span = tuple[int, int, int]

_BRACKETED = re.compile(r"\([^()*]+(\*\)?|\))|\*\)?")


class FileRows(Rows):
    """Records of a file, which is gone through once to find where they are."""

    def __init__(self, path: Path, columns: Columns):
        super().__init__(str(path), columns, path.parent)
        self.path = path
        self._spans = array("Q")
        with path.open("rb") as file:
            for span in self.spans(file):
                self._spans.extend(span)

    def spans(self, file: BinaryIO) -> Iterator[Span]:
        """First byte, end and first line (counted from one) of every record; here the lines that are not blank."""
        start = 0
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield start, start + len(line), number
            start += len(line)

    @abstractmethod
    def parse(self, text: str, where: str) -> Mapping[Any, Any]:
        """The record that a text is."""

    def decode(self, content: bytes, line: int) -> str:
        """Text in UTF-8, without the mark that some editors put in front."""
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{self.path}: line {line} is not text in UTF-8: {error.reason}") from None
        return text.removeprefix("\ufeff") if line == 1 else text

    def __len__(self) -> int:
        return len(self._spans) // 3

    def where(self, index: int) -> str:  # noqa: D102
        return f"{self.path}: line {self._spans[3 * index + 2]}"

    def record(self, index: int) -> Mapping[Any, Any]:  # noqa: D102
        start, end, line = self._spans[3 * index : 3 * index + 3]
        with self.path.open("rb") as file:
            file.seek(start)
            content = file.read(end - start)
        return self.parse(self.decode(content, line), self.where(index))


class JsonlRows(FileRows):
    """An object a line."""

    def parse(self, text: str, where: str) -> Mapping[Any, Any]:  # noqa: D102
        try:
            record = json.loads(text, object_pairs_hook=_keys_once)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: is not JSON: {_reason(error)}") from None
        if not isinstance(record, dict):
            raise InputError(f"{where}: is {shown(record)}; expected a JSON object")
        return record


def _keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, of which the last of several values of a key would count."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {shown(twice)} is given twice")
    return found


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.colno}"
    return one_line(error)  # too deep, a number too long


def json_rows(path: Path, columns: Columns) -> Rows:
    """A list of objects in one JSON file, read at once.

    Raises:
        InputError: it is no JSON, or no list.
    """
    try:
        records = json.loads(path.read_bytes(), object_pairs_hook=_keys_once)
    except (ValueError, RecursionError) as error:
        hint = "; of an object a line, say 'format: jsonl'" if isinstance(error, json.JSONDecodeError) else ""
        raise InputError(f"{path}: is not JSON: {one_line(error)}{hint}") from None
    if not isinstance(records, list):
        raise InputError(f"{path}: is {shown(records)}; expected a JSON list of objects")
    return MemoryRows(records, str(path), columns, path.parent)


class CsvRows(FileRows):
    """A header and a record a line; quoted fields may hold line breaks (comma) or there is no quoting (tab).

    Where columns are called by their places, there is no header.
    """

    def spans(self, file: BinaryIO) -> Iterator[Span]:  # noqa: D102
        self.dialect: dict[str, Any] = {"strict": True}
        if b"\t" in file.readline():
            self.dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
        file.seek(0)
        self.header: list[Any] = []
        named = [column for column in self.columns.values() if column is not None]  # what has none is left out
        places = bool(named) and all(isinstance(column, int) for column in named)
        start, end, line = 0, 0, 0

        def lines() -> Iterator[str]:
            nonlocal end
            for number, content in enumerate(file, start=1):
                end += len(content)
                yield self.decode(content, number)

        reader = csv.reader(lines(), **self.dialect)
        try:
            for fields in reader:  # which takes the lines of this record, no more
                if places and fields and not self.header:
                    self.header = list(range(len(fields)))
                if self.header and fields:
                    self._check(fields, line + 1)
                    yield start, end, line + 1
                elif fields:
                    self.header = fields
                start, line = end, reader.line_num
        except csv.Error as error:
            raise InputError(f"{self.path}: line {line + 1} cannot be read as CSV: {error}") from None
        if len(set(self.header)) < len(self.header):
            raise InputError(f"{self.path}: the header names a column twice: {', '.join(self.header)}")

    def _check(self, fields: list[str], line: int) -> None:
        if len(fields) != len(self.header):
            raise InputError(
                f"{self.path}: line {line} has {len(fields)} fields, the header {len(self.header)} "
                f"({', '.join(map(str, self.header))})"
            )

    def parse(self, text: str, where: str) -> Mapping[Any, Any]:  # noqa: D102
        (fields,) = csv.reader(StringIO(text, newline="\n"), **self.dialect)
        return dict(zip(self.header, fields, strict=True))


class ConllRows(FileRows):
    """A token a line, its columns separated by tabs or blanks, and a blank line between sentences.

    Lines of ``-DOCSTART-`` are left out, and so are comments: lines that start with ``#`` and do not have the
    columns of a token. Columns are called by their places; tokens are in the first and tags in the last one,
    where there are two or more. Where the places of both are given, and tokens are not first, so that no token can be
    taken for a comment, sentences may have different numbers of columns, as those of CoNLL-2012 have. Tags in brackets,
    as in its files, are brought to those of IOB2.
    """

    def __init__(self, path: Path, columns: Columns):
        self.tab, self.width = False, 0
        self.ragged = all(isinstance(c := columns.get(role), int) and c > 0 for role in ("tokens", "tags"))
        super().__init__(path, columns)
        # a place counted from the end is a place, too
        places = {role: c + self.width if isinstance(c, int) and c < 0 else c for role, c in columns.items()}
        defaults = {"tokens": 0, "tags": self.width - 1 if self.width > 1 else None}
        self.columns = {**defaults, **places}

    def spans(self, file: BinaryIO) -> Iterator[Span]:  # noqa: D102
        lines = (self.decode(line, number) for number, line in enumerate(file, start=1))
        token = next((one for one in lines if one.strip() and not one.startswith(("#", "-DOCSTART-"))), "")
        self.tab = "\t" in token
        self.width = len(self._fields(token))
        file.seek(0)
        offset, start, first, width = 0, 0, 0, self.width
        for number, content in enumerate(file, start=1):
            line = self.decode(content, number)
            if self._is_token(line):
                found = len(self._fields(line))
                width = found if self.ragged and not first else width
                if found != width:
                    raise InputError(f"{self.path}: line {number} has {found} columns, expected {width}")
                start, first = (start, first) if first else (offset, number)
            elif first and (not line.strip() or line.startswith("-DOCSTART-")):
                yield start, offset, first
                first = 0
            offset += len(content)
        if first:
            yield start, offset, first

    def _fields(self, line: str) -> list[str]:
        line = line.rstrip("\r\n")  # and not at the other separators of Unicode, which are in tokens
        return line.split("\t") if self.tab else [field for field in line.split(" ") if field]

    def _is_token(self, line: str) -> bool:
        comment = line.startswith("#") and (self.ragged or len(self._fields(line)) != self.width)
        return bool(line.strip()) and not comment and not line.startswith("-DOCSTART-")

    def parse(self, text: str, where: str) -> Mapping[Any, Any]:  # noqa: D102
        tokens = [self._fields(line) for line in text.split("\n") if self._is_token(line)]
        columns: dict[Any, list[str]] = {place: list(column) for place, column in enumerate(zip(*tokens, strict=True))}
        place = self.columns["tags"]
        if place in columns and all(_BRACKETED.fullmatch(tag) for tag in columns[place]):
            columns[place] = _without_brackets(columns[place])
        return columns


def _without_brackets(tags: list[str]) -> list[str]:
    """``(PER*``, ``*)``, ``(LOC)``, ``*`` as ``B-PER``, ``I-PER``, ``B-LOC``, ``O``."""
    made, kind = [], None
    for tag in tags:
        opened = tag.startswith("(")
        kind = tag.strip("(*)") if opened else kind
        made.append("O" if kind is None else f"{'B' if opened else 'I'}-{kind}")
        kind = None if tag.endswith(")") else kind
    return made


class TextRows(FileRows):
    """A text a line; for a language model the whole file is one document, which is read at once."""

    def parse(self, text: str, where: str) -> Mapping[Any, Any]:  # noqa: D102
        return {"text": text.rstrip("\r\n")}

    def documents(self) -> Rows:  # noqa: D102
        text = self.decode(self.path.read_bytes(), 1)
        return MemoryRows([{"text": text}] if text.strip() else [], self.label, self.columns)
