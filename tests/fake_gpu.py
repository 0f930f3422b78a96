"""A GPU without a GPU: tensors that were brought to it are marked, and what torch would refuse to mix is refused."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
_DEVICE = Tensor.device.__get__  # pyright: ignore[reportAttributeAccessIssue]


def on_gpu(x: Any) -> bool:
    """Whether a tensor was brought to the GPU."""
    return getattr(x, "_on_gpu", False)


class FakeGpu(TorchFunctionMode):
    """In such a block ``cuda:0`` is a device, whose tensors are computed on the CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, kwargs = getattr(func, "__name__", ""), dict(kwargs or {})
        if func == _DEVICE:
            return GPU if on_gpu(args[0]) else CPU
        if name in ("to", "cpu"):
            return self._brought(func, name, args, kwargs)
        there = None
        if kwargs.get("device") is not None:
            there = _is_gpu(kwargs["device"])
            kwargs["device"] = CPU
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        first = bool(args) and on_gpu(args[0])
        if name in ("numpy", "__array__") and first:
            raise RuntimeError(f"{name} of a tensor on the GPU")
        if len({on_gpu(x) for x in tensors}) > 1 and not _may_mix(name, args, tensors):
            raise RuntimeError(f"{name} of tensors on the GPU and on the CPU")
        result = func(*args, **kwargs)
        if there is None:
            there = first if name in ("__getitem__", "copy_") else any(map(on_gpu, tensors))
        return _marked(result, there)

    @staticmethod
    def _brought(func, name, args, kwargs):
        x, there, rest = args[0], on_gpu(args[0]) and name == "to", []
        for given in (*args[1:], *([kwargs.pop("device")] if "device" in kwargs else [])):
            if isinstance(given, torch.device | str):
                there = _is_gpu(given)
            elif isinstance(given, Tensor):
                there = on_gpu(given)
                rest.append(given.dtype)
            else:
                rest.append(given)
        result = func(x, *rest, **kwargs) if rest or kwargs else x
        return _marked(result.clone() if there != on_gpu(x) else result, there)


def _is_gpu(device: Any) -> bool:
    return torch.device(device).type == "cuda"


def _may_mix(name: str, args: Any, tensors: list[Tensor]) -> bool:
    """What torch allows: copies, an index on the CPU, and single numbers from the CPU in plain arithmetic."""
    if name == "copy_" or (name == "__getitem__" and on_gpu(args[0])):
        return True
    if name == "__setitem__":
        return on_gpu(args[0]) and not (isinstance(args[2], Tensor) and args[2].ndim and not on_gpu(args[2]))
    strict = {"stack", "cat", "gather", "index_select", "matmul", "__matmul__", "einsum", "addmm_", "equal", "lerp"}
    return name not in strict and all(on_gpu(x) or not x.ndim for x in tensors)


def _marked(result: Any, there: bool) -> Any:
    def mark(x: Any) -> Any:
        if isinstance(x, Tensor) and there != on_gpu(x):
            x = x if there else x.detach().clone()
            if there:
                x._on_gpu = True  # pyright: ignore[reportAttributeAccessIssue]
        return x

    return tree_map(mark, result)
