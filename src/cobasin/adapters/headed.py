"""The base of an adapter that was trained with a head of its own, such as a classifier on a language model's layers."""

from __future__ import annotations

import copy
from dataclasses import replace

from torch import Tensor

from cobasin.adapters.folder import FACTOR, Adapter
from cobasin.adapters.layers import ROOT
from cobasin.architectures import declare, known
from cobasin.checkpoints.checkpoint import Checkpoint

# what PEFT calls the tasks that Transformers has a class with another head for
_TASKS = {
    "SEQ_CLS": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "TOKEN_CLS": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "QUESTION_ANS": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
}


def headed(adapter: Adapter, base: Checkpoint) -> Checkpoint:
    """The base as the class that the adapter was trained in: with the adapter's head, without its own.

    As it is, where it is of that class already, where the adapter has no head that it lacks, and where the adapter's
    config names no task, or the base's family no class for it.
    """
    from transformers.models.auto import modeling_auto

    classes = getattr(modeling_auto, _TASKS.get(str(adapter.config.get("task_type")), ""), {})
    architecture = classes.get(base.config.model_type)
    if architecture not in known() or architecture == base.architecture:
        return base
    config = copy.deepcopy(base.config)
    spec = declare(config, architecture, base.headers)
    held = {spec.own_name(name) for name in base.headers}  # the file may lack the prefix that the adapter's names have
    saved = {disk.removeprefix(ROOT): disk for disk in adapter.headers if not FACTOR.fullmatch(disk)}
    heads = {name: disk for name, disk in saved.items() if spec.own_name(name) not in held}
    if not heads:  # it was not saved, and nothing that is moved needs it
        return base
    shard = [header.shard for header in base.headers.values()][-1]  # not the adapter's, which no model is loaded from
    headers = base.headers | {name: replace(adapter.headers[disk], shard=shard) for name, disk in heads.items()}
    for name in heads:
        entry = spec.entries.get(spec.own_name(name) or "")
        axis = entry and entry.layout.axis_of("label")
        if axis is not None and axis < len(headers[name].shape):
            config.num_labels = headers[name].shape[axis]
    read = {name for name in headers if (own := spec.own_name(name)) is None or own in spec.file_entries}

    def tensor(name: str) -> Tensor:
        return adapter[heads[name]] if name in heads else base[name]

    kept = {name: header for name, header in headers.items() if name in read}
    label = f"{base.label} with the head of {adapter.label}"
    return Checkpoint(label, config, architecture, kept, tensor, base.folder)
