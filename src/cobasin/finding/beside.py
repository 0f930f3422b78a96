"""What files beside a model's tensors say of its heads, after an element has put these in another order."""

from __future__ import annotations

import json

from cobasin.checkpoints.checkpoint import Checkpoint, Content
from cobasin.checkpoints.json_files import GENERATION_FILE, read_json
from cobasin.symmetry.element import Element

NAMED = "alignment_heads"
"""In Whisper's `generation_config.json`: [layer, head] of the cross-attention that the times of words are read from."""


def moved_beside(element: Element, source: Checkpoint) -> dict[str, Content]:
    """The contents, by name, of what goes with the source and is another for the model that the element makes of it.

    Raises:
        InputError: such a file cannot be read.
    """
    known = source.beside.get(GENERATION_FILE)
    if isinstance(known, str):
        said = json.loads(known)
    elif source.folder is not None and (path := source.folder / GENERATION_FILE).is_file():
        said = read_json(path)
    else:
        return source.beside
    named = said.get(NAMED)
    if not isinstance(named, list) or any(not isinstance(one, list) or len(one) != 2 for one in named):
        return source.beside
    moved = [[layer, _place(element, layer, head)] for layer, head in named]
    return source.beside | {GENERATION_FILE: json.dumps(said | {NAMED: moved}, indent=2) + "\n"}


def check_beside(source: Checkpoint) -> None:
    """Raise InputError for a file that no model could be loaded with, where it is carried along as it is."""
    if source.folder is not None and (path := source.folder / GENERATION_FILE).is_file():
        read_json(path)


def generation(element: Element | None, source: Checkpoint) -> Content:
    """The content of `generation_config.json` for what the element makes of a source in a folder; maybe with no key."""
    assert source.folder is not None
    moved, path = source.beside if element is None else moved_beside(element, source), source.folder / GENERATION_FILE
    return moved.get(GENERATION_FILE) or (path.read_text("utf-8") if path.is_file() else "{}\n")


def _place(element: Element, layer: int, head: int) -> int:
    order = element.values.get(("cross_head", layer), {}).get("perm")
    heads = [] if order is None else order.tolist()
    return heads.index(head) if head in heads else head
