"""Where models run: the devices of this machine."""

from __future__ import annotations

import torch

from cobasin.errors import InputError, one_line, shown


def device_of(name: torch.device | str) -> torch.device:
    """The device of that name, if it can be used; of ``auto``, the one that accelerate chooses.

    Raises:
        InputError: there is none.
    """
    if isinstance(name, str) and name == "auto":
        from accelerate import PartialState

        name = str(PartialState().device)
    try:
        device = torch.empty(0, device=name).device
        torch.ones(1, device=device).item()  # there are devices of nothing but shapes
        return device
    except (RuntimeError, AssertionError, TypeError, ValueError, ImportError) as error:
        raise InputError(f"device {shown(name)} cannot be used here ({one_line(error)}); take cpu, or auto") from error


def home(device: torch.device) -> torch.device:
    """Where float64 numbers of a model on ``device`` are kept: Apple's GPUs have none."""
    return torch.device("cpu") if device.type == "mps" else device
