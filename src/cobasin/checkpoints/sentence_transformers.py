"""Models in folders of Sentence Transformers, which takes their states for embeddings, or runs their heads."""

from __future__ import annotations

import filecmp
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cobasin.checkpoints.json_files import CONFIG_FILE, json_in
from cobasin.checkpoints.weight_files import BIN_FILE, SINGLE_FILE

if TYPE_CHECKING:
    from cobasin.checkpoints.checkpoint import Checkpoint

_MODULES_FILE = "modules.json"


def takes_states(folder: Path) -> bool:
    """Whether Sentence Transformers runs the model in a folder without its head.

    Rerankers and sparse encoders have a ``modules.json``, too, and run the head.
    """
    if not (folder / _MODULES_FILE).is_file():
        return False
    match json_in(folder / _MODULES_FILE):
        case [{"type": str(kind)}, *_] if kind.endswith("MLMTransformer"):
            return False
    match json_in(folder / "sentence_bert_config.json"):
        case {"transformer_task": str(task)}:
            return task == "feature-extraction"
    return True


def embeds(checkpoint: Checkpoint) -> bool:
    """Whether Sentence Transformers takes the states of this model for embeddings, though its file has a head."""
    folder = checkpoint.folder
    headed = "For" in checkpoint.architecture or checkpoint.architecture.endswith("LMHeadModel")
    return folder is not None and headed and takes_states(folder)


def module_folders(folder: Path) -> list[Path]:
    """The folders of what follows the model, such as dense layers behind it."""
    try:
        paths = [one["path"] for one in json_in(folder / _MODULES_FILE)]
    except (KeyError, TypeError):  # another tool's file, or none
        return []
    return [folder / path for path in paths if isinstance(path, str) and re.fullmatch(r"[\w-][\w.-]*", path)]


def module_weights(folder: Path) -> list[Path]:
    """The weights in `module_folders`."""
    files = (one / name for one in module_folders(folder) for name in (SINGLE_FILE, BIN_FILE))
    return [file for file in files if file.is_file()]


def differing_modules(a: Path, b: Path) -> list[str]:
    """The names of what follows the model that is not the same in two folders, by kind, settings or weights."""
    found = set[str]()
    for one, other in ((a, b), (b, a)):
        for file in module_weights(one):
            name = file.relative_to(one)
            if not (other / name).is_file() or not filecmp.cmp(file, other / name, shallow=False):
                found.add(name.parent.name)
    kinds = [_kinds(one) for one in (a, b)]
    if all(kinds):  # a folder of another kind says nothing of them
        found.update(path for path, _ in kinds[0] ^ kinds[1] if path)
        found.update(one.name for one in module_folders(a) if _set_otherwise(one, b / one.name))
    return sorted(found)


def _kinds(folder: Path) -> set[tuple[str, str]]:
    """Where a model's modules are and what they are, without the packages, which versions name differently."""
    modules = json_in(folder / _MODULES_FILE)
    found = set[tuple[str, str]]()
    for module in modules if isinstance(modules, list) else []:
        match module:
            case {"path": str(path), "type": str(kind)}:
                found.add((path, kind.rsplit(".", 1)[-1]))
    return found


def _set_otherwise(a: Path, b: Path) -> bool:
    """Whether two modules contradict each other; a key that only one version of the library writes does not."""
    one, other = (json_in(folder / CONFIG_FILE) for folder in (a, b))
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return False
    shared = [key for key in one.keys() & other.keys() if not key.startswith("pooling_mode")]
    return _pooling(one) != _pooling(other) or any(one[key] != other[key] for key in shared)


def _pooling(settings: dict[str, Any]) -> set[str]:
    """The modes of a pooling: of old files keys such as ``pooling_mode_mean_tokens``, of new ones a value."""
    modes = settings.get("pooling_mode", [])
    named = [modes] if isinstance(modes, str) else modes if isinstance(modes, list) else []
    found = named or [
        key.removeprefix("pooling_mode_")
        for key in settings
        if key.startswith("pooling_mode_") and settings[key] is True
    ]
    return {re.sub("_tokens?$", "", str(mode)) for mode in found}
