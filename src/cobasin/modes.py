"""Modes of torch, and its default device, that a caller may have set: no result depends on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

_KINDS = ("cpu", "cuda", "mps", "xpu")


@contextmanager
def usual_modes() -> Iterator[None]:
    """As where nothing is set; a decorator, too: of public functions, elements, tensors of checkpoints and adapters.

    Gradients are on, which learning and Fisher information need; tensors are on the CPU where nothing says another
    device; autocast, which would round moved weights to 16 bits, is off.
    """
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        if torch.empty(0).device.type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for kind in _KINDS:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
