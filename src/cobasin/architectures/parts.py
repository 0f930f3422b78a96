"""Pieces that declarations share: linear layers, norms, hidden neurons, task heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cobasin.errors import InputError
from cobasin.symmetry.groups import Orthogonal, Permutation, SignedPermutation
from cobasin.symmetry.spec import Space

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

LAYER = ("layer",)


def linear(name: str, out: str, into: str, bias: bool = True) -> dict[str, str]:
    """A ``torch.nn.Linear``: weight ``out into``, bias ``out``."""
    return {f"{name}.weight": f"{out} {into}"} | ({f"{name}.bias": out} if bias else {})


def conv1d(name: str, out: str, into: str) -> dict[str, str]:
    """GPT-2's ``Conv1D``: a linear layer stored transposed."""
    return {f"{name}.weight": f"{into} {out}", f"{name}.bias": out}


def layer_norm(name: str, space: str = "resid") -> dict[str, str]:
    """A LayerNorm: gain and offset over ``space``."""
    return {f"{name}.weight": space, f"{name}.bias": space}


def neurons(activation: str) -> Permutation:
    """The group of hidden neurons behind an elementwise activation; the layer after them reads ``ffn'``."""
    return {"relu": Permutation(scaled=True), "tanh": SignedPermutation}.get(activation, Permutation())


def attention(heads: int, width: int) -> dict[str, Space]:
    """Spaces of multi-head attention without rotary embedding, ``width`` the size of a head."""
    return {
        "layer": Space(0),
        "head": Space(heads, Permutation(), LAYER, part="heads"),
        "qk": Space(width, Orthogonal(scaled=True), ("layer", "head"), part="attention"),
        "vo": Space(width, Orthogonal(scaled=True), ("layer", "head"), part="attention"),
    }


def labels(config: PreTrainedConfig) -> Space:
    """The labels of a task head."""
    return Space(config.num_labels or 0)


def require(condition: bool, what: str) -> None:
    """Refuse a configuration that a declaration does not cover."""
    if not condition:
        raise InputError(f"{what} is not covered by cobasin's declaration of this architecture")
