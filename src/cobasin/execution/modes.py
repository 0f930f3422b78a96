"""The modes of torch that a caller may be in, on which no result may depend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

_KINDS = ("cpu", "cuda", "mps", "xpu")


@contextmanager
def usual_modes() -> Iterator[None]:
    """As where no mode is on; also a decorator.

    With gradients, which learning and Fisher information need; without autocast, which would round moved weights to 16
    bits.
    """
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        for kind in _KINDS:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
