"""The config.json of a model that is written, and how it generates; as this Transformers and earlier ones read them."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.json_files import CONFIG_FILE, GENERATION_FILE, read_json, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_TEXT = "text_config"


def write_config(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the config.json of a checkpoint."""
    config = copy.deepcopy(checkpoint.config)
    config.architectures = [checkpoint.architecture]
    dtypes = {header.dtype for header in checkpoint.headers.values() if header.dtype.is_floating_point}
    if len(dtypes) == 1:
        # from_pretrained casts to the config's dtype, which may be that of another checkpoint.
        config.dtype = dtypes.pop()
    config.save_pretrained(folder)
    if checkpoint.folder is not None:
        written, said = (read_json(one / CONFIG_FILE) for one in (folder, checkpoint.folder))
        if (told := _as_said(config, written, said)) != written:
            write_json(folder / CONFIG_FILE, told)


def _as_said(config: PreTrainedConfig, written: dict[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """A written config with what earlier versions of Transformers, and other tools, read in that of the source.

    They would take their defaults otherwise. Nothing is added that would have this version read another config.
    """

    def same(content: dict[str, Any]) -> bool:
        return _read(config, content) == _read(config, written)

    told = written
    if (rotary := _with_rotary(written, said)) != written and same(_earlier(rotary)):
        told = rotary
    # of T5 Transformers 5 writes that its head is tied, and reads one of its own all the same; earlier ones do not
    own = {"tie_word_embeddings": False} if said.get("tie_word_embeddings") is False else {}
    for more in (_with_names(config, told, said), own):
        if told | more != told and same(told | more):
            told = told | more
    return told


def _with_rotary(written: dict[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """A config with what the source's says of rotary embeddings under other keys, such as ``rope_theta``.

    Transformers 5 writes ``rope_parameters`` alone.
    """
    if isinstance(written.get(_TEXT), dict) and _TEXT not in said:  # older files of Qwen2-VL have one config for all
        return written | {_TEXT: _with_rotary(written[_TEXT], said)}
    kept = {key: value for key, value in said.items() if key not in written and re.search("rope|rotary", key)}
    within = {key: value for key, value in written.items() if isinstance(value, dict)}
    parts = {key: _with_rotary(part, said[key]) for key, part in within.items() if isinstance(said.get(key), dict)}
    return written | kept | parts


def _with_names(config: PreTrainedConfig, written: dict[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """A config with the source's keys that are second names of others now, such as Qwen3-MoE's ``num_experts``."""
    named = {key: said[key] for key in config.attribute_map if key in said and said[key] == getattr(config, key)}
    parts = {
        key: _with_names(getattr(config, key), written[key], said[key])
        for key in config.sub_configs
        if isinstance(written.get(key), dict) and isinstance(said.get(key), dict)
    }
    return named | written | parts


def _earlier(content: Mapping[str, Any]) -> dict[str, Any]:
    """A config as an earlier version reads it."""
    rest = {key: value for key, value in content.items() if key != "rope_parameters"}
    return {key: _earlier(value) if isinstance(value, dict) else value for key, value in rest.items()}


def _read(config: PreTrainedConfig, content: dict[str, Any]) -> dict[str, Any]:
    """What Transformers makes of a config like this one."""

    def decoded(value: dict[str, Any]) -> Any:
        return float(value["__float__"]) if value.keys() == {"__float__"} else value  # infinity, which JSON lacks

    return type(config).from_dict(json.loads(json.dumps(content), object_hook=decoded)).to_dict()


def keep_generation(checkpoint: Checkpoint, source: Path, folder: Path) -> None:
    """Write how the model generates where only its config.json says so, as older ones do.

    Transformers takes that out of a config as it reads it, so the new config.json does not have it.
    """
    from transformers import GenerationConfig

    said, kept = read_json(source / CONFIG_FILE), checkpoint.config.to_dict()
    settings = {key: said[key] for key in vars(GenerationConfig()) if said.get(key) is not None}
    if settings.keys() - kept.keys():
        write_json(folder / GENERATION_FILE, settings)
