"""Models in folders of Sentence Transformers, which takes their states for embeddings, or runs their heads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from cobasin.checkpoints.json_files import json_in
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
