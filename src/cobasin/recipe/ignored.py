"""Keys of published recipes that do nothing here: of mergekit's command line, and names of what is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

IGNORED = {
    "name": "what a recipe makes is called by --out",
    "trust_remote_code": "no code in a model's folder is run",
    "allow_crimes": "models are fused where they have the same layers and sizes, and only there",
}


def without_ignored(content: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A recipe without them, and a note on each that it has."""
    notes = [f"{key} has no effect: {why}" for key, why in IGNORED.items() if key in content]
    return {key: value for key, value in content.items() if key not in IGNORED}, notes
