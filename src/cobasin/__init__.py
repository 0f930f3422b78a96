"""cobasin: bring trained transformers into one basin, prove that their function did not change, merge them."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cobasin.api import Merge, match, merge, transform
    from cobasin.checkpoint import Checkpoint, load
    from cobasin.errors import InputError
    from cobasin.symmetry.element import Element
    from cobasin.verification import Verdict, verify
    from cobasin.writer import save

__version__ = "0.1.0"

_HOME = {
    "Checkpoint": "checkpoint",
    "Element": "symmetry.element",
    "InputError": "errors",
    "Merge": "api",
    "Verdict": "verification",
    "load": "checkpoint",
    "match": "api",
    "merge": "api",
    "save": "writer",
    "transform": "api",
    "verify": "verification",
}

__all__ = [
    "Checkpoint",
    "Element",
    "InputError",
    "Merge",
    "Verdict",
    "load",
    "match",
    "merge",
    "save",
    "transform",
    "verify",
]


def __getattr__(name: str) -> object:
    # torch takes seconds to import: only who uses a name pays for it
    if name not in _HOME:
        raise AttributeError(f"module 'cobasin' has no attribute {name!r}")
    return getattr(import_module(f"cobasin.{_HOME[name]}"), name)
