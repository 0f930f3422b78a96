"""The config of a model with other layers than it had, each of which stays what it was."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Module, ModuleList

from cobasin.checkpoints.running import model_class, quiet
from cobasin.errors import InputError, one_line

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# Config keys that list layers of one kind.
_PLACES = ("mlp_only_layers", "moe_layers", "full_attn_idxs", "cross_attention_layers", "attn_layer_indices")
# The config key that says whose keys and values every layer reads: its own, as no other is declared.
_SOURCES = "kv_source_layers"
# What the config keys are called that list what every layer has.
_OF_EACH = r"layer|types|^moe_|^num_"
# Config keys that say how many layers of one kind come first, where no list says of which kind each is.
_FIRST = ("first_k_dense_replace", "num_dense_layers")
_KINDS = "mlp_layer_types"
# What follows from the depth, and is read by classes for backbones only.
_OF_BACKBONES = ("stage_names", "out_features", "out_indices")
# Config keys by which a layer's place decides of which kind it is.
_BY_PLACE = r".*(_period|_interval|_step|_offset|_pattern|_every_n_layers|_start_index|_end_index|_layer_idx)"
# Attributes of modules that say in which place they are; those that only training reads, or that are of all layers, or
# that say whether layers behind may read the same keys (none that does is stacked).
_PLACE = r"(.*[._])?(idx|index|id|number) is"
_NOT_OF_KIND = r"_.*|.*drop.*|training|gradient_checkpointing|.*_layers|store_full_length_kv"


def with_layers(config: PreTrainedConfig, layers: Sequence[int]) -> PreTrainedConfig:
    """A config with these of its layers, in this order, as it is read back from a file.

    Raises:
        InputError: for layers that share what another one computes; where no key of the config can say of which kind
            every layer is.
    """
    content = config.to_dict()
    if content.get("num_kv_shared_layers") or "shared" in (content.get("indexer_types") or ()):
        key = "num_kv_shared_layers" if content.get("num_kv_shared_layers") else "indexer_types"
        raise InputError(f"{key}: some layers take from the layers before them what they do not compute themselves")
    if content.get("num_mem_blocks"):
        raise InputError("num_mem_blocks: some layers share a block, which the file has in the first of them")
    depth = config.num_hidden_layers
    for key, value in config.to_dict().items():
        if key in _OF_BACKBONES:
            del content[key]
        elif key in _PLACES and value is not None:
            content[key] = [i for i, layer in enumerate(layers) if layer in value]
        elif key == _SOURCES and value is not None:
            content[key] = [*range(len(layers))]
        elif key in _FIRST and value is not None:
            content[key] = _first([layer < value for layer in layers], key, _KINDS in content)
        elif isinstance(value, (list, tuple)) and len(value) >= depth and re.search(_OF_EACH, key):
            content[key] = [value[layer] for layer in layers]
    if own := content.get("per_layer_config"):
        said = {int(layer): settings for layer, settings in own.items()}
        content["per_layer_config"] = {i: said[layer] for i, layer in enumerate(layers) if layer in said}
    if "attention_types" in content:  # of GPT-Neo, which makes the list of them
        content["attention_types"] = [[[kind], 1] for kind in content["attention_layers"]]
    content[config.attribute_map.get("num_hidden_layers", "num_hidden_layers")] = len(layers)
    try:
        with quiet():
            return type(config).from_dict(content)
    except Exception as error:  # each config class validates in its own way
        raise InputError(f"transformers refuses the config of {len(layers)} layers: {one_line(error)}") from error


def _first(kinds: Sequence[bool], key: str, listed: bool) -> int:
    """How many layers of a kind come first."""
    count = next((i for i, kind in enumerate(kinds) if not kind), len(kinds))
    if any(kinds[count:]) and not listed:
        raise InputError(f"{key}: a dense layer would come after one with experts, which the config cannot say")
    return count


def check_kinds(
    before: PreTrainedConfig, after: PreTrainedConfig, architecture: str, layers: Sequence[int], stack: str
) -> None:
    """Check that Transformers builds every layer as the one it was.

    Args:
        before, after: see `with_layers`.
        architecture: the class.
        layers: which layer every one was.
        stack: what the class calls the list of its layers, mostly; like ``h``.

    Raises:
        InputError: for a layer that would be another one in its place, with the keys that may say so.
    """
    cls = model_class(architecture)
    try:
        with quiet(), torch.device("meta"):
            models = [cls(one) for one in (before, after)]
    except Exception as error:  # each class builds in its own way
        raise InputError(f"they cannot be built by transformers: {one_line(error)}") from error
    given, made = (
        _lists(model, length) for model, length in zip(models, (before.num_hidden_layers, len(layers)), strict=True)
    )
    common = [path for path in given if path in made]
    for path in [path for path in common if path.rpartition(".")[2] == stack] or common:
        for i, layer in enumerate(layers):
            if (what := _difference(_built(given[path][layer]), _built(made[path][i]), (layer, i))) is not None:
                raise InputError(f"layer {layer} would be another one as layer {i}: its {what}{by_place(after)}")


def by_place(config: PreTrainedConfig) -> str:
    """For a message: the keys of a config by which the place of a layer decides of which kind it is."""
    keys = [key for key, value in config.to_dict().items() if re.fullmatch(_BY_PLACE, key) and value]
    return f"; its config tells kinds of layers by their places ({', '.join(keys)})" if keys else ""


def _lists(model: Module, length: int) -> dict[str, ModuleList]:
    """The lists of so many modules, by path."""
    return {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, ModuleList) and len(module) == length
    }


def _built(layer: Module) -> dict[str, Any]:
    """What a layer is made of: classes and settings of its modules, and shapes of its tensors."""
    found: dict[str, Any] = {}
    for path, module in layer.named_modules():
        if "drop" in path.rpartition(".")[2]:  # of the first layer of a BEiT nothing is dropped, by another module
            continue
        found[f"{path} is".strip()] = type(module).__name__
        for name, value in vars(module).items():
            if isinstance(value, (int, float, str, list, tuple)) and not re.fullmatch(_NOT_OF_KIND, name):
                found[f"{path}.{name} is".strip(".")] = list(value) if isinstance(value, tuple) else value
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            found[f"{path}.{name} has shape".strip(".")] = tuple(tensor.shape)
    return found


def _difference(was: dict[str, Any], becomes: dict[str, Any], places: tuple[int, int]) -> str | None:
    """The first thing in which two layers differ, but for their ``places``."""
    for what in dict.fromkeys([*was, *becomes]):
        there, here = was.get(what), becomes.get(what)
        if there != here and not ((there, here) == places and re.fullmatch(_PLACE, what)):
            return f"{what} {there} there, {here} here"
    return None
