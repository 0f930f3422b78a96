"""cobasin: bring trained transformers into one basin, prove that their function did not change, merge them."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cobasin.adapters.folder import Adapter, load_adapter, save_adapter
    from cobasin.adapters.match import match_adapters
    from cobasin.architectures import declares
    from cobasin.checkpoints.checkpoint import Checkpoint, load
    from cobasin.checkpoints.fingerprint import fingerprint
    from cobasin.checkpoints.writer import save
    from cobasin.comparing.compare import Comparison, compare
    from cobasin.comparing.distance import Distance, distance
    from cobasin.errors import InputError
    from cobasin.evaluation.path import LossPath, loss_path
    from cobasin.evaluation.plane import LossPlane, loss_plane
    from cobasin.evaluation.tasks import Score, evaluate
    from cobasin.finding.applying import transform, transform_adapter
    from cobasin.finding.match import Matched, match, match_all
    from cobasin.finding.transport import Transported, TransportedAdapter, transport, transport_adapter
    from cobasin.merging.merge import Merge, merge, merge_recipe
    from cobasin.proposal import propose
    from cobasin.proposal.checking import check_declaration
    from cobasin.recipe import Recipe
    from cobasin.symmetry.element import Element
    from cobasin.verification import Verdict, verify
    from cobasin.workflows.inspection import inspect

__version__ = "0.1.0"

_HOME = {
    "Adapter": "adapters.folder",
    "Checkpoint": "checkpoints.checkpoint",
    "Comparison": "comparing.compare",
    "Distance": "comparing.distance",
    "Element": "symmetry.element",
    "InputError": "errors",
    "LossPath": "evaluation.path",
    "LossPlane": "evaluation.plane",
    "Matched": "finding.match",
    "Merge": "merging.merge",
    "Recipe": "recipe",
    "Score": "evaluation.tasks",
    "Transported": "finding.transport",
    "TransportedAdapter": "finding.transport",
    "Verdict": "verification",
    "check_declaration": "proposal.checking",
    "compare": "comparing.compare",
    "declares": "architectures",
    "distance": "comparing.distance",
    "evaluate": "evaluation.tasks",
    "fingerprint": "checkpoints.fingerprint",
    "inspect": "workflows.inspection",
    "load": "checkpoints.checkpoint",
    "load_adapter": "adapters.folder",
    "loss_path": "evaluation.path",
    "loss_plane": "evaluation.plane",
    "match": "finding.match",
    "match_adapters": "adapters.match",
    "match_all": "finding.match",
    "merge": "merging.merge",
    "merge_recipe": "merging.merge",
    "propose": "proposal",
    "save": "checkpoints.writer",
    "save_adapter": "adapters.folder",
    "transform": "finding.applying",
    "transform_adapter": "finding.applying",
    "transport": "finding.transport",
    "transport_adapter": "finding.transport",
    "verify": "verification",
}

__all__ = [
    "Adapter",
    "Checkpoint",
    "Comparison",
    "Distance",
    "Element",
    "InputError",
    "LossPath",
    "LossPlane",
    "Matched",
    "Merge",
    "Recipe",
    "Score",
    "Transported",
    "TransportedAdapter",
    "Verdict",
    "check_declaration",
    "compare",
    "declares",
    "distance",
    "evaluate",
    "fingerprint",
    "inspect",
    "load",
    "load_adapter",
    "loss_path",
    "loss_plane",
    "match",
    "match_adapters",
    "match_all",
    "merge",
    "merge_recipe",
    "propose",
    "save",
    "save_adapter",
    "transform",
    "transform_adapter",
    "transport",
    "transport_adapter",
    "verify",
]


def __getattr__(name: str) -> object:
    # torch takes seconds to import: only who uses a name pays for it
    if name not in _HOME:
        raise AttributeError(f"module 'cobasin' has no attribute {name!r}")
    from inspect import isfunction

    from cobasin.modes import usual_modes

    found = getattr(import_module(f"cobasin.{_HOME[name]}"), name)
    if isfunction(found):
        found = usual_modes()(found)
        found.__module__ = __name__  # where pickle looks for it
    return globals().setdefault(name, found)  # one object, whichever thread asks first
