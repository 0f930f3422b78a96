"""The weight files of a Hugging Face folder: which there are, and their tensors, read lazily."""

from __future__ import annotations

import math
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cobasin.checkpoints.json_files import read_json
from cobasin.errors import InputError, listed, one_line

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
BIN_FILE = "pytorch_model.bin"
BIN_INDEX_FILE = "pytorch_model.bin.index.json"

# The element types of the safetensors format that are one torch element each (packed F4 and F6 are not).
SAFETENSORS_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}

WEIGHT_DTYPES = "float64, float32, float16 or bfloat16"
"""Those that are computed with, for messages; see `of_weights`."""

_AHEAD = 1 << 26  # bytes that the system is asked to fetch before they are read
_WORTH = 1 << 20  # bytes: a smaller tensor is not worth asking

Reader = Callable[[str], Tensor]


@dataclass(frozen=True)
class Header:
    """What is known of a tensor without reading it; ``shard`` is the name of the file that it is in."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    shard: str

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def open_weights(folder: Path) -> tuple[dict[str, Header], Reader]:
    """The headers of all tensors in file order, and a function that reads one, safe to call from threads.

    Raises InputError if there are no weights, two sets of them, a damaged or unsafe file, or an index that
    does not agree with its shards.
    """
    shards, weight_map = _find(folder)
    problems = [f"{shard} is missing" for shard in shards if not (folder / shard).exists()]
    present = [shard for shard in shards if (folder / shard).exists()]
    opened = {shard: _open(folder / shard) for shard in present}
    if weight_map is not None:
        problems += _contradictions(weight_map, {shard: set(opened[shard][0]) for shard in present})
    if problems:
        raise InputError(f"{folder}: the index and the shards do not agree: {listed(problems)}")
    headers = {name: header for shard in shards for name, header in opened[shard][0].items()}
    readers = {shard: read for shard, (_, read) in opened.items()}
    return headers, lambda name: readers[headers[name].shard](name)


def of_weights(dtype: torch.dtype) -> bool:
    """Whether it is one of `WEIGHT_DTYPES`: real numbers, in more than the byte that quantized ones have."""
    return dtype.is_floating_point and dtype.itemsize > 1


def describe(tensors: Any, shard: str, label: str) -> dict[str, Header]:
    """Headers of tensors that are at hand; raises InputError for what is not a state dict."""
    if not isinstance(tensors, Mapping):
        found = f"holds a {type(tensors).__name__}"
        raise InputError(f"{label}: {found}; expected a state dict, names to tensors")
    for name, value in tensors.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            found = f"{name!r} is a {type(value).__name__}"
            within = next((key for key, one in tensors.items() if _holds_tensors(one)), None)
            hint = f"; the one under {within!r} may be it: save that alone" if within is not None else ""
            raise InputError(f"{label}: {found}; expected a state dict, names to tensors{hint}")
        if value.is_meta:
            raise InputError(f"{label}: {name} has no data (meta device); load the model's weights first")
        if value.layout != torch.strided:
            raise InputError(f"{label}: {name} is of layout {value.layout}; expected a dense tensor (to_dense)")
        if value.dtype not in SAFETENSORS_DTYPES.values():
            raise InputError(
                f"{label}: {name} is {value.dtype}, a type that cobasin does not write; convert it or leave it out"
            )
    return {name: Header(value.dtype, tuple(value.shape), shard) for name, value in tensors.items()}


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Mapping) and any(isinstance(one, Tensor) for one in value.values())


def bytes_of(tensor: Tensor) -> memoryview:
    """What a tensor is in a file, in row-major order."""
    # as bytes, because numpy has no bfloat16; flat, because a scalar cannot change its element size
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _find(folder: Path) -> tuple[list[str], dict[str, str] | None]:
    """The weight files to read, in order, and the index's map from tensor to file, if there is an index."""
    for single, index in ((SINGLE_FILE, INDEX_FILE), (BIN_FILE, BIN_INDEX_FILE)):
        has_single, has_index = (folder / single).exists(), (folder / index).exists()
        if has_single and has_index:
            weight_map = read_json(folder / index).get("weight_map")
            if isinstance(weight_map, dict) and weight_map and all(shard == single for shard in weight_map.values()):
                return [single], weight_map  # MLX writes an index of a single file, too
            raise InputError(
                f"{folder}: holds both {single} and {index}, so two loaders would read two different models; "
                f"remove the stale one"
            )
        if has_single:
            return [single], None
        if has_index:
            weight_map = _weight_map(folder / index, Path(single).suffix)
            return sorted(set(weight_map.values())), weight_map
    raise InputError(f"{folder}: has no weights; expected one of {SINGLE_FILE}, {INDEX_FILE}, {BIN_FILE}")


def _weight_map(index: Path, suffix: str) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f'{index}: has no "weight_map" from tensor names to files')
    sound = set[str]()
    for name, shard in weight_map.items():
        if isinstance(shard, str) and shard in sound:
            continue
        # A name with a folder in it would be read, and later written, outside the model's folder.
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(suffix):
            raise InputError(f"{index}: {name} is in {shard!r}; expected the name of a {suffix} file")
        sound.add(shard)
    return weight_map


def _contradictions(weight_map: dict[str, str], present: dict[str, set[str]]) -> list[str]:
    missing = [
        f"{name} is not in {shard}"
        for name, shard in weight_map.items()
        if shard in present and name not in present[shard]
    ]
    unlisted = [
        f"{name} is in {shard}, where the index does not list it"
        for shard, names in present.items()
        for name in sorted(names)
        if weight_map.get(name) != shard
    ]
    return missing + unlisted


def _open(path: Path) -> tuple[dict[str, Header], Reader]:
    if not path.is_file():
        raise InputError(f"{path}: is not a file")
    return _open_pickle(path) if path.suffix == ".bin" else open_safetensors(path)


def open_safetensors(path: Path) -> tuple[dict[str, Header], Reader]:
    """The headers of one file's tensors in file order, and a function that reads one.

    Raises InputError if the file is damaged, or holds elements that torch has no type for.
    """
    headers, ends, end = {}, {}, 0
    try:
        handle = safe_open(path, framework="pt")
        for name in handle.offset_keys():
            entry = handle.get_slice(name)
            dtype = SAFETENSORS_DTYPES.get(entry.get_dtype())
            if dtype is None:
                raise InputError(f"{path}: {name} has element type {entry.get_dtype()}, which torch has not")
            headers[name] = Header(dtype, tuple(entry.get_shape()), path.name)
            end += headers[name].size
            ends[name] = end
    except SafetensorError as error:
        reason = f"truncated, corrupt or not safetensors ({one_line(error)})"
        raise InputError(f"{path}: {reason}; fetch the file again") from error
    except OSError as error:  # one that safetensors gives has no number
        raise InputError(f"{path}: cannot be read: {one_line(error)}") from error
    except RuntimeError as error:  # the system may refuse to map a file that is larger than its memory
        reason = one_line(error)
        raise InputError(f"{path}: cannot be mapped ({reason}); save the model in smaller shards") from error
    start = path.stat().st_size - end  # of the tensors, which follow each other to the end of the file

    def read(name: str) -> Tensor:
        if headers[name].size >= _WORTH:
            _fetch_ahead(path, start + ends[name])
        return handle.get_tensor(name)

    return headers, read


def _fetch_ahead(path: Path, start: int) -> None:
    """Have the system fetch what comes next in a file while what was just asked for is computed with."""
    if hasattr(os, "posix_fadvise"):  # not everywhere
        with suppress(OSError):  # advice only: the file may be gone, and its mapping is not
            file = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(file, start, _AHEAD, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(file)


def _open_pickle(path: Path) -> tuple[dict[str, Header], Reader]:
    try:
        # Files from before torch 1.6 are no zip archives and cannot be memory-mapped.
        mapped = zipfile.is_zipfile(path)
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # torch raises many kinds on damaged files
        # torch's own text advises to load without the check.
        unsafe = isinstance(error, pickle.UnpicklingError)
        reason = "damaged, or a pickle with code in it" if unsafe else one_line(error)
        raise InputError(
            f"{path}: cannot be read safely ({reason}); nothing in it was executed; convert it to safetensors"
        ) from error
    # a file may hold parameters, which ask for gradients
    return describe(tensors, path.name, str(path)), lambda name: tensors[name].detach()
