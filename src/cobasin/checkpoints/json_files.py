"""The JSON files of a model's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cobasin.errors import InputError, one_line

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
ADAPTER_FILE = "adapter_config.json"


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; raises InputError if it is missing, unreadable or something else."""
    if not path.exists():
        wanted, other, its = "a Hugging Face model", "an adapter", ADAPTER_FILE
        if path.name == ADAPTER_FILE:
            wanted, other, its = "an adapter", "a model", CONFIG_FILE
        hint = f", this is that of {other}" if (path.parent / its).exists() else ""
        below = sorted(one.parent.name for one in path.parent.glob(f"*/{path.name}"))  # checkpoints of a training run
        hint += f"; there is one in {', '.join(below[:9])}" if below else ""
        raise InputError(f"{path.parent}: has no {path.name}; expected the folder of {wanted}{hint}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {one_line(error)}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not valid JSON: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a {type(content).__name__}; expected a JSON object")
    return content


def json_in(path: Path) -> Any:
    """What a file holds that need not be there, nor be of this tool's; None where it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object as Transformers and PEFT write theirs."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
