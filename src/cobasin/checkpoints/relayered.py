"""A model with other layers than it had: some left out, some repeated, in another order, or another model's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from cobasin.architectures import declare
from cobasin.checkpoints.depth import by_place, check_kinds, with_layers
from cobasin.checkpoints.fit import problems
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError, shown
from cobasin.symmetry.keys import is_layer, layer_of

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
"""In the name of a tensor of a layer the first is the layer's."""


def depth_of(typed: Typed) -> int:
    """How many layers a model has.

    Raises:
        InputError: for a model that has not one stack of layers with weights of their own.
    """
    spec, config = typed.spec, typed.checkpoint.config
    stacks = sorted(filter(is_layer, spec.index_spaces))
    if stacks == ["layer"] and spec.sizes["layer"] == getattr(config, "num_hidden_layers", None):
        return config.num_hidden_layers
    what = (
        f"several ({', '.join(stacks)})"
        if len(stacks) > 1
        else "one whose length is not num_hidden_layers of its config"
    )
    raise InputError(
        f"{typed.checkpoint.label}: passthrough needs a model with one stack of layers; {spec.architecture} has {what}"
    )


def relayered(typed: Typed, layers: Sequence[int], read: Callable[[str, int | None], Tensor]) -> Typed:
    """A model made of these layers, and of what comes before and after them.

    Args:
        typed: which it is like in all that is not said here: names, dtypes, files.
        layers: which of its layers every layer of the result is like.
        read: a tensor by its spec name in ``typed`` (one of the file), and the layer of the result that it is for.

    Raises:
        InputError: as `depth_of`; where the layers cannot be in these places.
    """
    given, spec, label = typed.checkpoint, typed.spec, typed.checkpoint.label
    own = {disk: name for name, disk in typed.disk_names.items()}
    places: dict[str, int | None] = {
        disk: layer_of(spec.entries[spec.file_entries[name][0]].index) for disk, name in own.items()
    }
    stems = {disk[: found.start()] for disk in own if places[disk] is not None and (found := _NUMBER.search(disk))}
    for disk in (disk for disk in given.headers if disk not in own):  # buffers
        found = _NUMBER.search(disk)
        places[disk] = int(found.group()) if found and disk[: found.start()] in stems else None
    places = {disk: places[disk] for disk in given.headers}
    if any(re.fullmatch(pattern, disk.removeprefix(spec.prefix)) for pattern in spec.further for disk in given.headers):
        raise InputError(
            f"{label}: has layers that predict further tokens from what its last layer writes; remove them"
        )
    sources = _sources(places, layers)
    headers = {disk: given.headers[source] for disk, (source, _) in sources.items()}
    plain = replace(spec, buffers=spec.buffers[: len(spec.buffers) - len(typed.copied)])
    copied = {disk: name for disk in headers if (name := plain.own_name(disk)) is not None}
    copied = {disk: name for disk, name in copied.items() if sources[disk][0] not in own}
    try:
        moved = list(layers) != list(range(depth_of(typed)))
        config = with_layers(given.config, layers) if moved else given.config
        kept = {disk: header for disk, header in headers.items() if disk not in copied}
        made = declare(config, given.architecture, kept)
        found = problems(made, kept) or [
            f"{name} would be of another type"
            for name, entry in made.entries.items()
            if spec.entries[_renumbered(name, layer_of(entry.index), layers)].layout != entry.layout
        ]
        if found:
            raise InputError(f"in these places they would be others ({found[0]}){by_place(config)}")
        if moved:
            stack = min(stems).rstrip(".").rpartition(".")[2]
            check_kinds(given.config, config, given.architecture, layers, stack)
    except InputError as error:
        raise InputError(f"{label}: layers {shown(list(layers))} cannot be stacked: {error}") from None
    made = replace(made, buffers=(*made.buffers, *map(re.escape, sorted(copied.values()))))

    def tensor(disk: str) -> Tensor:
        source, layer = sources[disk]
        return read(own[source], layer) if source in own else given[source]

    stacked = replace(given, label="the stacked model", config=config, headers=headers, read=tensor, stored=False)
    return replace(typed, checkpoint=stacked, spec=made, copied=(*sorted(copied.values()),))


def _sources(places: Mapping[str, int | None], layers: Sequence[int]) -> dict[str, tuple[str, int | None]]:
    """Of every tensor of the result the one in whose place it is, and its layer; in the order of the file.

    Args:
        places: of the tensors of the file, the layer that each belongs to.
        layers: see `relayered`.
    """
    first = next(i for i, place in enumerate(places.values()) if place is not None)
    sources: dict[str, tuple[str, int | None]] = {disk: (disk, None) for disk in list(places)[:first]}
    for i, layer in enumerate(layers):
        sources |= {_NUMBER.sub(str(i), disk, count=1): (disk, i) for disk, place in places.items() if place == layer}
    return sources | {disk: (disk, None) for disk, place in places.items() if place is None}


def _renumbered(name: str, place: int | None, layers: Sequence[int]) -> str:
    """What a tensor of the result is called in the model that it is like."""
    return name if place is None else _NUMBER.sub(str(layers[place]), name, count=1)
