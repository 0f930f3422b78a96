"""cobasin: bring trained transformers into one basin, prove that their function did not change, merge them."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cobasin.adapters.folder import Adapter, load_adapter, save_adapter
    from cobasin.adapters.match import match_adapters
    from cobasin.api import Merge, match, merge
    from cobasin.applying import transform, transform_adapter
    from cobasin.architectures import declares
    from cobasin.checking import check_declaration
    from cobasin.checkpoint import Checkpoint, load
    from cobasin.errors import InputError
    from cobasin.proposal import propose
    from cobasin.symmetry.element import Element
    from cobasin.verification import Verdict, verify
    from cobasin.writer import save

__version__ = "0.1.0"

_HOME = {
    "Adapter": "adapters.folder",
    "Checkpoint": "checkpoint",
    "Element": "symmetry.element",
    "InputError": "errors",
    "Merge": "api",
    "Verdict": "verification",
    "check_declaration": "checking",
    "declares": "architectures",
    "load": "checkpoint",
    "load_adapter": "adapters.folder",
    "match": "api",
    "match_adapters": "adapters.match",
    "merge": "api",
    "propose": "proposal",
    "save": "writer",
    "save_adapter": "adapters.folder",
    "transform": "applying",
    "transform_adapter": "applying",
    "verify": "verification",
}

__all__ = [
    "Adapter",
    "Checkpoint",
    "Element",
    "InputError",
    "Merge",
    "Verdict",
    "check_declaration",
    "declares",
    "load",
    "load_adapter",
    "match",
    "match_adapters",
    "merge",
    "propose",
    "save",
    "save_adapter",
    "transform",
    "transform_adapter",
    "verify",
]


def __getattr__(name: str) -> object:
    # torch takes seconds to import: only who uses a name pays for it
    if name not in _HOME:
        raise AttributeError(f"module 'cobasin' has no attribute {name!r}")
    return getattr(import_module(f"cobasin.{_HOME[name]}"), name)
