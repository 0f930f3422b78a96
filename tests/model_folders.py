"""What the tests of reading and writing model folders share."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.writer import save
from cobasin.errors import InputError


class Exploit:
    """Pickles to a call that leaves a file behind when it is executed."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def load_refusal(model, config=None):
    """The one line with which a model is refused."""
    with pytest.raises(InputError) as refused:
        load(model, config)
    message = str(refused.value)
    assert "\n" not in message
    return message


def save_refusal(checkpoint, out, **options):
    with pytest.raises(InputError) as refused:
        save(checkpoint, out, **options)
    message = str(refused.value)
    assert "\n" not in message
    return message


def as_bins(folder, shards=1):
    """Turn a folder with one safetensors file into one with pickled weights."""
    tensors = list(load_file(folder / "model.safetensors").items())
    (folder / "model.safetensors").unlink()
    if shards == 1:
        torch.save(dict(tensors), folder / "pytorch_model.bin")
        return
    weight_map = {}
    for shard in range(shards):
        name = f"pytorch_model-{shard + 1:05d}-of-{shards:05d}.bin"
        part = dict(tensors[shard::shards])
        torch.save(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))


def changed(source, change, headers=None):
    """A checkpoint whose tensors are computed from those of `source` on the fly."""
    return Checkpoint(
        "changed",
        source.config,
        source.architecture,
        headers or source.headers,
        lambda name: change(name, source[name]),
        source.folder,
    )


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_bitwise(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        flat = [value.contiguous().reshape(-1).view(torch.uint8) for value in (found[name], tensor)]
        assert torch.equal(*flat)
