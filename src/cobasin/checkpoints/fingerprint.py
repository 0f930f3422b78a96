"""What a model is, as one hash: of its config, and of every tensor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.execution.jobs import run_jobs

# Keys that say where a config is from, or how it is stored; so do those that begin with an underscore.
_NO_FUNCTION = {"architectures", "dtype", "torch_dtype", "transformers_version"}


def fingerprint(checkpoint: Checkpoint, progress: Callable[[int], None] | None = None) -> str:
    """SHA-256, in hexadecimal, of a checkpoint: the same for the same model, however it is split into files.

    Of its config, without what does not say what the model computes; of its class; and of the name, dtype, shape
    and bytes of every tensor.

    Args:
        checkpoint: its tensors are read one by one in every thread.
        progress: called after every tensor with the number of its bytes.
    """
    hashes = {}

    def hash_one(name: str) -> None:
        tensor = checkpoint[name]
        hashes[name] = tensor_hash(tensor)
        if progress is not None:
            progress(tensor.nbytes)

    run_jobs([partial(hash_one, name) for name in sorted(checkpoint)])
    return fingerprint_of(checkpoint, hashes)


def fingerprint_of(checkpoint: Checkpoint, hashes: Mapping[str, str]) -> str:
    """The fingerprint of a checkpoint whose tensors have these hashes (`tensor_hash`); reads no tensor."""
    tensors = [
        [name, str(header.dtype), list(header.shape), hashes[name]]
        for name, header in sorted(checkpoint.headers.items())
    ]
    content = [checkpoint.architecture, _function(checkpoint.config.to_dict()), tensors]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def tensor_hash(tensor: Tensor) -> str:
    """SHA-256, in hexadecimal, of the bytes of a tensor in row-major order."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)  # numpy has no bfloat16
    return hashlib.sha256(flat.numpy().data).hexdigest()


def _function(value: Any) -> Any:
    """A config, and those within it, without the keys that say nothing of what the model computes."""
    if not isinstance(value, dict):
        return value
    return {
        str(key): _function(entry)
        for key, entry in value.items()
        if key not in _NO_FUNCTION and not str(key).startswith("_")
    }
