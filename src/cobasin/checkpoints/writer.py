"""Write a checkpoint as a Hugging Face folder: streamed, one tensor in memory, and all or nothing."""

from __future__ import annotations

import copy
import errno
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.weight_files import INDEX_FILE, SAFETENSORS_DTYPES, SINGLE_FILE, Header
from cobasin.errors import InputError

_DTYPE_NAMES = {dtype: name for name, dtype in SAFETENSORS_DTYPES.items()}
_WEIGHT_SUFFIXES = {
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".onnx_data"),
    *(".gguf", ".tflite", ".ot"),
}
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

Progress = Callable[[int], None]


def save(
    checkpoint: Checkpoint,
    out: Path,
    *,
    files: Mapping[str, Callable[[Path], None] | str] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write `checkpoint` to the folder `out`, which exists afterwards complete or not at all.

    Shards and their order are those of `checkpoint.headers`, as safetensors; tensors are read one at a time,
    so memory is bounded by the largest. The tokenizer and the other files of `checkpoint.folder` that are
    neither weights nor a README are carried along. `files` adds files by name: their text, or a function that
    writes to the path it is given. `progress` is called after every tensor with the number of its bytes.

    Everything is written to a sibling of `out` that is renamed at the end; an old `out` is replaced only
    then.

    Raises InputError where `out` is refused (see `check_output`) or cannot be written, RuntimeError where a
    tensor is not of the dtype and shape that its header says.
    """
    with publishing(out, overwrite, checkpoint.folder) as partial:
        _write_weights(checkpoint, partial, progress or (lambda _: None))
        write_beside(partial, checkpoint.folder, files or {})
        # Last: without a config no loader takes the folder for a model.
        _write_config(checkpoint, partial)


@contextmanager
def publishing(out: Path, overwrite: bool, source: Path | None) -> Iterator[Path]:
    """A folder to fill, which becomes ``out`` at the end of the block; nothing is left of it if that fails.

    Raises InputError where `out` is refused (see `check_output`) or cannot be written.
    """
    out = Path(out).resolve()
    with _output_errors(out):
        _clear_stale(out)
        check_output(out, overwrite, [source])
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
        try:
            partial.mkdir()
            yield partial
            _sync(partial)
            _publish(partial, out, overwrite)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def write_beside(folder: Path, source: Path | None, files: Mapping[str, Callable[[Path], None] | str]) -> None:
    """Write what goes with the weights: the other files of the ``source`` folder, then ``files``."""
    if source is not None:
        _carry(source, folder)
    for name, content in files.items():
        _write_file(folder / name, content)


def check_output(out: Path, overwrite: bool, inputs: Iterable[Path | None] = ()) -> None:
    """Refuse, before any work, an output folder that `save` would refuse after it.

    Raises InputError if `out` is a file, holds files without `overwrite`, cannot be written to, or overlaps
    with one of the folders `inputs` (None: a model without a folder).
    """
    target = Path(out).resolve()
    with _output_errors(target):
        if target.exists() and not target.is_dir():
            raise InputError(f"{out}: is a file; give a folder for the output")
        for source in (path.resolve() for path in inputs if path is not None):
            if target == source or source in target.parents:
                raise InputError(f"{out}: lies in the input folder {source}; choose a folder outside of it")
            if target in source.parents:
                raise InputError(f"{out}: holds the input folder {source}; choose another folder")
        if target.is_dir() and not overwrite and any(target.iterdir()):
            raise InputError(f"{out}: is not empty; choose another folder, or replace it with --overwrite")
        parent = next((path for path in target.parents if path.exists()), target)
        if not parent.is_dir():
            raise InputError(f"{out}: {parent} is a file; choose another folder")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise InputError(f"{out}: {parent} cannot be written to; choose another folder")


@contextmanager
def _output_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = error.errno if isinstance(error, OSError) else _errno_in(error)
        if number is None:
            raise
        what_to_do = (
            "free some space, raise the limit, or choose a folder on another disk"
            if number in _DISK_FULL
            else "choose another folder or change its permissions"
        )
        raise InputError(f"{out}: cannot be written: {os.strerror(number)}; {what_to_do}") from error


def _errno_in(error: SafetensorError) -> int | None:
    """The number of the operating system's error, which safetensors gives only in its text."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


def _clear_stale(out: Path) -> None:
    """Remove what killed runs left beside `out`, or bring back an old `out` that one had moved aside."""
    pattern = re.compile(rf"\.{re.escape(out.name)}\.(partial|replaced)-(\d+)")
    for sibling in list(out.parent.iterdir()) if out.parent.is_dir() else []:
        found = pattern.fullmatch(sibling.name)
        if found is None or _is_running(int(found[2])):
            continue
        if found[1] == "replaced" and not out.exists():
            sibling.rename(out)
        else:
            shutil.rmtree(sibling)


def _is_running(pid: int) -> bool:
    # A leftover under our own id is from an earlier process: in containers ids repeat from run to run.
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:  # another user's
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _write_weights(checkpoint: Checkpoint, folder: Path, progress: Progress) -> None:
    plan: dict[str, list[str]] = {}
    for name, header in checkpoint.headers.items():
        plan.setdefault(_safetensors_name(header.shard), []).append(name)
    total_size = sum(_write_shard(checkpoint, names, folder / shard, progress) for shard, names in plan.items())
    if list(plan) != [SINGLE_FILE]:
        weight_map = {name: shard for shard, names in plan.items() for name in names}
        index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
        _write_file(folder / INDEX_FILE, json.dumps(index, indent=2, sort_keys=True) + "\n")


def _safetensors_name(shard: str) -> str:
    if shard.endswith(".bin"):
        return shard.removesuffix(".bin").replace("pytorch_model", "model") + ".safetensors"
    return shard


def _write_shard(checkpoint: Checkpoint, names: list[str], path: Path, progress: Progress) -> int:
    """Write one safetensors file, header first, from the plan alone; returns the bytes of its tensors."""
    # Wide elements first, so that every tensor of the mapped file is aligned to its element size.
    names = sorted(names, key=lambda name: -checkpoint.headers[name].dtype.itemsize)
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        header = checkpoint.headers[name]
        start, end = end, end + math.prod(header.shape) * header.dtype.itemsize
        entries[name] = {
            "dtype": _DTYPE_NAMES[header.dtype],
            "shape": list(header.shape),
            "data_offsets": [start, end],
        }
    head = json.dumps(entries, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name in names:
            progress(file.write(_bytes_of(checkpoint, name, checkpoint.headers[name])))
    return end


def _bytes_of(checkpoint: Checkpoint, name: str, header: Header) -> memoryview:
    tensor = checkpoint[name]
    planned, found = (header.dtype, header.shape), (tensor.dtype, tuple(tensor.shape))
    if planned != found:
        raise RuntimeError(f"{name} was planned as {planned} but came as {found}")
    # As bytes, because numpy has no bfloat16; flat, because a scalar cannot change its element size.
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _carry(source: Path, folder: Path) -> None:
    for path in source.rglob("*"):
        name = path.relative_to(source)
        hidden = any(part.startswith(".") for part in name.parts)
        weights = path.suffix in _WEIGHT_SUFFIXES or path.name.endswith(".index.json")
        # The README describes the source, and the config is written anew.
        own = len(name.parts) == 1 and (path.name == "config.json" or path.stem.lower() == "readme")
        if path.is_file() and not (hidden or weights or own):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / name)


def _write_file(path: Path, content: Callable[[Path], None] | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    else:
        content(path)


def _write_config(checkpoint: Checkpoint, folder: Path) -> None:
    config = copy.deepcopy(checkpoint.config)
    config.architectures = [checkpoint.architecture]
    dtypes = {header.dtype for header in checkpoint.headers.values() if header.dtype.is_floating_point}
    if len(dtypes) == 1:
        # from_pretrained casts to the config's dtype, which may be that of another checkpoint.
        config.dtype = dtypes.pop()
    config.save_pretrained(folder)


def _sync(folder: Path) -> None:
    """Bring everything to the disk, so that the rename cannot outlive the data in a power cut."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _publish(partial: Path, out: Path, overwrite: bool) -> None:
    if not (overwrite and out.exists()):
        # Fails if a concurrent run has filled `out` in the meantime; an empty folder is replaced.
        partial.rename(out)
        return
    replaced = out.with_name(f".{out.name}.replaced-{os.getpid()}")
    out.rename(replaced)
    try:
        partial.rename(out)
    except BaseException:
        replaced.rename(out)
        raise
    shutil.rmtree(replaced, ignore_errors=True)
