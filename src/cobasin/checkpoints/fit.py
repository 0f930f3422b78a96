"""Whether a config can be that of a model that is declared, and whether the tensors of a checkpoint are its."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from cobasin.architectures import registered
from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.weight_files import WEIGHT_DTYPES, Header, of_weights
from cobasin.errors import InputError
from cobasin.symmetry.spec import Spec
from cobasin.symmetry.types import unparse

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# Of these no model has one below one.
SIZES = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "qk_rope_head_dim", "vocab_size")
DEPTHS = (
    *("num_hidden_layers", "encoder_num_hidden_layers", "encoder_layers"),
    *("decoder_layers", "num_decoder_layers", "num_adapter_layers", "depths"),
)
MOST_LAYERS = 10_000  # far more than any model has; the types of very many would fill the memory


def check_config(checkpoint: Checkpoint) -> None:
    """Check what the config alone tells: its model type, sizes and depths, of whatever tower; what is quantized.

    Raises:
        InputError: no declaration covers it, or no model can be so.
    """
    config, architecture, label = checkpoint.config, checkpoint.architecture, checkpoint.label
    declared = registered().get(architecture)
    if declared is not None and config.model_type != declared.model_type:
        raise InputError(
            f"{label}: the config is of model_type {config.model_type!r}, but {architecture} is of "
            f"{declared.model_type!r}"
        )
    if declared is not None:
        check_unpacked(checkpoint)
    if others := _of_layers(config) - {*(declared.per_layer if declared else ())}:
        what = f"layers with settings of their own ({', '.join(sorted(others))})"
        raise InputError(f"{label}: per_layer_config: no declaration has {what}")
    if small := [f"{key} {size}" for key, size in sizes_said(config, SIZES) if size < 1]:
        raise InputError(f"{label}: the config has {', '.join(small)}; expected 1 or more")
    if deep := [f"{key} {count}" for key, count in sizes_said(config, DEPTHS) if count > MOST_LAYERS]:
        raise InputError(f"{label}: the config has {', '.join(deep)}; expected up to {MOST_LAYERS}")


def sizes_said(config: PreTrainedConfig, keys: Sequence[str], within: str = "") -> Iterator[tuple[str, int]]:
    """What a config says of these keys, and those within it, where that is a whole number, or a list of them."""
    said = vars(config)  # layers may have sizes of their own, which no attribute tells
    for key in (config.attribute_map.get(key, key) for key in keys):
        sizes = said.get(key)
        for size in sizes if isinstance(sizes, (list, tuple)) else (sizes,):
            if isinstance(size, int):
                yield f"{within}{key}", size
    for key in config.sub_configs:
        if (tower := said.get(key)) is not None:
            yield from sizes_said(tower, keys, f"{within}{key}.")


def _of_layers(config: PreTrainedConfig) -> set[str]:
    """The config keys that layers have of their own, in whatever tower."""
    content = config.to_dict()
    parts = [content, *(part for part in content.values() if isinstance(part, dict))]
    return {key for part in parts for own in (part.get("per_layer_config") or {}).values() for key in own}


def check_unpacked(checkpoint: Checkpoint) -> None:
    """Refuse quantized weights by what they are, not by dozens of misfits; and those that the config alone calls so."""
    settings = getattr(checkpoint.config, "quantization_config", None)
    settings = getattr(settings, "to_dict", lambda: settings)()  # of a model in memory an object
    if not isinstance(settings, Mapping):
        return
    method = settings.get("quant_method", "the quantization_config in config.json")
    method = getattr(method, "value", method)
    for name, header in checkpoint.headers.items():
        dtype = header.dtype
        if dtype.itemsize < 8 and not of_weights(dtype):
            raise InputError(
                f"{checkpoint.label}: is quantized ({method}): {name} has dtype {dtype}, expected {WEIGHT_DTYPES}; "
                "save it dequantized, which Transformers can for most methods (dequantize=True in "
                "the quantization config that from_pretrained takes, or model.dequantize())"
            )
    raise InputError(
        f"{checkpoint.label}: its config says that it is quantized ({method}), its tensors are not; delete "
        "quantization_config from config.json, as Transformers would not load them as they are"
    )


def problems(spec: Spec, headers: Mapping[str, Header]) -> list[str]:
    """All that is wrong with a checkpoint's headers (by on-disk names), one line each."""
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
        shape, dtype = headers[disk].shape, headers[disk].dtype
        if name not in spec.file_entries:
            found.append(f"unexpected tensor {disk} {shape}, not part of {spec.architecture}")
            continue
        text, wanted = _file_layout(spec, name)
        if shape != wanted:
            found.append(f"{disk} has shape {shape}, its type {text!r} needs {wanted}")
        elif not of_weights(dtype):
            found.append(f"{disk} has dtype {dtype}, expected {WEIGHT_DTYPES}")
    empty = {key[0] for key in spec.sites if not spec.sizes[key[0]]}
    return found + [f"space {name} has size 0 by the config, expected at least 1" for name in sorted(empty)]


def _file_layout(spec: Spec, name: str) -> tuple[str, tuple[int, ...]]:
    """Type and shape of a tensor of the file."""
    entry, place = spec.file_entries[name]
    layout = spec.entries[entry].layout
    if place is None:
        return layout.text, layout.shape
    return unparse(layout.nodes[1:]), layout.shape[1:]
