"""Write a checkpoint as a Hugging Face folder: streamed, two tensors in memory, and all or nothing."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from itertools import chain
from pathlib import Path
from typing import Any

from cobasin.checkpoints.checkpoint import Checkpoint, Content, load
from cobasin.checkpoints.configs import keep_generation, write_config
from cobasin.checkpoints.json_files import CONFIG_FILE, GENERATION_FILE, write_json
from cobasin.checkpoints.output import publishing
from cobasin.checkpoints.sentence_transformers import module_folders, module_weights
from cobasin.checkpoints.sequential import SequentialFile
from cobasin.checkpoints.weight_files import (
    INDEX_FILE,
    SAFETENSORS_DTYPES,
    SINGLE_FILE,
    bytes_of,
)
from cobasin.errors import InputError, shown
from cobasin.execution.parts import Part
from cobasin.progress import Bytes, progress_of, silent
from cobasin.whole_files import unfinished

_DTYPE_NAMES = {dtype: name for name, dtype in SAFETENSORS_DTYPES.items()}
_OF_THE_SOURCE = {
    *(CONFIG_FILE, "cobasin.json", "trainer_state.json"),
    *("all_results.json", "eval_results.json", "train_results.json", "test_results.json", "predict_results.json"),
}
_WEIGHT_SUFFIXES = {
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".onnx_data"),
    *(".gguf", ".tflite", ".ot", ".mlmodel", ".nemo"),
}
# an index, also of a variant such as fp16; what TensorFlow 1 splits a model into
_OF_WEIGHTS = re.compile(r"\.index(\.\w+)?\.json$|\.ckpt\.(index|meta|data-\d)")
_BEHIND = 1 << 20  # bytes: what is smaller is not worth handing to another thread


def save(
    checkpoint: Any,
    out: str | Path,
    *,
    files: Mapping[str, Content] | None = None,
    overwrite: bool = False,
    progress: Bytes | None = None,
) -> None:
    """Write a model to a folder: afterwards complete, or not there at all.

    Shards and their order are those of the checkpoint's headers, as safetensors; while one tensor is written the next
    is read, so memory is bounded by the two largest. The tokenizer and the other files of its folder that are neither
    weights, a README nor a report are carried along, and so are the weights of further modules (of Sentence
    Transformers). Everything is written to a sibling of ``out`` that is renamed at the end; an old ``out`` is replaced
    only then.

    Args:
        checkpoint: the model, or anything else `load` takes.
        out: the folder.
        files: further files by name: their text, or a function that writes to the path it is given; None leaves out
            what would be carried.
        overwrite: whether a folder that is there may be replaced.
        progress: called after every tensor with the number of its bytes.

    Raises:
        InputError: where ``out`` is refused (see `check_output`) or cannot be written; for ``files`` and ``progress``
            that are none.
        RuntimeError: where a tensor is not of the dtype and shape that its header says.
    """
    check_files(files)
    progress, checkpoint = progress_of(progress), load(checkpoint)
    with publishing(out, overwrite, checkpoint.folder) as partial:
        write(checkpoint, partial, files=files, progress=progress)


def check_files(files: Any) -> None:
    """Raise InputError for what are no names with their contents."""
    if not isinstance(files, Mapping | None) or not all(isinstance(name, str) for name in files or ()):
        raise InputError(f"files {shown(files)}: expected the name of each, and its text")
    for name, content in (files or {}).items():
        if not (isinstance(content, str | None) or callable(content)):
            raise InputError(f"files: {name}: {shown(content)}: expected a text, a function that writes it, or None")


def write(
    checkpoint: Checkpoint,
    folder: Path,
    *,
    files: Mapping[str, Content] | None = None,
    progress: Bytes = silent,
) -> None:
    """`save` into a folder that is there, and is not yet what anybody looks at; shards that it has are finished."""
    write_shards(checkpoint, folder, progress)
    plan = _plan(checkpoint)
    if list(plan) != [SINGLE_FILE]:
        weight_map = {name: shard for shard, names in plan.items() for name in names}
        index = {"metadata": {"total_size": checkpoint.size}, "weight_map": weight_map}
        write_json(folder / INDEX_FILE, index)
    write_beside(folder, checkpoint.folder, {**checkpoint.beside, **(files or {})})
    if checkpoint.folder is not None and not (folder / GENERATION_FILE).exists():
        keep_generation(checkpoint, checkpoint.folder, folder)
    # Last: without a config no loader takes the folder for a model.
    write_config(checkpoint, folder)


def write_beside(folder: Path, source: Path | None, files: Mapping[str, Content]) -> None:
    """Write what goes with the weights: the other files of the ``source`` folder, then ``files``."""
    if source is not None:
        _carry(source, folder)
    for name, content in files.items():
        if content is None:
            (folder / name).unlink(missing_ok=True)
        else:
            _write_file(folder / name, content)


def write_shards(checkpoint: Checkpoint, folder: Path, progress: Bytes, part: Part | None = None) -> None:
    """The files of weights that are not in ``folder`` yet; of these, a ``part`` writes its own."""
    with ThreadPoolExecutor(1) as writing, ThreadPoolExecutor(1) as finishing:
        finished = []
        for job, (shard, names) in enumerate(_plan(checkpoint).items()):
            if (folder / shard).exists() or not (part is None or part.owns(job)):
                progress(sum(checkpoint.headers[name].size for name in names))
                continue
            file = _write_shard(checkpoint, names, folder / shard, writing, progress)
            finished.append(finishing.submit(_finish, file, folder / shard))
        for one in finished:
            one.result()


def _plan(checkpoint: Checkpoint) -> dict[str, list[str]]:
    """The shards, and the tensors in each."""
    plan: dict[str, list[str]] = {}
    for name, header in checkpoint.headers.items():
        plan.setdefault(_safetensors_name(header.shard), []).append(name)
    return plan


def _safetensors_name(shard: str) -> str:
    if shard.endswith(".bin"):
        return shard.removesuffix(".bin").replace("pytorch_model", "model") + ".safetensors"
    return shard


def _write_shard(
    checkpoint: Checkpoint, names: list[str], path: Path, writing: Executor, progress: Bytes
) -> SequentialFile:
    """Write one safetensors file, header first, from the plan alone; while a tensor is written the next is computed.

    Returns the file, still open, and by another name; see `_finish`.
    """
    # Wide elements first, so that every tensor of the mapped file is aligned to its element size.
    names = sorted(names, key=lambda name: -checkpoint.headers[name].dtype.itemsize)
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        header = checkpoint.headers[name]
        start, end = end, end + header.size
        entries[name] = {
            "dtype": _DTYPE_NAMES[header.dtype],
            "shape": list(header.shape),
            "data_offsets": [start, end],
        }
    head = json.dumps(entries, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    file, behind = SequentialFile(unfinished(path)), None
    try:
        file.write(len(head).to_bytes(8, "little") + head)
        for name in names:
            content = _bytes_of(checkpoint, name)
            if behind is not None:
                progress(behind.result())
            behind = None
            if content.nbytes < _BEHIND:
                progress(file.write(content))
            else:
                behind = writing.submit(file.write, content)
            del content
        if behind is not None:
            progress(behind.result())
    except BaseException:
        wait([] if behind is None else [behind])
        file.discard()
        raise
    return file


def _finish(file: SequentialFile, path: Path) -> None:
    """A shard has its name once all of it is on the disk."""
    try:
        file.finish()
    except BaseException:
        file.discard()
        raise
    file.close()
    file.path.replace(path)


def _bytes_of(checkpoint: Checkpoint, name: str) -> memoryview:
    header, tensor = checkpoint.headers[name], checkpoint[name]
    planned, found = (header.dtype, header.shape), (tensor.dtype, tuple(tensor.shape))
    if planned != found:
        raise RuntimeError(f"{name} was planned as {planned} but came as {found}")
    return bytes_of(tensor)


def _carry(source: Path, folder: Path) -> None:
    beside = module_weights(source)
    # of folders that are links only those that the model needs: others may lead to data of any size
    linked = (one.rglob("*") for one in module_folders(source) if one.is_symlink())
    for path in chain(source.rglob("*"), *linked):
        name = path.relative_to(source)
        hidden = any(part.startswith(".") for part in name.parts)
        weights = (path.suffix in _WEIGHT_SUFFIXES or _OF_WEIGHTS.search(path.name)) and path not in beside
        # README, report and scores describe the source, and the config is written anew.
        described = path.name in _OF_THE_SOURCE or path.stem.lower() == "readme"
        own = len(name.parts) == 1 and described
        if path.is_file() and not (hidden or weights or own):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                content = path.open("rb")
            except OSError as error:
                raise InputError(f"{path}: cannot be read: {error.strerror}; it goes with the model") from error
            with content, (folder / name).open("wb") as copied:
                shutil.copyfileobj(content, copied)


def _write_file(path: Path, content: Callable[[Path], object] | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        path.write_text(content, encoding="utf-8", errors="backslashreplace")  # paths may hold what is no UTF-8
    else:
        content(path)
