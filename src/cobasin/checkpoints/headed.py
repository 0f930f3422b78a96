"""A model as one of another class with the same layers: a base as the classifiers that were made from it."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from cobasin.checkpoints.layouts import laid_out_as
from cobasin.checkpoints.pairs import check_layers
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.symmetry.keys import layer_of


def of_another_class(model: Typed, other: Typed) -> bool:
    """Whether two models are of two classes of one family, which may have the same layers."""
    a, b = model.checkpoint, other.checkpoint
    return a.architecture != b.architecture and a.config.model_type == b.config.model_type


def headed_as(model: Typed, other: Typed) -> Typed:
    """The model as one of the class of another; what only that one has beside the layers is zero.

    Raises:
        InputError: where settings, sizes or vocabularies differ, or layers lack a tensor.
    """
    check_layers(other, model)
    model = laid_out_as(model, other.spec)
    given, asked, heads = model.checkpoint, other.checkpoint, set(other.task_heads)
    source, lacking = dict[str, str](), dict[str, str]()
    for part, disk in other.disk_names.items():
        twin, name = model.spec.tied.get(part, part), other.spec.file_entries[part][0]
        if name not in heads and twin in model.disk_names:
            source[disk] = twin
        elif layer_of(other.spec.entries[name].index) is None:
            lacking[disk] = part
        else:
            raise InputError(f"{given.label}: its layers lack {disk}, which those of {asked.label} have")
    dtypes = {disk: given.headers[model.disk_names[name]].dtype for disk, name in source.items()}
    dtypes |= dict.fromkeys(lacking, next(iter(dtypes.values())))  # a file is written in the dtypes of its base
    headers = {disk: replace(header, dtype=dtypes.get(disk, header.dtype)) for disk, header in asked.headers.items()}
    config = copy.deepcopy(asked.config)
    config.dtype = given.config.dtype  # in which Transformers loads what is written

    def read(disk: str) -> Tensor:
        if disk in lacking:
            return torch.zeros(headers[disk].shape, dtype=headers[disk].dtype)
        return model.part(source[disk]) if disk in source else asked[disk]

    made = replace(asked, label=given.label, config=config, headers=headers, read=read, folder=given.folder)
    made = replace(made, stored=False, beside={})
    return Typed(made, other.spec, lacking=(*lacking.values(),), unknown=model.unknown)
