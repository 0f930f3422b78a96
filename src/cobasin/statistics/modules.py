"""The modules of a model in memory, by the spec names of their weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.running import LENGTH_FIRST, instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.symmetry.spec import Spec
from cobasin.symmetry.state import State

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Holders = dict[str, list[nn.Module]]
"""Modules by the spec name of their weight."""


def built(typed: Typed, state: State, dtype: torch.dtype, device: torch.device) -> tuple[PreTrainedModel, Holders]:
    """The model that has these tensors, ready to run on a device, and what `holders_of` finds in it."""
    model = instantiate(typed.derived(state, dtype), dtype)
    holders = holders_of(model, typed)  # before it is moved: on the CPU tensors are told apart by their place
    nn.Module.to(model, device)
    return model, holders


def holders_of(model: PreTrainedModel, typed: Typed) -> Holders:
    """The modules whose ``weight`` is the tensor of a spec name, for every weight that is one tensor of the file.

    Transformers renames and joins tensors as it loads them; the names of the file are those under which it would
    save the model: a parameter that was only renamed is there with its own storage. Experts that are one tensor
    in memory, or one entry of the spec, are left out. A tied weight has several modules.

    Args:
        model: on the CPU.
        typed: the model's type; its tensors are not read.
    """
    names = names_by_place(model, typed.spec)
    holders: defaultdict[str, list[nn.Module]] = defaultdict(list)
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, nn.Parameter) and (name := names.get(place_of(weight))) is not None:
            holders[name].append(module)
    return dict(holders)


def linear_maps(holders: Holders) -> dict[str, nn.Module]:
    """The linear maps among them by the spec name of their weight; no head that is tied to an embedding."""
    return {name: modules[0] for name, modules in holders.items() if len(modules) == 1 and is_linear(modules[0])}


def is_linear(module: nn.Module) -> bool:
    """Whether the module is a linear map, ``x ↦ W x + b``."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, (nn.Linear, Conv1D))


def input_axis(module: nn.Module) -> int:
    """The axis of a linear map's weight that runs over its inputs."""
    return 1 if isinstance(module, nn.Linear) else 0


@contextmanager
def reading(modules: Mapping[str, nn.Module], call: Callable[[str, Tensor], None]) -> Iterator[None]:
    """While this is open, call ``call(name, x)`` with the first argument of every module that runs, before it does.

    Rows come first, as in `writing`.
    """

    def hook(name: str) -> Callable[..., None]:
        return lambda module, arguments: call(name, _rows_first(module, arguments[0]))

    with ExitStack() as stack:
        for name, module in modules.items():
            stack.enter_context(module.register_forward_pre_hook(hook(name)))
        yield


@contextmanager
def writing(modules: Mapping[str, list[nn.Module]], call: Callable[[str, Tensor], None]) -> Iterator[None]:
    """While this is open, call ``call(name, y)`` with the output of every module that runs.

    Rows come first, channels last.
    """

    def hook(name: str) -> Callable[..., None]:
        def after(module: nn.Module, _: tuple, y: object) -> None:
            if isinstance(y, Tensor):
                call(name, y.movedim(1, -1) if isinstance(module, _ConvNd) else _rows_first(module, y))

        return after

    with ExitStack() as stack:
        for name, holders in modules.items():
            for module in holders:
                stack.enter_context(module.register_forward_hook(hook(name)))
        yield


def _rows_first(module: nn.Module, x: Tensor) -> Tensor:
    return x.transpose(0, 1) if getattr(module, LENGTH_FIRST, False) else x


def by_spec_name(model: PreTrainedModel, typed: Typed) -> dict[str, Tensor]:
    """The parameters of a model by spec name, stacked where the spec stacks them, tied ones once.

    Tensors of the file that the class does not read are not in the model, and left out. They may be sums of any size.
    """
    saved = load(model)
    names = typed.spec.disk_names(saved.headers)
    return {
        name: torch.stack([saved[names[part]] for part in entry.stack]) if entry.stack else saved[names[name]]
        for name, entry in typed.spec.entries.items()
        if all(part in names for part in entry.stack or (name,))
    }


def names_by_place(model: PreTrainedModel, spec: Spec) -> dict[tuple, str]:
    """The spec names of a model's parameters by `place_of`, for every one that is one tensor of the file."""
    saved = load(model)
    names = spec.disk_names(saved.headers).items()
    return {place_of(saved[disk]): name for name, disk in names if name in spec.entries}


def place_of(tensor: Tensor) -> tuple:
    """Where a tensor lies in memory and how."""
    return tensor.data_ptr(), tensor.shape, tensor.stride()
