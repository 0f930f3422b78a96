"""What end models start from, made where it is missing: models that are there, of a family, or not trained at all."""

from __future__ import annotations

import hashlib
import json
import sys
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

from cobasin.checkpoints.checkpoint import Checkpoint, read_config
from cobasin.checkpoints.fingerprint import fingerprint
from cobasin.checkpoints.folders import download
from cobasin.checkpoints.output import publishing
from cobasin.checkpoints.preprocessors import PREPROCESSOR
from cobasin.checkpoints.weight_files import open_weights
from cobasin.data.tokens import tokenizer_files, tokenizer_of
from cobasin.errors import InputError
from cobasin.paths import expanded
from experiment import Start
from train import RECORD, Family, check_trained, train
from world import World


def place_of(start: Start, world: World) -> Path:
    """The folder of a start, also where it is still to be made."""
    models = world.out / "models"
    if start.path is not None:
        folder = expanded(world.fill(start.path))
        return folder if folder.is_dir() else download(start.path)
    if start.family is not None:
        name = f"{_family(start).folder}{start.seed}"
        beside = world.shared / "models" / name
        return beside if (beside / "config.json").exists() else models / name
    assert start.config is not None
    of = {"config": start.config, "seed": start.seed, "tokenizer": start.tokenizer}
    return models / f"{start.config.get('model_type')}-untrained-{short_digest(of)}"


def folder_of(start: Start, world: World) -> Path:
    """The model that an end model starts from, made where it has to be."""
    folder = place_of(start, world)
    if start.family is not None and folder.parent != world.shared / "models":
        if (folder / RECORD).exists():
            check_trained(_family(start), start.seed, folder)
        else:
            with redirect_stdout(sys.stderr):  # what a training says is no table
                train(_family(start), start.seed, world.shared, folder)
    if start.config is not None and not folder.exists():
        _make_random(start, folder, world)
    return folder


def _family(start: Start) -> Family:
    assert start.family is not None
    family = Family.read(start.family)
    if start.max_steps is None:
        return family
    training = {**family.training, "max_steps": start.max_steps, "warmup_steps": start.max_steps // 10}
    return family.model_copy(update={"training": training, "folder": f"{family.folder}{start.max_steps}-steps-"})


def _make_random(start: Start, folder: Path, world: World) -> None:
    """A model as it is before any training, with a tokenizer."""
    import transformers

    config = config_of(start, world)
    transformers.set_seed(start.seed)
    try:
        model = transformers.AutoModel.from_config(config)
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"config: {' '.join(str(error).split())}") from None
    with publishing(folder, False, None) as partial:
        model.save_pretrained(partial)
        if start.tokenizer:
            transformers.AutoTokenizer.from_pretrained(world.fill(start.tokenizer)).save_pretrained(partial)


def config_of(start: Start, world: World) -> Any:
    """The config of a start, also where it is still to be made."""
    from transformers import AutoConfig

    if start.family is not None:
        return _family(start).made_config()
    if start.config is None:
        return read_config(place_of(start, world))
    try:
        return AutoConfig.for_model(**start.config)
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"config: {' '.join(str(error).split())}") from None


def padding_tokenizer(start: Path) -> Any:
    """The tokenizer of a start; one that does not pad does so with the config's token, or the one that ends a text.

    Raises:
        InputError: there is none, or it cannot be read, or has no such token.
    """
    checkpoint = opened(start)
    tokenizer = tokenizer_of(checkpoint)
    if tokenizer.pad_token is None:
        known = checkpoint.config.pad_token_id
        token = tokenizer.eos_token if known is None else tokenizer.convert_ids_to_tokens(known)
        if token is None:
            raise InputError(f"{start}: the tokenizer has no pad_token, and no eos_token to pad with; add one of them")
        tokenizer.pad_token = token
    return tokenizer


@cache
def content(folder: Path) -> str:
    """What a model is: its fingerprint, and a digest of the files by which it reads text or pictures, if any."""
    model = fingerprint(opened(folder))[:16]
    readers = [file for file in (*tokenizer_files(folder), folder / PREPROCESSOR) if file.is_file()]
    if not readers:
        return model
    return f"{model}-{short_digest({file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in readers})}"


def opened(folder: Path) -> Checkpoint:
    """A model, also one of the hub whose config does not name its class."""
    config = read_config(folder)
    headers, read = open_weights(folder)
    return Checkpoint(str(folder), config, (config.architectures or [""])[0], headers, read, folder)


def short_digest(of: Any) -> str:
    """For a name: it tells what something was made of."""
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:10]
