"""The canonical form: an exact, invertible change of gauge after which larger groups act.

With C = I - 11ᵀ/d, a pre-LayerNorm model computes the same function when

* everything that writes to the residual stream is multiplied by C (the norms ignore the mean), and
* every norm's gain γ and offset β move into the readers of its output: b ← b + Wβ, then W ← W diag(γ) C,
  γ ← 1, β ← 0; a reader without a bias keeps the offset along the ones vector, W diag(γ) C + (Wβ)1ᵀ/d, β ← 1.

Any orthogonal map that fixes the ones vector then acts on the stream. Under RMSNorm there is no β and no C.
A layer scale λ moves into the writers of its branch, W ← diag(λ) W. A key bias that the softmax cancels is set to
zero, a value bias moves through the output projection, a router loses what all its rows share. Last, where any
invertible map may act, both sides are brought to the balanced basis (`cobasin.symmetry.balance`).

Matching is computed there, but the matched model is written in the gauge of the anchor: with the anchor's
gains and offsets, means and free biases. So the anchor never changes, and nothing that is pure gauge counts
as a difference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cobasin.symmetry.balance import FRAME, Frames, balancing_frames, in_frames, inverses
from cobasin.symmetry.form import Form
from cobasin.symmetry.gauges import SoftmaxShift
from cobasin.symmetry.keys import key_text
from cobasin.symmetry.state import Computed, Lazy, State, wide

Gauge = dict[str, Tensor]
"""The free choices of a model: norm gains and offsets, means of writers and readers, free biases, bases of heads."""

_SMALLEST_GAIN = 1e-6  # relative to the largest: below it a gain counts as zero
# |Σ β/γ| over its own norm: below it an offset carries a head's bias in weights that may be long
SMALLEST_OFFSET = 1e-2
IMPOSSIBLE_OFFSET = 1e-8  # below it none can


def canonical(form: Form, state: State, frames: Frames | None = None) -> State:
    """A model's tensors in canonical form: in float32 or better, but for those that are as the file has them.

    Bases are brought to those that ``frames`` say, to the balanced ones by default.
    """
    folded = Folded(form, state)
    return in_frames(form, folded, frames or balancing_frames(form, folded)) if form.balanced else folded


def in_gauge(form: Form, state: State, gauge: Gauge) -> State:
    """A model in canonical form, written in a given gauge; the inverse of `canonical` for the model's own gauge."""
    if form.balanced:
        state = in_frames(form, state, inverses(frames_of(form, gauge)))
    return Unfolded(form, state, gauge)


def stored(form: Form, state: State) -> State:
    """A model in canonical form as a file has it: a gain that is stored minus one is so."""
    return Lazy(state, lambda name: state[name] - 1 if name in form.plus_one else state[name])


def frames_of(form: Form, gauge: Gauge) -> Frames:
    """The balancing frames in a gauge."""
    return {key: {part: gauge[f"{key_text(key)}:{part}"] for part in FRAME} for key in form.balanced}


def frames_as_gauge(frames: Frames) -> Gauge:
    """Frames by their names in a gauge; the inverse of `frames_of`."""
    return {f"{key_text(key)}:{part}": tensor for key, frame in frames.items() for part, tensor in frame.items()}


class Folded(Computed):
    """A model's tensors with norms, scales and free biases folded."""

    def __init__(self, form: Form, state: State):
        super().__init__(state)
        self.form, self.state = form, state

    def __getitem__(self, name: str) -> Tensor:
        form = self.form
        if name not in form.changed:
            return self.state[name]
        tensor = self.before_biases(name)
        if name in form.value_biases:
            gauge = form.value_biases[name]
            tensor = tensor + form.through_output(
                gauge, self.before_biases(gauge.weight), self.before_biases(gauge.bias)
            )
        for gauge in form.biases:
            if isinstance(gauge, SoftmaxShift):
                if gauge.weight == name:
                    tensor = tensor - form.common_row(gauge, tensor)
            elif gauge.bias == name:
                tensor = form.with_block(name, gauge.block, tensor, 0.0)
        return tensor

    def before_biases(self, name: str) -> Tensor:
        """The tensor with norms and scales folded, free biases still in place."""
        form, tensor = self.form, self._read(name)
        if name in form.norm_parameters:
            norm = form.norm_parameters[name]
            offset_kept = name == norm.bias and any(form.carries_offset(reader) for reader in norm.readers)
            return torch.ones_like(tensor) if name == norm.weight or offset_kept else torch.zeros_like(tensor)
        if name in form.scale_parameters:
            return torch.ones_like(tensor)
        if name in form.readers:
            norm = form.readers[name]
            axis = form.view(name, norm.stream, tensor)[1]
            folded = form.scaled(name, norm.stream, tensor, self._read(norm.weight))
            if norm.centred:
                folded = folded - folded.mean(axis, keepdim=True)
            if form.carries_offset(name):
                assert norm.bias is not None
                moved = form.scaled(name, norm.stream, tensor, self._read(norm.bias))
                folded = folded + moved.mean(axis, keepdim=True)
            tensor = folded.reshape(tensor.shape)
        if name in form.reader_biases:
            weight = form.reader_biases[name]
            offset = form.readers[weight].bias
            if offset is not None:
                tensor = tensor + form.read_offset(weight, self._read(weight), self._read(offset))
        if name in form.scaled_writers:
            scale = form.scaled_writers[name]
            tensor = form.scaled(name, scale.stream, tensor, self._read(scale.weight)).reshape(tensor.shape)
        if name in form.centred_writers:
            view, axis = form.view(name, form.centred_writers[name], tensor)
            tensor = (view - view.mean(axis, keepdim=True)).reshape(tensor.shape)
        return tensor

    def _read(self, name: str) -> Tensor:
        return _read(self.form, self.state, name)


class Unfolded(Computed):
    """The inverse of `Folded`, for a given gauge."""

    def __init__(self, form: Form, folded: State, gauge: Gauge):
        super().__init__(folded)
        self.form, self.state, self.gauge = form, folded, gauge

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.form.changed:
            return self.state[name]
        tensor = self._gain(name)
        return tensor - 1 if name in self.form.plus_one else tensor

    def _gain(self, name: str) -> Tensor:
        """The tensor, of a gain that the file stores minus one the gain itself."""
        form, tensor = self.form, self._read(name)
        if name in form.norm_parameters or name in form.scale_parameters:
            return self._gauge(name, tensor)
        for gauge in form.biases:
            if isinstance(gauge, SoftmaxShift) and gauge.weight == name:
                tensor = tensor + self._gauge(f"{name}:shift", tensor)
        for gauge in form.biases:
            if not isinstance(gauge, SoftmaxShift) and gauge.bias == name:
                tensor = form.with_block(name, gauge.block, tensor, self._gauge(f"{name}:{gauge.block}", tensor))
        if name in form.readers:
            tensor = self._unfold(name, tensor)
        if name in form.reader_biases:
            weight = form.reader_biases[name]
            offset = form.readers[weight].bias
            if offset is not None:
                tensor = tensor - form.read_offset(weight, self[weight], self._gauge(offset, tensor))
        if name in form.value_biases:
            gauge = form.value_biases[name]
            bias = self._read(gauge.bias)
            total = form.with_block(gauge.bias, gauge.block, bias, self._gauge(f"{gauge.bias}:{gauge.block}", bias))
            tensor = tensor - form.through_output(gauge, self._read(gauge.weight), total)
        if name in form.centred_writers:
            view, _ = form.view(name, form.centred_writers[name], tensor)
            tensor = (view + self._gauge(f"{name}:mean", tensor)).reshape(tensor.shape)
        if name in form.scaled_writers:
            scale = form.scaled_writers[name]
            inverse = self._gauge(scale.weight, tensor).reciprocal()
            tensor = form.scaled(name, scale.stream, tensor, inverse).reshape(tensor.shape)
        return tensor

    def _read(self, name: str) -> Tensor:
        return wide(self.state[name])

    def _gauge(self, name: str, like: Tensor) -> Tensor:
        return self.gauge[name].to(like.dtype)

    def _unfold(self, name: str, tensor: Tensor) -> Tensor:
        form = self.form
        norm = form.readers[name]
        inverse = self._gauge(norm.weight, tensor).reciprocal()
        view, axis = form.view(name, norm.stream, tensor)
        if form.carries_offset(name):
            assert norm.bias is not None
            ratio = self._gauge(norm.bias, tensor) * inverse
            offset = view.sum(axis, keepdim=True)
            view = view - offset / view.shape[axis]
            if ratio.any():
                # W'(γ∘n + β) must give W(γ∘n) + offset for every n ⟂ 1: one free number a row, fixed by W'β
                moved = form.scaled(name, norm.stream, view.reshape(tensor.shape), ratio).sum(axis, keepdim=True)
                view = view + (offset - moved) / ratio.sum()
                return form.scaled(name, norm.stream, view.reshape(tensor.shape), inverse).reshape(tensor.shape)
        if norm.centred:
            view = view + self._gauge(f"{name}:mean", tensor)
        return form.scaled(name, norm.stream, view.reshape(tensor.shape), inverse).reshape(tensor.shape)


def _read(form: Form, state: State, name: str) -> Tensor:
    """A tensor in float32 or better; a gain that is stored minus one as the gain itself."""
    tensor = state[name]
    if name in form.plus_one:
        return tensor.double() + 1
    return wide(tensor)


def gauge_of(form: Form, state: State) -> Gauge:
    """The gauge a model is written in: what `in_gauge` needs to give the model back from its canonical form."""
    gauge = {name: gain.clone() for name, gain in gains_of(form, state).items()}
    for name, norm in form.readers.items():
        if norm.centred:
            tensor = _read(form, state, name)
            axis = form.view(name, norm.stream, tensor)[1]
            folded = form.scaled(name, norm.stream, tensor, _read(form, state, norm.weight))
            gauge[f"{name}:mean"] = folded.mean(axis, keepdim=True)
    for name, stream in form.centred_writers.items():
        tensor = _read(form, state, name)
        if name in form.scaled_writers:
            scale = _read(form, state, form.scaled_writers[name].weight)
            tensor = form.scaled(name, stream, tensor, scale).reshape(tensor.shape)
        view, axis = form.view(name, stream, tensor)
        gauge[f"{name}:mean"] = view.mean(axis, keepdim=True)
    folded = Folded(form, state)
    for bias in form.biases:
        if isinstance(bias, SoftmaxShift):
            gauge[f"{bias.weight}:shift"] = form.common_row(bias, folded.before_biases(bias.weight))
        else:
            # with what its reader takes from the norm's offset: so all that is written is linear in the weights, and
            # the mean of models in one gauge is the mean of their canonical forms
            view = form.spec.entries[bias.bias].layout.blocks[bias.block].view(folded.before_biases(bias.bias))
            gauge[f"{bias.bias}:{bias.block}"] = view.clone()
    return gauge | frames_as_gauge(balancing_frames(form, folded))


def gauge_shapes(form: Form) -> dict[str, torch.Size]:
    """The shapes of what `gauge_of` finds."""
    entries = form.spec.entries.items()
    state = {name: torch.empty(entry.layout.shape, device="meta") for name, entry in entries}
    return {name: tensor.shape for name, tensor in gauge_of(form, state).items()}


def gains_of(form: Form, state: State) -> Gauge:
    """The gains, offsets and layer scales of a model: the part of its gauge that nothing has to be computed for."""
    return {name: _read(form, state, name) for name in (*form.norm_parameters, *form.scale_parameters)}


def obstacles(
    form: Form, source: Gauge, target: Gauge, smallest: float = SMALLEST_OFFSET, whose: str = "the anchor"
) -> list[str]:
    """Why a model with ``source``'s norms cannot be written in ``target``'s, one line each; empty where it can.

    Args:
        form: what is folded.
        source, target: gauges, of which `gains_of` is enough.
        smallest: the smallest offset that may carry a bias, |Σ β/γ| over the norm of β/γ.
        whose: the target is, in words.
    """
    entries = {folded.weight: zero_gain(target[folded.weight]) for folded in (*form.norms, *form.scales)}
    zeros = {name: entry for name, entry in entries.items() if entry is not None}
    found = [f"{name} of {whose} has a gain of zero (entry {entry})" for name, entry in zeros.items()]
    for norm in form.norms:
        if norm.weight not in zeros and norm.bias and any(form.carries_offset(reader) for reader in norm.readers):
            needed = target[norm.bias].any() or source[norm.bias].any()
            if needed and not carries(target[norm.weight], target[norm.bias], smallest):
                found.append(f"{norm.bias} of {whose} sums to next to nothing over its gains, and a reader has no bias")
    return found


def zero_gain(gain: Tensor) -> int | None:
    """The entry of a norm's gain that counts as zero, if there is one."""
    size = gain.abs()
    return int(size.argmin()) if size.min() <= _SMALLEST_GAIN * size.max() else None


def carries(gain: Tensor, offset: Tensor, smallest: float = SMALLEST_OFFSET) -> bool:
    """Whether a norm's offset can carry the bias of readers that have none of their own."""
    ratio = offset.double() / gain
    return bool(ratio.sum().abs() >= smallest * ratio.norm() + torch.finfo(torch.float64).tiny)
