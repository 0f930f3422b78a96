"""What a run has found, in files: one that was killed goes on from there, parts of one share it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cobasin.checkpoints.output import out_of
from cobasin.checkpoints.refusals import output_errors
from cobasin.errors import InputError, one_line, shown
from cobasin.execution.outcomes import Outcome
from cobasin.execution.parts import Part
from cobasin.symmetry.element import Element
from cobasin.symmetry.keys import key_of, key_text
from cobasin.whole_files import DAMAGED, read_tensors, write_first, write_tensors, write_text

_ELEMENTS = "elements.json"


class Kept:
    """A folder of what was found; it appears with the first thing that is kept.

    Args:
        folder: its place.
        part: of a search that is shared, which part this process is.

    Raises InputError from every method where a file is damaged or cannot be written.
    """

    def __init__(self, folder: Path, part: Part | None = None):
        self.folder, self.part = folder, part

    @property
    def shared(self) -> bool:
        """Whether other parts wait for what is found here."""
        return self.part is not None

    def within(self, name: str) -> Kept:
        """A folder in this one."""
        return Kept(self.folder / name, self.part)

    def anew(self, name: str) -> Kept:
        """A folder in this one for a search that begins once more; it is there at once, for folders of its own."""
        own = self.within(name)
        with output_errors(out_of(own.folder)):
            own.folder.mkdir(parents=self.part is None, exist_ok=True)
        return own

    def owns(self, job: int) -> bool:
        """Whether a job is to be done here, and not by another part."""
        return self.part is None or self.part.owns(job)

    def load(self, name: str, job: int = 0) -> Outcome | None:
        """The outcome of that name; None where there is none, and job number ``job`` has to be done to find it."""
        path = self._path(name)
        if self.part.must_do(job, path) if self.part else not path.exists():
            return None
        try:
            metadata, tensors = read_tensors(path)
            said = {name: json.loads(text) for name, text in metadata.items()}
            values = {}
            for entry, tensor in tensors.items():
                key, part = entry.split("/", 1)
                values.setdefault(key_of(key), {})[part] = tensor.clone()  # the file may be dropped
            return Outcome(values, said["distances"], said["says"])
        except DAMAGED as error:
            raise _damaged(path, error) from error

    def save(self, name: str, outcome: Outcome) -> bool:
        """Keep an outcome, whole or not at all; False where another part has, whose is kept."""
        tensors = {
            f"{key_text(key)}/{part}": tensor for key, value in outcome.values.items() for part, tensor in value.items()
        }
        metadata = {"distances": json.dumps(outcome.distances), "says": json.dumps(outcome.says)}
        return self._write(self._path(name), lambda path: write_tensors(path, tensors, metadata))

    def drop(self, name: str) -> None:
        """Forget an outcome, where there is one."""
        path = self._path(name)
        with output_errors(out_of(path)):
            path.unlink(missing_ok=True)

    def elements(self) -> tuple[int, list[Element | None], dict] | None:
        """The reference, the element of every model, and the report of a search that ended."""
        path = self.folder / _ELEMENTS
        if not path.exists():
            return None
        try:
            content = json.loads(path.read_text())
            elements = [Element.load(self.folder / name) if name else None for name in content["elements"]]
            return content["reference"], elements, content["report"]
        except DAMAGED as error:
            raise _damaged(path, error) from error

    def save_elements(self, reference: int, elements: Sequence[Element | None], report: dict) -> None:
        """Keep what a search has ended with."""
        names = [f"element-{i}" if element else None for i, element in enumerate(elements)]
        for name, element in zip(names, elements, strict=True):
            if name and element:
                self._write(self.folder / name, element.save)
        content = json.dumps({"reference": reference, "elements": names, "report": report})
        self._write(self.folder / _ELEMENTS, lambda path: write_text(path, content))

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def _write(self, path: Path, write: Callable[[Path], object]) -> bool:
        """Write a file, as ``write`` does whole or not at all; False where another part has."""
        with output_errors(out_of(path)):
            # of a folder that is shared, and was gathered meanwhile, nothing is made anew
            self.folder.mkdir(parents=self.part is None, exist_ok=True)
            if self.part is not None:
                return write_first(path, write)
            write(path)
        return True


def check_kept(given: Any) -> None:
    """Raise InputError for what is given in place of one."""
    if not isinstance(given, Kept | None):
        raise InputError(f"keep {shown(given)}: expected a Kept, of cobasin.finding.kept")


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: is damaged ({one_line(error)}); remove {path.parent} to start anew")
