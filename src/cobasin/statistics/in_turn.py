"""Input Grams on the merged model, layer by layer (Nguyen et al., RegMean++, 2025).

RegMean takes the inputs of a layer from the model that it belongs to. But in the merged model they come out of merged
layers: here the Grams of a layer are those of every candidate's layer on what the merged layers before it make of the
candidate's data. So each layer is merged before the next one is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cobasin.checkpoints.typed import Typed
from cobasin.execution.devices import device_of
from cobasin.progress import Count, silent
from cobasin.statistics.grams import Grams, InputGram
from cobasin.statistics.modules import built, linear_maps
from cobasin.symmetry.keys import is_layer
from cobasin.symmetry.spec import Spec
from cobasin.symmetry.state import Lazy, State

if TYPE_CHECKING:
    from cobasin.data import Batch, Batches


def collect_in_turn(
    typeds: Sequence[Typed],
    states: Sequence[State],
    batches: Sequence[Batches],
    fuse: Callable[[str, list[InputGram] | None], Tensor],
    *,
    device: str = "auto",
    progress: Count = silent,
) -> dict[str, list[InputGram]]:
    """Collect Grams and merge, layer by layer.

    What is no part of a layer is merged with its like between two layers: embeddings before the first, heads after
    the last. Layers that share their weights are merged as one.

    Args:
        typeds: the candidates, of one type.
        states: their (matched) tensors by spec name.
        batches: the data of each.
        fuse: makes the merged tensor of a name from the Grams of the candidates; None where they have none. Called
            once for every tensor that is not tied to another.
        device: where to run; ``auto`` leaves it to accelerate.
        progress: called with the number of batches done, and of all.

    Returns:
        The Grams that ``fuse`` was given, by spec name.

    Raises:
        InputError: there is no such device; a model cannot be built.
    """
    place, names = device_of(device), [name for name in typeds[0] if name not in typeds[0].spec.tied]
    calls, maps = _calls(typeds[0], states[0], next(iter(batches[0])), place)
    turns = _turns(typeds[0].spec, names, maps, calls)
    total = sum(map(len, batches)) * sum(bool(turn.maps) for turn in turns)
    fused: dict[str, Tensor] = {}
    grams: dict[str, list[InputGram]] = {}
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    for turn in turns:
        if turn.maps:
            found = [
                _grams(turn, typed, _partly(fused, turn, typed, state), data, place, advance)
                for typed, state, data in zip(typeds, states, batches, strict=True)
            ]
            grams |= {name: [one[name] for one in found] for name in turn.maps if all(name in one for one in found)}
        for name in turn.names:
            fused[name] = fuse(name, grams.get(name))
    return grams


@dataclass(frozen=True)
class _Turn:
    """What is merged at once: tensors, the linear maps among them, and all that runs after the last of these."""

    names: tuple[str, ...]
    maps: tuple[str, ...]
    later: frozenset[str]


def _turns(spec: Spec, names: Sequence[str], maps: frozenset[str], calls: Sequence[str]) -> list[_Turn]:
    """All tensors in the order in which a run comes to them, the layers in one piece each."""
    groups: dict[object, list[str]] = {}
    started = set()
    for name in dict.fromkeys(calls):
        layer = _layer(spec, name)
        if layer is not None:
            started.add(layer)
        groups.setdefault(len(started) if layer is None else layer, []).append(name)
    label_of = {name: label for label, group in groups.items() for name in group}
    for name in names:
        if name not in label_of:  # no module is called for it: a bias, a token, the experts of a layer
            layer, module = _layer(spec, name), name.rpartition(".")[0]
            label = layer if layer in groups else label_of.get(f"{module}.weight", next(iter(groups)))
            groups[label].append(name)
    first = {label: min(calls.index(name) for name in group if name in calls) for label, group in groups.items()}
    turns = []
    for group in groups.values():
        own = tuple(name for name in group if name in maps and name in calls)
        end = max((i for i, name in enumerate(calls) if name in own), default=len(calls))
        later = (name for label, other in groups.items() if first[label] > end for name in other)
        turns.append(_Turn(tuple(group), own, frozenset(later)))
    return turns


def _layer(spec: Spec, name: str) -> tuple[str, int] | None:
    """The layer that a tensor is part of: its stack and its number."""
    return next((item for item in spec.entries[name].index.items() if is_layer(item[0])), None)


def _partly(fused: Mapping[str, Tensor], turn: _Turn, typed: Typed, state: State) -> State:
    """The candidate on merged layers; zeros where no run comes."""

    def read(name: str) -> Tensor:
        name = typed.spec.tied.get(name, name)
        if name in turn.later:
            return torch.zeros(()).expand(typed.spec.entries[name].layout.shape)
        return fused[name] if name in fused else state[name]

    return Lazy(typed, read)


def _calls(typed: Typed, state: State, batch: Batch, place: torch.device) -> tuple[list[str], frozenset[str]]:
    """The names of the weights in the order in which a run calls their modules, and those of linear maps."""
    model, holders = built(typed, state, typed.checkpoint.running_dtype, place)
    calls: list[str] = []
    for name, modules in holders.items():
        for module in modules:
            module.register_forward_pre_hook(lambda *_, name=name: calls.append(name))
    with torch.no_grad():
        model(**{name: value[:2] for name, value in batch.to(model.device, model.dtype).inputs.items()})
    return calls, frozenset(linear_maps(holders))


class _Reached(Exception):
    """A run has come to what is merged later."""


def _grams(
    turn: _Turn,
    typed: Typed,
    state: State,
    batches: Batches,
    place: torch.device,
    advance: Callable[[], None],
) -> dict[str, InputGram]:
    """The Grams of the turn's linear maps, from runs that end with the turn."""
    model, holders = built(typed, state, typed.checkpoint.running_dtype, place)
    forward = model.forward

    def reached(*_: object) -> None:
        raise _Reached

    def up_to_here(**inputs: Tensor) -> None:
        with suppress(_Reached):
            forward(**inputs)

    for name in turn.later & holders.keys():
        for module in holders[name]:
            module.register_forward_pre_hook(reached)
    model.forward = up_to_here
    sums = Grams(model, {name: module for name, module in linear_maps(holders).items() if name in turn.maps})
    try:
        for batch in batches:
            sums.add(batch.to(model.device, model.dtype).inputs, None, 0)
            advance()
    finally:
        del model.forward  # it holds the model: a circle that would keep one model in memory for every layer
    return sums.result(0)
