"""The plain ways that everything is measured against, as programs of their own.

python benchmarks/common/floors.py average A B OUT     # reads both, averages, writes; numpy, 4 MB at a time
python benchmarks/common/floors.py tensors A B OUT     # the same, one tensor after another; torch and safetensors
python benchmarks/common/floors.py gram A B            # the Grams of all FFNs, and the assignments
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np

_CHUNK = 1 << 21  # entries


def average(a: Path, b: Path, out: Path) -> None:
    """The mean of two bfloat16 checkpoints whose shards are laid out alike, brought to the disk."""
    out.mkdir(parents=True)
    for path in sorted(a.glob("*.safetensors")):
        with path.open("rb") as one, (b / path.name).open("rb") as other, (out / path.name).open("wb") as result:
            heads = [file.read(int.from_bytes(file.read(8), "little")) for file in (one, other)]
            if heads[0] != heads[1] or b'"F32"' in heads[0]:
                raise SystemExit(f"{path.name}: expected bfloat16 tensors, laid out alike in both")
            result.write(len(heads[0]).to_bytes(8, "little") + heads[0])
            while data := one.read(2 * _CHUNK):
                result.write(_mean(data, other.read(len(data))))
            result.flush()
            os.fsync(result.fileno())
    for path in a.glob("*.json"):
        shutil.copyfile(path, out / path.name)


def tensors(a: Path, b: Path, out: Path) -> None:
    """The same mean, one tensor after another: what the files cost a program that knows of tensors."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    out.mkdir(parents=True)
    for path in sorted(a.glob("*.safetensors")):
        with safe_open(path, "pt") as one, safe_open(b / path.name, "pt") as other:
            pairs = ((name, one.get_tensor(name).float(), other.get_tensor(name)) for name in one.offset_keys())
            save_file({name: x.add_(y).mul_(0.5).bfloat16() for name, x, y in pairs}, out / path.name, {"format": "pt"})
        with (out / path.name).open("rb") as result:
            os.fsync(result.fileno())
    for path in a.glob("*.json"):
        shutil.copyfile(path, out / path.name)


def _mean(a: bytes, b: bytes) -> bytes:
    x, y = (np.frombuffer(one, np.uint16).astype(np.uint32) for one in (a, b))
    x <<= 16
    y <<= 16
    total = x.view(np.float32)
    total += y.view(np.float32)
    total *= 0.5
    bits = total.view(np.uint32)
    bits += 0x7FFF + ((bits >> 16) & 1)  # to the nearest, ties to even
    bits >>= 16
    return bits.astype(np.uint16).tobytes()


def gram(a: Path, b: Path) -> None:
    """The arithmetic of matching the FFNs of two Llamas: three products a layer, and an assignment where needed."""
    from concurrent.futures import ThreadPoolExecutor

    import torch
    from safetensors import safe_open
    from scipy.optimize import linear_sum_assignment

    def reader(folder: Path):
        index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
        opened = {name: safe_open(folder / name, framework="pt") for name in set(index.values())}
        return lambda name: opened[index[name]].get_tensor(name).float()

    one, other = reader(a), reader(b)
    layers = json.loads((a / "config.json").read_text())["num_hidden_layers"]

    def assigned(gain: torch.Tensor) -> None:
        if gain.argmax(0).unique().numel() < gain.shape[0]:
            linear_sum_assignment(gain.double().numpy(), maximize=True)

    with ThreadPoolExecutor(1) as behind:
        last = None
        for layer in range(layers):
            gate, up, down = (f"model.layers.{layer}.mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
            signed = torch.addmm(one(up) @ other(up).T, one(down).T, other(down))
            gain = torch.addmm(signed.abs_(), one(gate), other(gate).T)
            if last is not None:
                last.result()
            last = behind.submit(assigned, gain)
        if last is not None:
            last.result()


if __name__ == "__main__":
    {"average": average, "tensors": tensors, "gram": gram}[sys.argv[1]](*map(Path, sys.argv[2:]))
