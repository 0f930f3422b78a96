"""The canonical form: an exact, invertible change of gauge after which larger groups act.

With C = I - 11ᵀ/d, a pre-LayerNorm model computes the same function when

* everything that writes to the residual stream is multiplied by C (the norms ignore the mean), and
* every norm's gain γ and offset β move into the readers of its output: b ← b + Wβ, then W ← W diag(γ) C,
  γ ← 1, β ← 0; a reader without a bias keeps the offset along the ones vector, W diag(γ) C + (Wβ)1ᵀ/d, β ← 1.

Any orthogonal map that fixes the ones vector then acts on the stream. Under RMSNorm there is no β and no C.
A key bias that the softmax cancels is set to zero, a value bias moves through the output projection.

Matching is computed there, but the matched model is written in the gauge of the anchor: with the anchor's
gains and offsets, means and free biases. So the anchor never changes, and nothing that is pure gauge counts
as a difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cobasin.symmetry.spec import BiasGauge, Norm, Spec, ValueBias
from cobasin.symmetry.state import State

Gauge = dict[str, Tensor]
"""The free choices of a model: norm gains and offsets, means of writers and readers, free biases."""

_SMALLEST_GAIN = 1e-6  # relative to the largest: below it a gain counts as zero
_SMALLEST_OFFSET = 1e-2  # |Σ β/γ| over its own norm: below it an offset cannot carry a head's bias


@dataclass(frozen=True)
class Form:
    """Which gauge freedoms are fixed: the norms that are folded, the biases that are moved."""

    spec: Spec
    norms: tuple[Norm, ...] = ()
    biases: tuple[BiasGauge, ...] = ()

    @property
    def folded(self) -> bool:
        """Whether the norms are folded."""
        return bool(self.norms)

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
    def centred_writers(self) -> frozenset[str]:
        """Tensors that write to a stream that is read by LayerNorms only."""
        if not any(norm.centred for norm in self.norms):
            return frozenset()
        return frozenset(
            name
            for name, entry in self.spec.entries.items()
            if entry.layout.axis_of("resid") is not None
            and name not in self.readers
            and name not in self.norm_parameters
        )

    @cached_property
    def value_biases(self) -> dict[str, ValueBias]:
        """Output bias to the value bias that moves into it."""
        return {gauge.out_bias: gauge for gauge in self.biases if isinstance(gauge, ValueBias)}

    def bias_of(self, reader: str) -> str | None:
        """Name of a reader's bias, None where it has none."""
        bias = reader.removesuffix("weight") + "bias"
        return bias if bias in self.spec.entries else None

    def carries_offset(self, reader: str) -> bool:
        """Whether a reader must keep its norm's offset along the ones vector, having no bias."""
        return self.readers[reader].bias is not None and self.bias_of(reader) is None

    def stream_axis(self, name: str) -> int:
        """The tensor axis that is the residual stream."""
        axis = self.spec.entries[name].layout.axis_of("resid")
        assert axis is not None, name
        return axis

    def along_stream(self, name: str, vector: Tensor) -> Tensor:
        """``vector`` over the stream, shaped to broadcast against tensor ``name``."""
        shape = [1] * len(self.spec.entries[name].layout.shape)
        shape[self.stream_axis(name)] = -1
        return vector.reshape(shape)

    def through_output(self, gauge: ValueBias, weight: Tensor, bias: Tensor) -> Tensor:
        """``W_O b_V``: what the value bias contributes to the output bias."""
        (weight_block,) = self.spec.entries[gauge.weight].layout.blocks
        bias_block = self.spec.entries[gauge.bias].layout.blocks[gauge.block]
        letters = {axis.space: chr(ord("a") + i) for i, axis in enumerate(weight_block.axes)}
        left, right = ("".join(letters[axis.space] for axis in b.axes) for b in (weight_block, bias_block))
        return torch.einsum(f"{left},{right}->{letters['resid']}", weight_block.view(weight), bias_block.view(bias))

    def with_block(self, name: str, block: int, tensor: Tensor, value: Tensor | float) -> Tensor:
        """A copy of ``tensor`` with one block overwritten."""
        tensor = tensor.clone()
        view = self.spec.entries[name].layout.blocks[block].view(tensor)
        view.copy_(torch.as_tensor(value, dtype=tensor.dtype).expand(view.shape))
        return tensor


class _Lazy(Mapping[str, Tensor]):
    """A state whose tensors are computed when asked for."""

    def __init__(self, form: Form, state: State):
        self.form, self.state = form, state

    def __iter__(self) -> Iterator[str]:
        return iter(self.state)

    def __len__(self) -> int:
        return len(self.state)

    def _read(self, name: str) -> Tensor:
        return _read(self.state, name)


def _read(state: State, name: str) -> Tensor:
    """A tensor in float32 or better."""
    tensor = state[name]
    return tensor if tensor.dtype == torch.float64 else tensor.float()


class Canonical(_Lazy):
    """A model's tensors in canonical form."""

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._before_biases(name)
        if name in self.form.value_biases:
            gauge = self.form.value_biases[name]
            moved = self.form.through_output(gauge, self._read(gauge.weight), self._before_biases(gauge.bias))
            tensor = tensor + (moved - moved.mean() if name in self.form.centred_writers else moved)
        for gauge in self.form.biases:
            if gauge.bias == name:
                tensor = self.form.with_block(name, gauge.block, tensor, 0.0)
        return tensor

    def _before_biases(self, name: str) -> Tensor:
        form, tensor = self.form, self._read(name)
        if name in form.norm_parameters:
            norm = form.norm_parameters[name]
            offset_kept = name == norm.bias and any(form.carries_offset(reader) for reader in norm.readers)
            return torch.ones_like(tensor) if name == norm.weight or offset_kept else torch.zeros_like(tensor)
        if name in form.readers:
            norm, axis = form.readers[name], form.stream_axis(name)
            folded = tensor * form.along_stream(name, self._read(norm.weight))
            if norm.centred:
                folded = folded - folded.mean(axis, keepdim=True)
            if form.carries_offset(name):
                assert norm.bias is not None
                folded = folded + (tensor * form.along_stream(name, self._read(norm.bias))).mean(axis, keepdim=True)
            return folded
        if name in form.reader_biases:
            weight = form.reader_biases[name]
            offset = form.readers[weight].bias
            if offset is not None:
                moved = self._read(weight) * form.along_stream(weight, self._read(offset))
                tensor = tensor + moved.sum(form.stream_axis(weight))
        if name in form.centred_writers:
            tensor = tensor - tensor.mean(form.stream_axis(name), keepdim=True)
        return tensor


class InGauge(_Lazy):
    """A model in canonical form, written in a given gauge; the inverse of `Canonical` for a model's own gauge."""

    def __init__(self, form: Form, canonical: State, gauge: Gauge):
        super().__init__(form, canonical)
        self.gauge = gauge

    def __getitem__(self, name: str) -> Tensor:
        form, tensor = self.form, self._read(name)
        if name in form.norm_parameters:
            return self._gauge(name, tensor)
        if name in form.readers:
            return self._unfold(name, tensor)
        if name in form.reader_biases:
            weight = form.reader_biases[name]
            offset = form.readers[weight].bias
            if offset is not None:
                moved = self[weight] * form.along_stream(weight, self._gauge(offset, tensor))
                tensor = tensor - moved.sum(form.stream_axis(weight))
        if name in form.centred_writers:
            tensor = tensor + self._gauge(f"{name}:mean", tensor)
        if name in form.value_biases:
            gauge = form.value_biases[name]
            # the value bias that the written model will have, with what its reader takes from the norm's offset
            total = Canonical(form, self)._before_biases(gauge.bias)
            moved = form.through_output(gauge, self[gauge.weight], total)
            tensor = tensor - (moved - moved.mean() if name in form.centred_writers else moved)
        for gauge in form.biases:
            if gauge.bias == name:
                tensor = form.with_block(name, gauge.block, tensor, self._gauge(f"{name}:{gauge.block}", tensor))
        return tensor

    def _gauge(self, name: str, like: Tensor) -> Tensor:
        return self.gauge[name].to(like.dtype)

    def _unfold(self, name: str, tensor: Tensor) -> Tensor:
        form = self.form
        norm, axis = form.readers[name], form.stream_axis(name)
        gain = form.along_stream(name, self._gauge(norm.weight, tensor))
        if form.carries_offset(name):
            assert norm.bias is not None
            ratio = form.along_stream(name, self._gauge(norm.bias, tensor)) / gain
            offset = tensor.sum(axis, keepdim=True)
            tensor = tensor - offset / tensor.shape[axis]
            if ratio.any():
                # W'(γ∘n + β) must give W(γ∘n) + offset for every n ⟂ 1: one free number a row, fixed by W'β
                tensor = tensor + (offset - (tensor * ratio).sum(axis, keepdim=True)) / ratio.sum()
                return tensor / gain
        if norm.centred:
            tensor = tensor + self._gauge(f"{name}:mean", tensor)
        return tensor / gain


def gauge_of(form: Form, state: State) -> Gauge:
    """The gauge a model is written in: what `InGauge` needs to give the model back from its canonical form."""
    gauge = {name: _read(state, name).clone() for name in form.norm_parameters}
    for name, norm in form.readers.items():
        if norm.centred:
            folded = _read(state, name) * form.along_stream(name, _read(state, norm.weight))
            gauge[f"{name}:mean"] = folded.mean(form.stream_axis(name), keepdim=True)
    for name in form.centred_writers:
        gauge[f"{name}:mean"] = _read(state, name).mean(form.stream_axis(name), keepdim=True)
    for bias in form.biases:
        view = form.spec.entries[bias.bias].layout.blocks[bias.block].view(_read(state, bias.bias))
        gauge[f"{bias.bias}:{bias.block}"] = view.clone()
    return gauge


def obstacles(form: Form, source: State, anchor: State) -> list[str]:
    """Why a source cannot be written in an anchor's norms, one line each; empty where it can."""
    found = []
    for norm in form.norms:
        gain = anchor[norm.weight].double()
        if gain.abs().min() <= _SMALLEST_GAIN * gain.abs().max():
            found.append(f"{norm.weight} of the anchor has a gain of zero (entry {int(gain.abs().argmin())})")
        elif norm.bias and any(form.carries_offset(reader) for reader in norm.readers):
            ratio = anchor[norm.bias].double() / gain
            needed = ratio.any() or source[norm.bias].any()
            if needed and ratio.sum().abs() < _SMALLEST_OFFSET * ratio.norm() + torch.finfo(torch.float64).tiny:
                found.append(f"{norm.bias} of the anchor sums to zero over its gains, and the head has no bias")
    return found


def free_biases(spec: Spec, layers: frozenset[int] | None) -> tuple[BiasGauge, ...]:
    """The bias gauges of these layers (all where None), with layer numbers filled in."""
    return tuple(
        _fill(gauge, index)
        for gauge in spec.biases
        for _, index in spec.expand(gauge.bias)
        if layers is None or index.get("layer") in layers
    )


def foldable_norms(spec: Spec) -> tuple[Norm, ...]:
    """The norms that can be folded, with layer numbers filled in."""
    return tuple(_fill(norm, index) for norm in spec.norms for _, index in spec.expand(norm.weight))


def _fill(declared, index: Mapping[str, int]):
    """A declaration with its name templates filled in."""

    def fill(value):
        if isinstance(value, tuple):
            return tuple(fill(item) for item in value)
        return value.format(**index) if isinstance(value, str) else value

    return type(declared)(**{name: fill(value) for name, value in vars(declared).items()})
