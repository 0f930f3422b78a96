"""Models in folders of Sentence Transformers, which takes their states for embeddings, or runs their heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def takes_states(folder: Path) -> bool:
    """Whether Sentence Transformers runs the model in a folder without its head.

    Rerankers and sparse encoders have a ``modules.json``, too, and run the head.
    """
    if not (folder / "modules.json").is_file():
        return False
    match _content(folder / "modules.json"):
        case [{"type": str(kind)}, *_] if kind.endswith("MLMTransformer"):
            return False
    match _content(folder / "sentence_bert_config.json"):
        case {"transformer_task": str(task)}:
            return task == "feature-extraction"
    return True


def _content(path: Path) -> Any:
    """What a JSON file holds; None where it cannot be read."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
