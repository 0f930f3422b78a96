"""What libraries wrap around a model, or put into it: told from the object, or from the names of the tensors."""

from __future__ import annotations

from collections.abc import Collection

from torch.nn import Module

_PACKED = (".qweight", ".weight_packed", ".weight_scale", ".weight_scale_inv", ".absmax", ".SCB")  # parts of a weight
_PREFIXES = ("module.", "_orig_mod.", "base_model.model.")  # of DataParallel, of torch.compile, of PEFT


def within(model: object) -> str:
    """How to get at the model, to end a message with; empty where nothing is known of the object."""
    if hasattr(model, "merge_and_unload"):
        return "; what PEFT has wrapped becomes one by merge_and_unload(), or is moved as a folder by cobasin apply"
    inner = next((name for name in ("_orig_mod", "module") if isinstance(getattr(model, name, None), Module)), None)
    return f"; it has the model within, as .{inner}" if inner else ""


def saved_with(names: Collection[str]) -> str | None:
    """What was saved with a model, by the names of its tensors, all of which would be misfits; None where nothing."""
    if not names:
        return "it holds no tensors"
    if any(".base_layer." in name for name in names):
        return "it has the layers of an adapter within; save what merge_and_unload() of PEFT returns"
    if packed := next((name for name in names if name.endswith(_PACKED)), None):
        return f"its weights are quantized, as {packed} tells; save it dequantized"
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in names):
            return f"all names of its tensors begin with {prefix!r}: save the model within what wraps it"
    return None
