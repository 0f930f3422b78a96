"""A tiny random model of every declared architecture, head and variant."""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules

import torch
import transformers as T

import families
from cobasin.architectures import registered
from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.running import in_float32_always

T.logging.set_verbosity_error()

MODULES = [import_module(f"families.{module.name}") for module in iter_modules(families.__path__)]
_FAMILIES = {name: family for module in MODULES for name, family in module.FAMILIES.items()}
FLOAT32_PARTS = tuple(start for module in MODULES for start in module.FLOAT32_PARTS)
CASES = [f"{family}/{prefix}{head}" for family, (prefix, heads, *_) in _FAMILIES.items() for head in heads]
# The heads of a family share its layers: the first will do; the bare model, whose stream is fixed, where it is alone.
ONE_A_FAMILY = list(
    {case.split("/")[0]: case for case in sorted(CASES[::-1], key=lambda case: not case.endswith("Model"))}.values()
)


def _first(cases: list[str], kind: Callable[[str], object]) -> list[str]:
    """The first case of every kind, and of every kind whose layout is its own."""
    return list({(kind(case.split("/")[1]), "-fused" in case): case for case in cases[::-1]}.values())[::-1]


# Of these one a declaration: for what its other classes, and settings such as biases or ties, make no difference to.
ONE_A_DECLARATION = _first(ONE_A_FAMILY, lambda architecture: registered()[architecture].declaration)
# Every class once, heads and all: for what only names and shapes make a difference to.
EVERY_CLASS = _first(CASES, str)


def tolerance(case: str) -> float:
    """Largest relative change of float64 logits that is rounding."""
    return 5e-6 if case.startswith(FLOAT32_PARTS) else 1e-9


def config(case: str, **changed: object) -> T.PreTrainedConfig:
    """The config of a case, with some keys changed."""
    _, _, config_class, options = _FAMILIES[case.split("/")[0]]
    return config_class(**copy.deepcopy(options | changed))


def model(case: str, seed: int = 0, dtype: torch.dtype = torch.float64, pooler: bool = True) -> T.PreTrainedModel:
    """The model of a case, with every parameter generic: biases and offsets away from 0, gains away from 1."""
    family, architecture = case.split("/")
    torch.manual_seed(seed)
    cls = getattr(T, architecture)
    made = cls(config(case)) if pooler else cls(config(case), add_pooling_layer=False)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        for name, buffer in made.named_buffers():
            if "running_" in name:  # what a batch norm has seen
                buffer.add_(torch.rand_like(buffer))
            if buffer.isinf().all():  # bounds of what linear layers read and write
                buffer.fill_(-1.1 if name.endswith("_min") else 0.9)
    if "-fused" in family:
        made._weight_conversions = []  # saved under the names that it has in memory
    made.tie_weights()
    return in_float32_always(made.to(dtype)).eval()


def checkpoint(case: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> Checkpoint:
    """The model of a case as a checkpoint in memory."""
    return load(model(case, seed, dtype))
