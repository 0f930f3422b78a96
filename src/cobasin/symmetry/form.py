"""Which gauge freedoms of a model are fixed in its canonical form, and what that asks of every tensor."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from cobasin.symmetry.gauges import FreeGauge, LayerScale, Norm, SoftmaxShift, ValueBias
from cobasin.symmetry.groups import General, Group, Value
from cobasin.symmetry.keys import Key, layer_of
from cobasin.symmetry.spec import Spec


@dataclass(frozen=True)
class Form:
    """The gauge freedoms that are fixed: names are filled in, one entry a layer.

    Attributes:
        norms, scales: the norms and layer scales that are folded.
        biases: the free biases that are moved or dropped.
        balanced: the elements whose two sides are brought to the balanced basis, so that isometries act there
            where any invertible map may act.
    """

    spec: Spec
    norms: tuple[Norm, ...] = ()
    scales: tuple[LayerScale, ...] = ()
    biases: tuple[FreeGauge, ...] = ()
    balanced: tuple[Key, ...] = ()

    @property
    def folded(self) -> bool:
        """Whether the norms are folded."""
        return bool(self.norms)

    def group(self, key: Key) -> Group:
        """The group that acts in this form with an element named ``key``."""
        if key in self._balanced:
            return General()
        group = self.spec.group(key[0], self.folded)
        assert group is not None, key
        return group

    def identity(self, key: Key) -> Value:
        """The element named ``key`` that moves nothing."""
        return self.group(key).identity(self.spec.batch(key[0]), self.spec.sizes[key[0]])

    @cached_property
    def _balanced(self) -> frozenset[Key]:
        return frozenset(self.balanced)

    @cached_property
    def readers(self) -> dict[str, Norm]:
        """Reader weight to the norm it reads."""
        return {reader: norm for norm in self.norms for reader in norm.readers}

    @cached_property
    def reader_biases(self) -> dict[str, str]:
        """Reader bias to its weight."""
        return {bias: reader for reader in self.readers if (bias := self.bias_of(reader)) is not None}

    @cached_property
    def norm_parameters(self) -> dict[str, Norm]:
        """Gain or offset to its norm."""
        return {name: norm for norm in self.norms for name in (norm.weight, norm.bias) if name}

    @cached_property
    def scale_parameters(self) -> frozenset[str]:
        """The layer scales that are folded."""
        return frozenset(scale.weight for scale in self.scales)

    @cached_property
    def scaled_writers(self) -> dict[str, LayerScale]:
        """Writer to the layer scale it takes over."""
        return {writer: scale for scale in self.scales for writer in scale.writers}

    @cached_property
    def centred_writers(self) -> dict[str, str]:
        """Tensors that write to a stream that is read by LayerNorms only, with that stream."""
        streams = {norm.stream for norm in self.norms if norm.centred}
        streams -= {norm.stream for norm in self.norms if not norm.centred or norm.keeps_mean}
        other = self.readers.keys() | self.norm_parameters.keys() | self.scale_parameters
        return {
            name: axis.space
            for name, entry in self.spec.entries.items()
            if name not in other
            for axis in entry.layout.blocks[0].axes
            if axis.space in streams
        }

    @cached_property
    def value_biases(self) -> dict[str, ValueBias]:
        """Output bias to the value bias that moves into it."""
        return {gauge.out_bias: gauge for gauge in self.biases if isinstance(gauge, ValueBias)}

    @cached_property
    def changed(self) -> frozenset[str]:
        """Tensors that are not in canonical form as the file has them."""
        biases = (gauge.weight if isinstance(gauge, SoftmaxShift) else gauge.bias for gauge in self.biases)
        return frozenset(biases).union(
            self.norm_parameters,
            self.scale_parameters,
            self.readers,
            self.reader_biases,
            self.scaled_writers,
            self.centred_writers,
            self.value_biases,
            self.plus_one,
        )

    @cached_property
    def plus_one(self) -> frozenset[str]:
        """Gains that the file stores minus one."""
        return frozenset(name for template in self.spec.plus_one for name, _ in self.spec.expand(template))

    def bias_of(self, reader: str) -> str | None:
        """Name of a reader's bias, None where it has none."""
        bias = reader.removesuffix("weight") + "bias"
        return bias if bias in self.spec.entries else None

    def carries_offset(self, reader: str) -> bool:
        """Whether a reader must keep its norm's offset along the ones vector, having no bias."""
        norm = self.readers[reader]
        return norm.bias is not None and self.bias_of(reader) is None and reader not in norm.keys

    def view(self, name: str, stream: str, tensor: Tensor) -> tuple[Tensor, int]:
        """``tensor`` seen with ``stream`` as one of its axes, and that axis.

        Of a square map of the stream it is the axis that is read for a reader, the one that is written else.
        """
        layout = self.spec.entries[name].layout
        if (axis := layout.axis_of(stream, last=name in self.readers)) is not None:
            return tensor, axis
        (block,) = layout.blocks
        return block.view(tensor), [a.space for a in block.axes].index(stream)

    def scaled(self, name: str, stream: str, tensor: Tensor, vector: Tensor) -> Tensor:
        """``tensor`` multiplied by ``vector`` along ``stream``, in the shape of `view`.

        A gain that differs from head to head runs over the axes before the stream as well.
        """
        view, axis = self.view(name, stream, tensor)
        first = next(i for i in range(axis, -1, -1) if math.prod(view.shape[i : axis + 1]) >= vector.numel())
        return view * vector.reshape(*view.shape[first : axis + 1], *[1] * (view.ndim - 1 - axis))

    def read_offset(self, reader: str, weight: Tensor, offset: Tensor) -> Tensor:
        """``W β``: what a reader takes from its norm's offset, in the shape of its bias."""
        stream, bias = self.readers[reader].stream, self.bias_of(reader)
        assert bias is not None
        moved = self.scaled(reader, stream, weight, offset)
        shape = self.spec.entries[bias].layout.shape
        if moved.shape == weight.shape:
            return moved.sum(self.view(reader, stream, weight)[1]).reshape(shape)
        # a stream read more than once (the class token and the mean of the patches) is an axis among others
        kept = {axis.space for axis in self.spec.entries[bias].layout.blocks[0].axes}
        axes = self.spec.entries[reader].layout.blocks[0].axes
        return moved.sum([i for i, axis in enumerate(axes) if axis.space not in kept]).reshape(shape)

    def through_output(self, gauge: ValueBias, weight: Tensor, bias: Tensor) -> Tensor:
        """``W_O b_V``: what the value bias contributes to the output bias."""
        weights, outputs = (self.spec.entries[name].layout for name in (gauge.weight, gauge.out_bias))
        bias_block = self.spec.entries[gauge.bias].layout.blocks[gauge.block]
        found = weight.new_empty(outputs.shape)
        for weight_block, out_block in zip(weights.blocks, outputs.blocks, strict=True):  # a stream may be in pieces
            letters = {axis.space: chr(ord("a") + i) for i, axis in enumerate(weight_block.axes)}
            blocks = weight_block, bias_block, out_block
            left, right, out = ("".join(letters[axis.space] for axis in block.axes) for block in blocks)
            made = torch.einsum(f"{left},{right}->{out}", weight_block.view(weight), bias_block.view(bias))
            out_block.view(found).copy_(made)
        return found

    def common_row(self, gauge: SoftmaxShift, weight: Tensor) -> Tensor:
        """What all values of the space share: their mean."""
        axis = self.spec.entries[gauge.weight].layout.axis_of(gauge.space)
        assert axis is not None
        return weight.mean(axis, keepdim=True)

    def with_block(self, name: str, block: int, tensor: Tensor, value: Tensor | float) -> Tensor:
        """A copy of ``tensor`` with one block overwritten."""
        tensor = tensor.clone()
        view = self.spec.entries[name].layout.blocks[block].view(tensor)
        view.copy_(torch.as_tensor(value, dtype=tensor.dtype).expand(view.shape))
        return tensor


def form_of(
    spec: Spec,
    folded: bool = False,
    free_biases: bool = False,
    balanced: bool = False,
    parts: Collection[str] | None = None,
    layers: frozenset[int] | None = None,
) -> Form:
    """The form of a model in which these freedoms are fixed.

    Biases and bases only where they belong to one of ``parts`` and to one of ``layers``; everywhere where None.
    """

    def chosen(part: str, index: Mapping[str, int]) -> bool:
        return (parts is None or part in parts) and (layers is None or layer_of(index) in layers)

    return Form(
        spec,
        tuple(_fill(spec, norm, index) for norm in spec.norms for _, index in spec.expand(norm.weight) if folded),
        tuple(_fill(spec, scale, index) for scale in spec.scales for _, index in spec.expand(scale.weight) if folded),
        tuple(
            _fill(spec, bias, index)
            for bias in spec.biases
            for _, index in spec.expand(bias.weight if isinstance(bias, SoftmaxShift) else bias.bias)
            if free_biases and chosen(bias.part, index)
        ),
        tuple(
            key
            for key in spec.sites
            if balanced and key[0] in spec.invertible and chosen(spec.spaces[key[0]].part, spec.index(key))
        ),
    )


def _fill(spec: Spec, declared, index: Mapping[str, int]):
    """A declaration with its name templates filled in; a tuple of names also over what ``index`` leaves open."""

    def fill(value):
        if isinstance(value, tuple):
            return tuple(name for template in value for name, _ in spec.expand(template, index))
        return value.format(**spec.names_of(index)) if isinstance(value, str) else value

    return replace(declared, **{name: fill(value) for name, value in vars(declared).items()})
