"""An adapter: its config and its tensors by name, as they lie in a PEFT folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cobasin.checkpoints.checkpoint import Content, Tensors
from cobasin.checkpoints.folders import find_folder
from cobasin.checkpoints.json_files import ADAPTER_FILE, read_json, write_json
from cobasin.checkpoints.output import publishing
from cobasin.checkpoints.typed import check_finite
from cobasin.checkpoints.weight_files import (
    BIN_FILE,
    BIN_INDEX_FILE,
    INDEX_FILE,
    SINGLE_FILE,
    WEIGHT_DTYPES,
    Header,
    of_weights,
    open_safetensors,
)
from cobasin.checkpoints.writer import check_files, write_beside
from cobasin.errors import InputError
from cobasin.whole_files import write_tensors

WEIGHTS_FILE = "adapter_model.safetensors"
LARGEST = 1e30  # of lora_alpha
_PIECES = "lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector"
FACTOR = re.compile(rf"(.+)\.({_PIECES})(\.weight|\.bias)?")
"""The name of a tensor of an adapted module, as PEFT writes it: the module, and what of it."""

# With these an adapter is more than factors beside the weights of its base.
_NOT_COVERED = (
    *("layer_replication", "target_parameters", "trainable_token_indices", "ensure_weight_tying", "megatron_config"),
    *("use_qalora", "use_bdlora", "arrow_config", "kasa_config", "monteclora_config", "velora_config"),
)
# Every other start subtracts from the weights of the base as the adapter is loaded.
_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
# The biases (with bias="all") and resized embeddings of modules_to_save PEFT writes twice more, and reads neither.
_COPIES = re.compile(r"\.(modules_to_save(\.[^.]+)?|original_module)(?=\.)")


@dataclass(eq=False, repr=False)
class Adapter(Tensors):
    """A LoRA's config and its tensors by their names in the file, read lazily.

    Attributes:
        label: what messages call it.
        config: as in its file.
        headers: every tensor's dtype and shape.
        read: reads (or computes) one tensor.
        folder: where the adapter's other files are.
    """

    label: str
    config: dict[str, Any]
    headers: dict[str, Header]
    read: Callable[[str], Tensor]
    folder: Path | None = None


def in_dtype(label: str, name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A moved tensor in the dtype that it is stored in.

    Raises:
        InputError: its largest values become infinite there.
    """
    cast = tensor.to(dtype)
    if not cast.isfinite().all():
        raise InputError(
            f"{label}: {name}, moved, does not fit {dtype}: its largest values become infinite; convert the adapter to "
            "a dtype of wider range first"
        )
    return cast


def is_adapter(model: Any) -> bool:
    """Whether this is a PEFT folder, or one of the hub; one with a model's weights is refused where it is loaded."""
    if not isinstance(model, (str, Path)):
        return isinstance(model, Adapter)
    try:
        folder = find_folder(model)
        weights = any((folder / name).exists() for name in (SINGLE_FILE, INDEX_FILE, BIN_FILE, BIN_INDEX_FILE))
        return (folder / ADAPTER_FILE).is_file() and not weights
    except (InputError, OSError):  # a folder that is not there, or may not be read; loading it says so
        return False


def load_adapter(model: str | Path | Adapter) -> Adapter:
    """Open a PEFT folder, here or on the hub; only the header of its tensors is read.

    Raises:
        InputError: for anything missing or damaged, another kind of adapter than LoRA, and variants of LoRA that are
            not factors beside the weights of a base; when a tensor is read, for values that are not finite.
    """
    if isinstance(model, Adapter):
        return model
    folder = find_folder(model, "adapter")
    config = read_json(folder / ADAPTER_FILE)
    _check_config(config, str(model))
    if not (folder / WEIGHTS_FILE).is_file():
        raise InputError(
            f"{model}: has no {WEIGHTS_FILE}; adapters are read from safetensors only, never from a pickle"
        )
    stored, read = open_safetensors(folder / WEIGHTS_FILE)
    headers = {
        name: header
        for name, header in stored.items()
        if not _COPIES.search(name) or _COPIES.sub("", name) not in stored
    }
    _check_headers(headers, str(model))

    def checked(name: str) -> Tensor:
        tensor = read(name)
        check_finite(str(model), name, tensor)
        return tensor

    return Adapter(str(model), config, headers, checked, folder)


def _check_config(config: Mapping[str, Any], label: str) -> None:
    """Refuse another kind of adapter than LoRA, and variants that are not covered."""
    if config.get("peft_type") != "LORA":
        raise InputError(f"{label}: peft_type is {config.get('peft_type')!r}; only adapters of type 'LORA' are covered")
    if found := [key for key in _NOT_COVERED if config.get(key)]:
        why = " (PEFT sets it where target_modules name experts or routers)" if found[0] == "target_parameters" else ""
        raise InputError(f"{label}: {found[0]} is set in {ADAPTER_FILE}{why}; such adapters are not covered")
    _check_values(config, label)
    if config.get("init_lora_weights") not in _STARTS:
        raise InputError(
            f"{label}: init_lora_weights is {config['init_lora_weights']!r}: loading the adapter changes the weights "
            "of its base; convert it to a plain LoRA with peft's path_initial_model_for_weight_conversion"
        )


def _check_headers(headers: Mapping[str, Header], label: str) -> None:
    """Refuse tensors that are not those of a whole adapter, or hold no weights."""
    if odd := [name for name in headers if re.search(rf"\.({_PIECES})\b", name) and not FACTOR.fullmatch(name)]:
        raise InputError(
            f"{label}: {odd[0]} is no name that PEFT writes; in a state dict the adapter's name is a part of it: write "
            "the adapter with save_pretrained"
        )
    if not any(FACTOR.fullmatch(name) for name in headers):
        raise InputError(f"{label}: {WEIGHTS_FILE} holds no lora_A and lora_B; the adapter was not saved whole")
    for name, header in headers.items():
        if not all(header.shape):
            raise InputError(f"{label}: {name} has shape {list(header.shape)}: it is empty")
        if not of_weights(header.dtype):
            raise InputError(f"{label}: {name} has dtype {header.dtype}, expected {WEIGHT_DTYPES}")


def _check_values(config: Mapping[str, Any], label: str) -> None:
    """Raise InputError for a config whose values are not what PEFT writes there."""
    base, patterns = config.get("base_model_name_or_path"), config.get("alpha_pattern") or {}
    if base is not None and not isinstance(base, str):
        raise InputError(f"{label}: {ADAPTER_FILE}: base_model_name_or_path is {base!r}; expected a name or a folder")
    if not isinstance(patterns, dict):
        raise InputError(f"{label}: {ADAPTER_FILE}: alpha_pattern is {patterns!r}; expected numbers by module")
    for name, alpha in (("lora_alpha", config.get("lora_alpha", 8)), *patterns.items()):
        if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not abs(alpha) <= LARGEST:
            raise InputError(f"{label}: {ADAPTER_FILE}: {name} is {alpha!r}; expected a number")
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InputError(f"{label}: {ADAPTER_FILE}: alpha_pattern has {pattern!r}: {error}") from None


def save_adapter(
    adapter: str | Path | Adapter,
    out: str | Path,
    *,
    files: Mapping[str, Content] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a PEFT folder, complete or not at all, with the tokenizer and other files of the adapter's folder.

    Args:
        adapter: what is written, or anything else `load_adapter` takes; its tensors are computed now.
        out: the folder.
        files: further files by name: their text, or a function that writes a path; None to leave one out.
        overwrite: whether a folder that is there may be replaced.

    Raises:
        InputError: as `load_adapter`; where ``out`` is refused or cannot be written; for ``files`` that are none.
    """
    check_files(files)
    adapter = load_adapter(adapter)
    with publishing(out, overwrite, adapter.folder) as partial:
        write_tensors(partial / WEIGHTS_FILE, adapter, {"format": "pt"})
        write_beside(partial, adapter.folder, files or {})
        write_json(partial / ADAPTER_FILE, adapter.config)
