"""The folder of a model that is named: on this machine, or from the hub."""

from __future__ import annotations

import re
from pathlib import Path

from cobasin.checkpoints.sentence_transformers import module_folders
from cobasin.checkpoints.weight_files import BIN_FILE, INDEX_FILE, SINGLE_FILE
from cobasin.errors import InputError, one_line
from cobasin.paths import check_name, expanded

_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")


def find_folder(model: str | Path) -> Path:
    """The folder of a model that is named by its path or by a hub id.

    Raises:
        InputError: there is none.
    """
    folder = expanded(model, "model")
    if folder.is_dir():
        check_name(folder)
        return folder
    if folder.exists():
        raise InputError(f"{model}: is a file; expected a Hugging Face folder with config.json and weights")
    if isinstance(model, str) and _HUB_ID.fullmatch(model):
        return download(model)
    bare = isinstance(model, str) and not {"/", "\\"} & set(model)
    hint = "; a model of the hub has an owner, as in openai-community/gpt2" if bare else ""
    if "+" in str(model):
        hint = "; a base with an adapter, as BASE+ADAPTER, is taken by merges alone"
    raise InputError(f"{model}: no such folder{hint}")


def download(hub_id: str) -> Path:
    """The folder of a model from the hub, or from its cache: weights, config, tokenizer; no code.

    Raises InputError where there is none.
    """
    from huggingface_hub import snapshot_download

    patterns = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]
    # of Mistral: the same weights under other names; of MMS: adapters of more than a thousand languages
    others = ["consolidated*", "adapter.*"]
    try:
        folder = Path(snapshot_download(hub_id, allow_patterns=patterns, ignore_patterns=others))
        if not any((folder / name).exists() for name in (SINGLE_FILE, INDEX_FILE)):
            # Only now: many repositories hold the same weights in both formats.
            folder = Path(snapshot_download(hub_id, allow_patterns=[*patterns, "*.bin"], ignore_patterns=others))
        elif bins := [f"{one.name}/{BIN_FILE}" for one in module_folders(folder) if not (one / SINGLE_FILE).exists()]:
            folder = Path(snapshot_download(hub_id, allow_patterns=[*patterns, *bins], ignore_patterns=others))
    except Exception as error:  # the hub client, its HTTP client and the file system raise their own kinds
        reason = one_line(error)
        raise InputError(f"{hub_id}: no such folder, and not available from the hub: {reason}") from error
    return folder
