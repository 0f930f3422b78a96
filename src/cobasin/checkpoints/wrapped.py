"""What libraries wrap around a model, or put into it: told from the object, or from the names of the tensors."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Module

from cobasin.checkpoints.weight_files import WEIGHT_DTYPES, Header

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_PACKED = (".qweight", ".weight_packed", ".weight_scale", ".weight_scale_inv", ".absmax", ".SCB")  # parts of a weight
_PREFIXES = ("module.", "_orig_mod.", "base_model.model.")  # of DataParallel, of torch.compile, of PEFT
_AROUND_PARTS = re.compile(r"\.(_orig_mod)\.|\b(_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")
# Also of pipelines, trainers, Sentence Transformers; the last of what `merge` and `transport` return.
_HOLDERS = ("_orig_mod", "module", "model", "transformers_model", "checkpoint")


def within(model: object) -> str:
    """How to get at the model, to end a message with; empty where nothing is known of the object."""
    if hasattr(model, "merge_and_unload"):
        return "; what PEFT has wrapped becomes one by merge_and_unload(), or is moved as a folder by cobasin apply"
    inner = next((name for name in _HOLDERS if isinstance(getattr(model, name, None), (Module, Mapping))), None)
    return f"; it has the model within, as .{inner}" if inner else ""


def saved_with(tensors: Mapping[str, Header | Tensor]) -> str | None:
    """What was saved with a model, by its tensors, all of which would be misfits; None where nothing.

    Args:
        tensors: by name, or their headers.
    """
    names = tensors.keys()
    if not names:
        return "it holds no tensors"
    if any(".base_layer." in name for name in names):
        return "it has the layers of an adapter within; save what merge_and_unload() of PEFT returns"
    if packed := next((name for name in names if name.endswith(_PACKED)), None):
        return f"its weights are quantized, as {packed} tells; save it dequantized"
    for name, dtype in ((name, tensor.dtype) for name, tensor in tensors.items()):
        if dtype.is_floating_point and dtype.itemsize == 1:
            return (
                f"{name} has dtype {dtype}, expected {WEIGHT_DTYPES}; load the model with dtype=torch.bfloat16, and "
                "save that"
            )
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in names):
            return _behind(prefix)
    if found := next(filter(None, map(_AROUND_PARTS.search, names)), None):
        what = f"{found[1] or found[2]}."
        return f"a part of it is wrapped, as {found.string} tells: unwrap it, or take {what!r} out of the names"
    return None


def _behind(prefix: str) -> str:
    return (
        f"all names of its tensors begin with {prefix!r}: save the model within what wraps it, or take the beginning "
        "off the names"
    )


def misnamed(names: Collection[str], architecture: str, config: PreTrainedConfig) -> str | None:
    """What is the matter where tensors that are no misfits otherwise have their names in memory, or in a trainer.

    None where that is not it.
    """
    import transformers

    try:
        with torch.device("meta"):
            inside = getattr(transformers, architecture)(config).state_dict()
    except Exception:  # each class builds in its own way, and this is for a message only
        return None
    if inside.keys() >= set(names):
        return (
            "its tensors have the names of the model in memory, which are others in files: load them into the model, "
            "and give the model, or what its save_pretrained writes"
        )
    parts = [name.partition(".") for name in names]
    one = len({first for first, _, _ in parts}) == 1
    return _behind(f"{parts[0][0]}.") if one and inside.keys() >= {rest for _, _, rest in parts} else None
