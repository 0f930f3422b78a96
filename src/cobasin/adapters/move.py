"""An adapter moves with its base: what the base's element does to ``W``, it does to ``W + B A``.

The element is linear in the weights once the gauges of its two ends are given, so A moves along its input axis and B
along its output axis, in the base's gauges: with the base's gains, offsets and balanced bases, which are no part of the
adapter's file and come with the element. What reads a norm has no bias of its own here, so A carries the norm's offset
along the ones vector, as a head without a bias does (see `cobasin.symmetry.canonical`).

Two constants may be left over, and become the bias of B (PEFT's ``lora_bias``): an offset that A cannot carry, and what
A reads from a value bias that the element moves through the output projection.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cobasin.adapters.folder import Adapter, in_dtype
from cobasin.adapters.layers import Layer, type_adapter
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.symmetry.action import act
from cobasin.symmetry.balance import in_frames, inverses
from cobasin.symmetry.canonical import Folded, Gauge, Unfolded, carries, frames_of, gauge_of
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import Form
from cobasin.symmetry.gauges import SoftmaxShift, ValueBias
from cobasin.symmetry.state import Lazy, State

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

EXACT = 1e-9  # relative, in float64
_PROBES = 16
_GROWTH, _ROUNDING = 4, 1e-5  # of an A that carries an offset, and its relative rounding: either must be small
_WAY_OUT = (
    "match the base with fewer symmetries (--symmetry ffn,heads,residual-order), or merge the adapter into its base "
    "and move that"
)


def move_adapter(
    element: Element,
    adapter: Adapter,
    base: Typed | None = None,
    config: PreTrainedConfig | None = None,
    dtype: torch.dtype | None = None,
) -> Adapter:
    """The adapter for the base that the element makes of the adapter's base.

    Args:
        element: of the adapter's base, from `match`.
        base: the adapter's base, typed like the element; needed where the move depends on tensors of it.
        config: of the base, where ``base`` is None; for models whose modules have other names than their tensors.
        dtype: of the result; the adapter's own by default.

    Raises:
        InputError: where the adapter does not fit, where its move needs the base and it is not given, and where no
            adapter of its kind computes the same on the new base; names the tensor.
    """
    return _Move(element, adapter, base, config).result(dtype)


class _Move:
    def __init__(self, element: Element, adapter: Adapter, base: Typed | None, config: PreTrainedConfig | None):
        self.element, self.adapter, self.base = element, adapter, base
        self.typed = type_adapter(adapter, element.spec, base.checkpoint.config if base else config)
        form = element.form
        self.source = element.source or {}
        if not self.source and (form.norms or form.scales or form.biases or form.balanced):
            if base is None:
                raise InputError("the element has no gauge of its own: name the base of the adapter (--base)")
            self.source = gauge_of(form, base)
        self.target = element.target or self.source
        if base is not None:
            _check_base(element, base, self.source)
        self.state = self._state({})
        self.form = self._form(self._carrying())
        self.moved = self._moved(self.form, self.state)

    def _carrying(self) -> set[str]:
        """The A that carry their norm's offset: those that can, and that do not lose precision by it.

        What carries lies along one fixed vector, and may have to be long. Beside an adapter of an embedding there is no
        choice, as PEFT then has no bias for B.
        """
        able = set()
        for norm in self.element.form.norms:
            if norm.bias and norm.centred and carries(self.target[norm.weight], self.target[norm.bias]):
                able |= {layer.down for layer in self.typed.layers if layer.weight in norm.readers}
        if self._embedding:
            return able
        ends = []
        for carrying in (set(), able):
            moved = self._moved(self._form(carrying), self.state)
            ends.append({name: float(moved[name].norm()) for name in able})
        eps = {name: torch.finfo(self.adapter.headers[self.typed.disk[name]].dtype).eps for name in able}
        return {name for name in able if ends[1][name] <= ends[0][name] * max(_GROWTH, _ROUNDING / eps[name])}

    @property
    def _embedding(self) -> bool:
        return any("lora_embedding" in name for name in self.adapter.headers)

    def _form(self, carrying: set[str]) -> Form:
        """The element's form, in which the factors read and write what the weights they adapt do."""
        form, layers = self.element.form, self.typed.layers
        norms = []
        for norm in form.norms:
            downs = [layer.down for layer in layers if layer.weight in norm.readers]
            plain = tuple(name for name in downs if name not in carrying)
            norms += [replace(norm, readers=plain, bias=None)] if plain else []
            norms.append(replace(norm, readers=(*norm.readers, *(name for name in downs if name in carrying))))
        scales = []
        for scale in form.scales:
            added = [layer for layer in layers if layer.weight in scale.writers]
            writers = [name for layer in added for name in (layer.up, layer.bias, layer.magnitude)]
            scales.append(replace(scale, writers=(*scale.writers, *writers)))
        return replace(form, spec=self.typed.spec, norms=tuple(norms), scales=tuple(scales))

    def _state(self, instead: Mapping[str, Tensor]) -> State:
        """Adapter over gauge over base, in float64; some tensors replaced."""
        form = self.element.form

        def read(name: str) -> Tensor:
            if name in instead:
                return instead[name]
            if name in self.typed.disk:
                return self.typed[name]
            if name in form.norm_parameters or name in form.scale_parameters:
                return self.source[name].double() - int(name in form.plus_one)
            if self.base is None:
                raise InputError(
                    f"{self.adapter.label}: to move it, {name} of its base is needed: name the base (--base)"
                )
            return self.base[name].double()

        return Lazy(self.typed.spec.entries, read)

    def _moved(self, form: Form, state: State) -> State:
        """The tensors of base and adapter after the move; those that nobody asks for are not computed."""
        spec, names = self.typed.spec, self.typed.spec.entries
        there = in_frames(form, Folded(form, state), frames_of(form, self.source))
        acted = Lazy(names, lambda name: act(spec, self.element.values, self.element.form.group, name, there[name]))
        back = in_frames(form, acted, inverses(frames_of(form, self.target)))
        # means are gauge: what an adapter adds to them is nothing
        own = {f"{name}:mean": torch.zeros(()) for name in spec.added}
        return Unfolded(form, back, self.target | own)

    def result(self, dtype: torch.dtype | None) -> Adapter:
        """The moved adapter."""
        for name in self.typed.disk:
            if name in self.typed.whole:
                self._check_whole(name)
        tensors = {disk: self.moved[name] for name, disk in self.typed.disk.items()}
        biases: dict[str, Tensor] = {}
        for layer in self.typed.layers:
            if layer.magnitude in self.typed.disk:
                tensors[self.typed.disk[layer.magnitude]] = self._magnitude(layer)
            elif (left := self._left_over(layer, self.state, self.moved)) is not None:
                biases[layer.weight] = self.moved[layer.up].flatten(1) @ left
        # of a base that only the caller knows by name
        config = copy.deepcopy(self.adapter.config) | {"base_model_name_or_path": None, "revision": None}
        headers = dict(self.adapter.headers)
        if biases:
            self._check_biases(next(iter(biases)))
            config |= {"lora_bias": True, "init_lora_weights": True}
            for layer in self.typed.layers:
                up = self.typed.disk[layer.up]
                disk = up.removesuffix("weight") + "bias"
                zeros = torch.zeros(self.typed.spec.entries[layer.bias].layout.shape, dtype=torch.float64)
                tensors[disk] = tensors.get(disk, zeros) + biases.get(layer.weight, zeros)
                headers.setdefault(disk, replace(headers[up], shape=tuple(zeros.shape)))
        if dtype is not None:
            headers = {name: replace(header, dtype=dtype) for name, header in headers.items()}
        label = self.adapter.label
        cast = {name: in_dtype(label, name, tensor, headers[name].dtype) for name, tensor in tensors.items()}
        return replace(self.adapter, config=config, headers=headers, read=cast.__getitem__)

    def _left_over(self, layer: Layer, state: State, moved: State) -> Tensor | None:
        """What the moved A reads less from the constants in its input than A did, ``[rank]``; None for rounding."""
        before = torch.zeros(state[layer.down].shape[0], dtype=torch.float64)
        after, size = before, torch.zeros(())
        for axes, old, new in self._constants(layer, state, moved):
            before = before + self._contract(layer, state[layer.down], axes, old)
            after = after + self._contract(layer, moved[layer.down], axes, new)
            size = size + state[layer.down].norm() * old.norm() + moved[layer.down].norm() * new.norm()
        left = before - after
        return left if left.abs().max() > EXACT * size else None

    def _constants(self, layer: Layer, state: State, moved: State) -> Iterator[tuple[tuple[str, ...], Tensor, Tensor]]:
        """The constants in a layer's input that the element changes: their axes, and they before and after."""
        form = self.element.form
        norm = form.readers.get(layer.weight)
        if norm is not None and norm.bias is not None:
            yield (norm.stream,), state[norm.bias], moved[norm.bias]
        for gauge in form.biases:
            if isinstance(gauge, ValueBias) and gauge.weight == layer.weight:
                block = form.spec.entries[gauge.bias].layout.blocks[gauge.block]
                ends = [block.view(Folded(self.form, end).before_biases(gauge.bias)) for end in (state, moved)]
                yield tuple(axis.space for axis in block.axes), ends[0], ends[1]

    def _contract(self, layer: Layer, down: Tensor, axes: tuple[str, ...], constant: Tensor) -> Tensor:
        """``A c``, ``[rank]``."""
        (block,) = self.typed.spec.entries[layer.down].layout.blocks
        letters = {axis.space: chr(ord("a") + i) for i, axis in enumerate(block.axes)}
        return torch.einsum(
            f"{''.join(letters.values())},{''.join(letters[axis] for axis in axes)}->a", block.view(down), constant
        )

    def _check_biases(self, weight: str) -> None:
        if self._embedding:
            raise InputError(
                f"{self.adapter.label}: moved exactly, the adapter of {weight} needs a bias of its own (lora_bias), "
                f"which PEFT does not allow beside an adapter of an embedding; {_WAY_OUT}"
            )

    def _check_whole(self, name: str) -> None:
        """Refuse a tensor of the base in the adapter whose move changes another one that is not."""
        lost = [other for other in _dependents(self.form, name) if other not in self.typed.whole]
        lost = [other for other in lost if other not in self.typed.spec.added]
        if lost:
            raise InputError(
                f"{self.adapter.label}: {self.typed.disk[name]} is trained, and moving it changes {lost[0]}, which the "
                f"adapter does not have; {_WAY_OUT}"
            )

    def _magnitude(self, layer: Layer) -> Tensor:
        """The moved magnitudes of DoRA: they are norms of rows, which must move along.

        Raises:
            InputError: where rows are mixed, or their norms change.
        """
        generator = torch.Generator().manual_seed(0)
        down = torch.randn(self.state[layer.down].shape, generator=generator, dtype=torch.float64)
        probe = self._state({layer.down: down})
        moved = self._moved(self.form, probe)
        norms = [rows.flatten(1).norm(dim=1) for rows in (down, moved[layer.down])]
        problem = None
        if (norms[0] - norms[1]).abs().max() > EXACT * norms[0].max():
            problem = "the input axis of its weight is scaled, so that the norms of its rows change"
        elif self._left_over(layer, probe, moved) is not None:
            problem = "a constant in its input changes"
        elif any(isinstance(gauge, SoftmaxShift) and gauge.weight == layer.weight for gauge in self.form.biases):
            problem = "what the rows of a router share is moved"
        shape = self.state[layer.magnitude].shape
        signs = torch.randint(0, 2, (_PROBES, *shape), generator=generator).double() * 2 - 1
        signs[0] = 1
        moved = (self._moved(self.form, self._state({layer.magnitude: one})) for one in signs)
        ends = torch.stack([one[layer.magnitude] for one in moved])
        # a row that takes from one row only has a size that no signs change
        if (ends.abs() - ends[0].abs()).abs().max() > EXACT * ends.abs().max():
            problem = "the rows of its weight are mixed"
        if problem:
            raise InputError(
                f"{self.adapter.label}: the DoRA magnitudes of {layer.weight} cannot move: {problem}; {_WAY_OUT}"
            )
        return self.moved[layer.magnitude] * ends[0].sign()


def _dependents(form: Form, name: str) -> Iterator[str]:
    """The tensors whose move reads this one."""
    for norm in form.norms:
        if name in (norm.weight, norm.bias):
            for reader in norm.readers:
                if name == norm.weight or form.carries_offset(reader):
                    yield reader
                elif (bias := form.bias_of(reader)) is not None:
                    yield bias
    for scale in form.scales:
        if name == scale.weight:
            yield from scale.writers
    if name in form.readers and form.readers[name].bias is not None and (bias := form.bias_of(name)) is not None:
        yield bias
    for gauge in form.value_biases.values():
        if name in (gauge.bias, gauge.weight) or form.reader_biases.get(gauge.bias) == name:
            yield gauge.out_bias


def _check_base(element: Element, base: Typed, gauge: Gauge) -> None:
    """Refuse a model that is not the one the element starts from, as far as its norms tell."""
    for name in (*element.form.norm_parameters, *element.form.scale_parameters):
        if not torch.allclose(
            gauge[name].double(), base[name].double() + int(name in element.form.plus_one), rtol=1e-5
        ):
            raise InputError(f"{base.checkpoint.label} is not the model that the element starts from: {name} differs")
