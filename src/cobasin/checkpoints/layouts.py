"""The same tensors laid out otherwise: a file has the experts of a layer one by one, or all in one tensor."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import torch
from torch import Tensor

from cobasin.architectures import declare
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.weight_files import Header
from cobasin.symmetry.keys import layer_of
from cobasin.symmetry.spec import Entry, Spec
from cobasin.symmetry.types import Block


def laid_out_as(model: Typed, spec: Spec) -> Typed:
    """The same model with its tensors laid out as in ``spec``, of its class, or of one with the same layers.

    What the two lay out differently are blocks, which mean the same wherever they lie: in a layer there is one of gates
    of experts. Where that does not hold, they differ in something else, and the model is returned as it is.
    """
    found, wanted = _blocks(model.spec, spec), _blocks(spec, model.spec)
    others = any(model.spec.sizes.get(name, size) != size for name, size in spec.sizes.items() if name != "label")
    if not found or found.keys() != wanted.keys() or others:
        return model
    given, parts = model.checkpoint, model.spec.file_entries
    old, new = {name for name, _ in found.values()}, {name for name, _ in wanted.values()}
    left = {disk for name, disk in model.disk_names.items() if parts[name][0] in old}
    headers = {disk: header for disk, header in given.headers.items() if disk not in left}
    own = spec.names_beside([part for part, (name, _) in spec.file_entries.items() if name in new], model.disk_names)
    added = {disk: spec.file_entries[part] for part, disk in own.items()}

    def sources(name: str) -> list[tuple[Block, str, Block]]:
        """The blocks of a tensor, each with the one of the file that it is."""
        entry = spec.entries[name]
        return [(block, *found[_meaning(entry, block)]) for block in entry.layout.blocks]

    def header(name: str, place: int | None) -> Header:
        shape = spec.entries[name].layout.shape
        files = [next(iter(model.spec.entries[source].stack), source) for _, source, _ in sources(name)]
        stored = [given.headers[model.disk_names[file]] for file in files]
        dtype = reduce(torch.promote_types, (one.dtype for one in stored))
        return Header(dtype, shape if place is None else shape[1:], stored[0].shard)

    headers |= {disk: header(*entry) for disk, entry in added.items()}

    def read(disk: str) -> Tensor:
        if disk not in added:
            return given[disk]
        name, place = added[disk]
        made = torch.empty(headers[disk].shape, dtype=headers[disk].dtype)
        for block, source, there in sources(name):
            ends = made.expand(spec.entries[name].layout.shape), model[source]
            to, of = (one.view(end).permute(_order(one)) for one, end in zip((block, there), ends, strict=True))
            if place is not None:  # of a stack, whose places are told by the block's first axis
                to, of = (end.select(_order(block).index(0), place) for end in (to, of))
            to.copy_(of)
        return made

    made = replace(given, headers=headers, read=read, stored=False)
    return replace(model, checkpoint=made, spec=declare(given.config, given.architecture, headers), copied=())


def _blocks(spec: Spec, other: Spec) -> dict[tuple, tuple[str, Block]]:
    """Blocks of layers that ``other`` lays out otherwise, by meaning, with tensors; none where two mean the same."""
    entries = {
        name: entry
        for name, entry in spec.entries.items()
        if layer_of(entry.index) is not None
        and (name not in other.entries or other.entries[name].layout != entry.layout)
    }
    blocks = [(name, entry, block) for name, entry in entries.items() for block in entry.layout.blocks]
    found = {_meaning(entry, block): (name, block) for name, entry, block in blocks}
    return found if len(found) == len(blocks) else {}


def _meaning(entry: Entry, block: Block) -> tuple:
    """The layer of a block, and the spaces that it runs over."""
    return *sorted(entry.index.items()), *(block.axes[i] for i in _order(block))


def _order(block: Block) -> list[int]:
    """Its axes in the order of their spaces' names."""
    return sorted(range(len(block.axes)), key=lambda i: block.axes[i].space)
