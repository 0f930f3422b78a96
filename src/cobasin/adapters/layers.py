"""The types of an adapter's tensors, from the types of the tensors that it adapts.

A weight of type ``out in`` has the factors ``lora_A: rank in`` and ``lora_B: out rank'``, stored that way round also
where the weight is stored transposed (Conv1D, embeddings). Every adapted weight has a rank space of its own, on which
any invertible map acts: B A = (B M⁻¹)(M A).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cobasin.adapters.folder import FACTOR, Adapter
from cobasin.checkpoints.running import model_class
from cobasin.errors import InputError
from cobasin.symmetry.groups import Orthogonal
from cobasin.symmetry.spec import Entry, Space, Spec
from cobasin.symmetry.types import TypeSyntaxError, layout, unparse

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

RANK = Orthogonal(scaled=True)  # that is, in the balanced basis, any invertible map
ROOT = "base_model.model."
"""What PEFT's names begin with."""


@dataclass(frozen=True)
class AdaptedSpec(Spec):
    """A base's spec with the tensors of an adapter beside its own."""

    added: Mapping[str, Entry] = field(default_factory=dict)

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """Every tensor of base and adapter by name."""
        return {**super().entries, **self.added}


@dataclass(frozen=True)
class Layer:
    """One adapted weight, and the spec names of its adapter's tensors.

    Attributes:
        weight: the base's tensor.
        transposed: whether the base stores it as ``in out``.
        scaling: what the product B A is multiplied by.
    """

    weight: str
    transposed: bool
    scaling: float

    @property
    def module(self) -> str:
        """The name of the module."""
        return self.weight.removesuffix(".weight")

    @property
    def down(self) -> str:
        """A."""
        return f"{self.module}.lora_A.weight"

    @property
    def up(self) -> str:
        """B."""
        return f"{self.module}.lora_B.weight"

    @property
    def bias(self) -> str:
        """The bias of B; most adapters have none."""
        return f"{self.module}.lora_B.bias"

    @property
    def magnitude(self) -> str:
        """The magnitudes of DoRA."""
        return f"{self.module}.lora_magnitude_vector"

    def delta(self, down: Tensor, up: Tensor, shape: torch.Size) -> Tensor:
        """What the factors add to the weight, in its shape."""
        product = self.scaling * (up.flatten(1) @ down.flatten(1))
        return (product.T if self.transposed else product).reshape(shape)


@dataclass(frozen=True)
class TypedAdapter:
    """An adapter read by spec names.

    Attributes:
        spec: that of the base, with the adapter's factors.
        layers: the adapted weights.
        whole: tensors of the base that the adapter replaces.
        disk: spec name to the name in the file.
    """

    adapter: Adapter
    spec: AdaptedSpec
    layers: tuple[Layer, ...]
    whole: frozenset[str]
    disk: Mapping[str, str]

    def __getitem__(self, name: str) -> Tensor:
        return self.adapter[self.disk[name]].double()


def type_adapter(adapter: Adapter, base: Spec, config: PreTrainedConfig | None = None) -> TypedAdapter:
    """Type an adapter by the spec of its base.

    Args:
        config: of the base; for models whose modules have other names in memory than their tensors in the file.

    Raises:
        InputError: where the adapter does not fit the base, with the tensor, its shape and what was expected; where it
            has two tensors for one.
    """
    find = _finder(adapter, base, config)
    factors: dict[str, dict[str, str]] = {}
    whole: dict[str, str] = {}

    def put(place: dict[str, str], name: str, disk: str) -> None:
        if (other := place.setdefault(name, disk)) != disk:
            raise InputError(f"{adapter.label}: {other} and {disk} are both for one tensor; remove one of them")

    for disk in adapter.headers:
        name = disk.removeprefix(ROOT)
        if found := FACTOR.fullmatch(name):
            piece = found[2].replace("embedding_", "") + (".bias" if found[3] == ".bias" else "")
            put(factors.setdefault(find(disk, f"{found[1]}.weight"), {}), piece, disk)
        else:  # embeddings that are adapted are saved with their base, a bias of an adapted layer lies in its base
            put(whole, find(disk, name.replace(".base_layer.", ".")), disk)
    spaces, types, layers, names = dict(base.spaces), {}, [], dict(whole)
    for number, (weight, own) in enumerate(factors.items()):
        for piece in ("lora_A", "lora_B"):
            if piece not in own or len(adapter.headers[own[piece]].shape) < 2:
                raise InputError(f"{adapter.label}: the {piece} of {weight} is missing or no matrix")
        if adapter.config.get("use_dora") and "lora_magnitude_vector" not in own:
            # PEFT would take the norms of the base's rows, which moving it changes
            raise InputError(f"{adapter.label}: use_dora is set, but the lora_magnitude_vector of {weight} is missing")
        rank = f"rank_{number}"
        spaces[rank] = Space(adapter.headers[own["lora_A"]].shape[0], RANK, part="rank")
        layer, own_types = _layer(adapter, base, weight, own, rank)
        layers.append(layer)
        types |= {name: (text, base.entries[weight].index) for name, text in own_types.items()}
        pieces = {"lora_A": layer.down, "lora_B": layer.up, "lora_B.bias": layer.bias}
        names |= {pieces.get(piece, layer.magnitude): disk for piece, disk in own.items()}
    sizes = {name: space.size for name, space in spaces.items()}
    added = {name: Entry(layout(text, sizes), index) for name, (text, index) in types.items()}
    of_base: dict[str, Any] = {f.name: getattr(base, f.name) for f in fields(Spec)}
    spec = AdaptedSpec(**of_base | {"spaces": spaces, "added": added})
    _check_shapes(adapter, spec, names)
    return TypedAdapter(adapter, spec, tuple(layers), frozenset(whole), names)


def _layer(
    adapter: Adapter, base: Spec, weight: str, own: Mapping[str, str], rank: str
) -> tuple[Layer, dict[str, str]]:
    """An adapted weight, and the types of its adapter's tensors."""
    nodes, module = base.entries[weight].layout.nodes, weight.removesuffix(".weight")
    if len(nodes) < 2 or base.entries[weight].stack:
        raise InputError(f"{adapter.label}: {own['lora_A']} adapts {weight}, which is not a matrix of its own")
    # no flag of the config is to be trusted: one stands for all layers, whether Linear or Conv1D
    bias = base.entries.get(f"{module}.bias")
    if "lora_embedding" in own["lora_A"]:
        transposed = True
    elif nodes[0] == nodes[1]:
        transposed = bool(adapter.config.get("fan_in_fan_out"))
    else:
        transposed = bias is not None and bias.layout.nodes == nodes[1:]
    out, into = (nodes[1:], nodes[:1]) if transposed else (nodes[:1], nodes[1:])
    kernel = " 1" * (len(nodes) - 2)  # of a convolution, which lora_A has in full
    layer = Layer(weight, transposed, _scaling(adapter, own["lora_A"]))
    types = {
        layer.down: f"{rank} {unparse(into)}",
        layer.up: f"{unparse(out)} {rank}'{kernel}",
        layer.bias: unparse(out),
        layer.magnitude: f"1 {unparse(out)}{kernel}" if kernel else unparse(out),
    }
    return layer, types


def _scaling(adapter: Adapter, down: str) -> float:
    """What PEFT multiplies the product of the factors by."""
    module = down.removeprefix(ROOT).partition(".lora_")[0]
    patterns = adapter.config.get("alpha_pattern") or {}
    default = adapter.config.get("lora_alpha", 8)
    alpha = next((a for key, a in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), default)
    rank = adapter.headers[down].shape[0]
    return alpha / (math.sqrt(rank) if adapter.config.get("use_rslora") else rank)


def _check_shapes(adapter: Adapter, spec: Spec, names: Mapping[str, str]) -> None:
    for name, disk in names.items():
        layout = spec.entries[name].layout
        try:
            layout.check(adapter.headers[disk].shape)
        except TypeSyntaxError as error:
            rows = layout.axis_of("vocab") is not None
            hint = "; where it has added tokens, save its base resized to them first (resize_token_embeddings)"
            raise InputError(
                f"{adapter.label} does not fit its base, a {spec.architecture}: {disk} has {error}{hint * rows}"
            ) from None


def _finder(adapter: Adapter, base: Spec, config: PreTrainedConfig | None) -> Callable[[str, str], str]:
    """A function from a name in the adapter's file, and that of the tensor it belongs to, to the tensor's spec name."""

    @cache
    def in_memory() -> dict[str, str]:
        return {} if config is None else _names_on_disk(config, base.architecture)

    def in_spec(name: str) -> str | None:
        own = base.own_name(name)
        return own if own in base.entries else None

    def find(disk: str, tensor: str) -> str:
        own = in_spec(tensor) or in_spec(in_memory().get(tensor, tensor))
        if own is None:
            hint = "" if config else "; if its modules have other names in memory, give the base with --base"
            if "lora_" not in disk:
                hint = "; a head of the adapter's own needs its base (--base), and a task_type that names its class"
            raise InputError(
                f"{adapter.label}: {disk} belongs to no tensor of a {base.architecture}, or to a part of one (an "
                f"expert, a fused projection), which can only be merged into its base{hint}"
            )
        return own

    return find


def _names_on_disk(config: PreTrainedConfig, architecture: str) -> dict[str, str]:
    """The tensors of a model by their names in memory, which PEFT uses, to those in its file."""
    from transformers.core_model_loading import revert_weight_conversion

    with torch.device("meta"):
        model = model_class(architecture)(config)
    tensors = model.state_dict()
    names = {id(tensor): name for name, tensor in revert_weight_conversion(model, dict(tensors)).items()}
    return {name: names[id(tensor)] for name, tensor in tensors.items() if id(tensor) in names}
