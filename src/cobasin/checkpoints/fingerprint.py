"""What a model is, as one hash: of its config, and of every tensor."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from blake3 import blake3
from torch import Tensor

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.weight_files import bytes_of
from cobasin.execution.jobs import run_jobs

# Keys that say where a config is from, or how it is stored; so do those that begin with an underscore.
_NO_FUNCTION = {"architectures", "dtype", "torch_dtype", "transformers_version"}


def fingerprint(model: Any) -> str:
    """BLAKE3, in hexadecimal, of a model: the same for the same one, however it is split into files.

    Of its config, without what does not say what the model computes; of its class; and of the name, dtype, shape
    and bytes of every tensor.

    Args:
        model: anything `load` takes; its tensors are read one by one in every thread.

    Raises:
        InputError: as `load`.
    """
    checkpoint, hashes = load(model), {}

    def hash_one(name: str) -> None:
        hashes[name] = tensor_hash(checkpoint[name])

    run_jobs([partial(hash_one, name) for name in sorted(checkpoint)])
    tensors = [
        [name, str(header.dtype), list(header.shape), hashes[name]]
        for name, header in sorted(checkpoint.headers.items())
    ]
    content = [checkpoint.architecture, _function(checkpoint.config.to_dict()), tensors]
    return blake3(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def tensor_hash(tensor: Tensor) -> str:
    """BLAKE3, in hexadecimal, of the bytes of a tensor in row-major order."""
    return blake3(bytes_of(tensor)).hexdigest()


def _function(value: Any) -> Any:
    """A config, and those within it, without the keys that say nothing of what the model computes."""
    if not isinstance(value, dict):
        return value
    return {
        str(key): _function(entry)
        for key, entry in value.items()
        if key not in _NO_FUNCTION and not str(key).startswith("_")
    }
