"""Keys of published recipes that do nothing here: of mergekit's command line, and names of what is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

IGNORED = {
    "name": "what a recipe makes is called by --out",
    "trust_remote_code": "no code in a model's folder is run",
    "allow_crimes": "models are fused where they have the same layers and sizes, and only there",
}


def apart(content: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A recipe without the ignored keys, and those of them that it has."""
    ignored = {key: content[key] for key in IGNORED if key in content}
    return {key: value for key, value in content.items() if key not in ignored}, ignored


def noted(ignored: Iterable[str]) -> list[str]:
    """A note on each of these keys: that it has no effect, and why."""
    return [f"{key} has no effect: {IGNORED[key]}" for key in ignored]
