"""Whether the sizes of a config can be, and whether the tensors of a checkpoint are those that are declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from cobasin.checkpoints.weight_files import WEIGHT_DTYPES, of_weights
from cobasin.symmetry.spec import Spec
from cobasin.symmetry.types import unparse

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

SIZES = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
DEPTHS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_decoder_layers")
MOST_LAYERS = 10_000  # far more than any model has; the types of very many would fill the memory


def problems(spec: Spec, headers: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> list[str]:
    """All that is wrong with a checkpoint's headers (on-disk name to shape and dtype), one line each."""
    names, found = spec.disk_names(headers), []
    used = {spec.own_name(disk): disk for disk in names.values()}
    for disk in headers if len(names) < len(headers) else ():
        name = spec.own_name(disk)
        if name is not None and used[name] != disk:
            found.append(f"{disk} and {used[name]} are the same tensor under two names")
    missing = sorted(spec.file_entries.keys() - names.keys() - spec.tied.keys())
    for name, disk in spec.names_beside(missing, names).items():
        found.append(f"missing tensor {disk} {_file_layout(spec, name)[1]}")
    for name, disk in names.items():
        shape, dtype = headers[disk]
        if name not in spec.file_entries:
            found.append(f"unexpected tensor {disk} {tuple(shape)}, not part of {spec.architecture}")
            continue
        text, wanted = _file_layout(spec, name)
        if tuple(shape) != wanted:
            found.append(f"{disk} has shape {tuple(shape)}, its type {text!r} needs {wanted}")
        elif not of_weights(dtype):
            found.append(f"{disk} has dtype {dtype}, expected {WEIGHT_DTYPES}")
    empty = {key[0] for key in spec.sites if not spec.sizes[key[0]]}
    return found + [f"space {name} has size 0 by the config, expected at least 1" for name in sorted(empty)]


def below_one(config: PreTrainedConfig) -> list[str]:
    """Those sizes below one that no model is without, by their keys in config.json, of whatever tower."""
    return [f"{key} {size}" for key, size in _said(config, SIZES) if size < 1]


def too_deep(config: PreTrainedConfig) -> list[str]:
    """Those numbers of layers that no model has, by their keys in config.json, of whatever tower."""
    return [f"{key} {count}" for key, count in _said(config, DEPTHS) if count > MOST_LAYERS]


def _said(config: PreTrainedConfig, keys: Sequence[str], within: str = "") -> Iterator[tuple[str, int]]:
    """What a config says of these keys, and those within it, where that is a whole number."""
    said = vars(config)  # layers may have sizes of their own, which no attribute tells
    for key in (config.attribute_map.get(key, key) for key in keys):
        if isinstance(size := said.get(key), int):
            yield f"{within}{key}", size
    for key in config.sub_configs:
        if (tower := said.get(key)) is not None:
            yield from _said(tower, keys, f"{within}{key}.")


def _file_layout(spec: Spec, name: str) -> tuple[str, tuple[int, ...]]:
    """Type and shape of a tensor of the file."""
    entry, place = spec.file_entries[name]
    layout = spec.entries[entry].layout
    if place is None:
        return layout.text, layout.shape
    return unparse(layout.nodes[1:]), layout.shape[1:]
