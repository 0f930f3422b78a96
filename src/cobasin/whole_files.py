"""Files that are there whole, or as they were before."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

UNFINISHED = ".unfinished"
"""The end of the names of files that are being written."""

DAMAGED = (AttributeError, KeyError, OSError, RuntimeError, SafetensorError, TypeError, ValueError)
"""What reading a damaged file may raise."""


def unfinished(path: Path) -> Path:
    """A name of its own for a file that is being written; a process that is killed leaves that file behind."""
    return path.with_name(f"{path.name}.{uuid4().hex[:12]}{UNFINISHED}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which becomes ``path`` at the end of the block; nothing is left of it if that fails."""
    new = unfinished(path)
    try:
        yield new
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def write_first(path: Path, write: Callable[[Path], object]) -> bool:
    """Write a whole file unless it exists; whether it was written. Of several processes, the first one's stays."""
    new = unfinished(path)
    try:
        write(new)
        os.link(new, path)
    except FileExistsError:
        return False
    finally:
        new.unlink(missing_ok=True)
    return True


def write_text(path: Path, text: str) -> None:
    """Write a text; it is there whole, or as it was before."""
    with replacing(path) as new:
        new.write_text(text)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file that whoever may read new files can read; it is there whole, or as it was before.

    Raises:
        OSError, SafetensorError: it cannot be written.
        RuntimeError: tensors share memory.
    """
    with replacing(path) as new:
        new.touch()
        mode = new.stat().st_mode  # the library makes files that only their owner can read
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, new, dict(metadata))
        new.chmod(mode)


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """What `write_tensors` has written: the metadata, and the tensors, mapped from the file.

    Raises:
        OSError, SafetensorError: it cannot be read.
    """
    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
