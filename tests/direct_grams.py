"""Input Grams by definition, for the tests: hooks on every linear map, tensors told by their values."""

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from cobasin.checkpoints.pictures_in_text import READ
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import cast_floats, instantiate
from cobasin.statistics.grams import InputGram


def value_of(tensor):
    """What tells random tensors apart, in whatever dtype."""
    return tuple(tensor.shape), float(tensor.detach().flatten()[0].float())


def names_by_value(typed):
    """The spec names of a random model's tensors, by their values."""
    return {value_of(typed[name]): name for name in typed if name not in typed.spec.tied}


def inputs_of(typed, model, batch):
    """For every weight of a linear map by spec name: what it reads of one batch, [tokens, n + 1], and its axis."""
    names, mask, found = names_by_value(typed), batch.get("attention_mask"), {}

    def reader(name, axis):
        def read(_, arguments):
            (x,) = arguments
            if mask is not None and x.shape[:-1] in (mask.shape, (mask.numel(),)):
                x = x.reshape(*mask.shape, -1)[mask.bool()]  # padding never counts
            found.setdefault(name, ([], axis))[0].append(x.detach().flatten(0, -2))

        return read

    for module in model.modules():
        if isinstance(module, (nn.Linear, Conv1D)) and (name := names.get(value_of(module.weight))) is not None:
            module.register_forward_pre_hook(reader(name, 1 if isinstance(module, nn.Linear) else 0))
    with torch.no_grad():
        model(**{name: cast_floats(value, model.dtype) for name, value in batch.items()})
    return {
        name: (nn.functional.pad(torch.cat(parts), (0, 1), value=1.0), axis) for name, (parts, axis) in found.items()
    }


def read(typed, seed=0):
    """A probe with what data has: of pictures beside text, nothing."""
    config = typed.checkpoint.config
    batch = probe(config, typed.checkpoint.architecture, seed)
    pictures = ("pixel_values", "image_sizes", "image_grid_thw", "cross_attention_states")
    left_out = pictures if config.model_type in READ else ()
    return {name: value for name, value in batch.items() if name not in left_out}


def direct_grams(typed, seed=0):
    """The Grams of a model in float64 on random inputs."""
    model = instantiate(typed.checkpoint, torch.float64)
    found = inputs_of(typed, model, read(typed, seed))
    return {name: InputGram(x.T @ x / len(x), axis) for name, (x, axis) in found.items()}
