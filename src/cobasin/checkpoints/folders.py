"""The folder of a model or an adapter that is named: on this machine, or from the hub."""

from __future__ import annotations

import re
from pathlib import Path

from cobasin.checkpoints.json_files import ADAPTER_FILE
from cobasin.checkpoints.sentence_transformers import module_folders
from cobasin.checkpoints.weight_files import BIN_FILE, INDEX_FILE, SINGLE_FILE
from cobasin.errors import InputError, one_line
from cobasin.paths import check_name, expanded

_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+(@[\w./-]+)?")  # maybe of a branch, a tag or a commit


def find_folder(model: str | Path, what: str = "model") -> Path:
    """The folder of a model or an adapter (``what``) that is named by its path or by a hub id, maybe with a revision.

    Raises:
        InputError: there is none.
    """
    folder = expanded(model, what)
    try:
        here, taken = folder.is_dir(), folder.exists()
    except OSError as error:
        raise InputError(f"{model}: cannot be read: {one_line(error)}") from error
    if here:
        check_name(folder)
        return folder
    if taken:
        raise InputError(f"{model}: is a file; expected the Hugging Face folder that it is in")
    if isinstance(model, str) and _HUB_ID.fullmatch(model):
        return download(model)
    bare = isinstance(model, str) and not {"/", "\\"} & set(model)
    hint = "; a model of the hub has an owner, as in openai-community/gpt2" if bare else ""
    if "+" in str(model):
        hint = "; a base with an adapter, as BASE+ADAPTER, is taken by merges alone"
    raise InputError(f"{model}: no such folder{hint}")


def download(name: str) -> Path:
    """The folder of a model or an adapter from the hub, or from its cache: weights, config, tokenizer; no code.

    Raises InputError where there is none.
    """
    from huggingface_hub import snapshot_download

    hub_id, _, revision = name.partition("@")
    patterns = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]
    # of Mistral: the same weights under other names; of MMS: adapters of more than a thousand languages
    others = ["consolidated*", "adapter.*"]

    def fetched(*more: str) -> Path:
        allowed = [*patterns, *more]
        return Path(
            snapshot_download(hub_id, revision=revision or None, allow_patterns=allowed, ignore_patterns=others)
        )

    try:
        folder = fetched()
        if not any((folder / name).exists() for name in (SINGLE_FILE, INDEX_FILE, ADAPTER_FILE)):
            return fetched("*.bin")  # only now: many repositories hold the same weights in both formats
        bins = [f"{one.name}/{BIN_FILE}" for one in module_folders(folder) if not (one / SINGLE_FILE).exists()]
        return fetched(*bins) if bins else folder
    except Exception as error:  # the hub client, its HTTP client and the file system raise their own kinds
        reason = one_line(error)
        raise InputError(f"{name}: no such folder, and not available from the hub: {reason}") from error
