"""What `cobasin apply` does: move a model, or an adapter with its base, by an element that was found."""

from __future__ import annotations

from pathlib import Path

from cobasin import __version__
from cobasin.adapters.folder import Adapter, is_adapter, load_adapter, save_adapter
from cobasin.adapters.headed import headed
from cobasin.adapters.layers import type_adapter
from cobasin.adapters.match import LORA, apply_to_adapter
from cobasin.adapters.move import move_adapter
from cobasin.checkpoints import card
from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.refusals import check_output, check_read
from cobasin.errors import InputError
from cobasin.finding.acting import acting_on
from cobasin.finding.applying import check_made, transform
from cobasin.paths import expanded
from cobasin.symmetry.element import FILE, Element
from cobasin.workflows.moved_adapters import adapter_evidence, on_new_base, products_kept
from cobasin.workflows.shared import evidence_of_file, report_files, save_with_bar


def apply_to_folder(element_path: str, model: str, out: Path, base: str | None, overwrite: bool) -> dict:
    """Move a model, or an adapter with its base, by a saved element; returns the report.

    Raises:
        InputError: for an output folder that is in the way, a base that is not needed, what the element does not move.
    """
    path = expanded(element_path, "element")
    element, folder = Element.load(path), path if path.is_dir() else None
    report: dict = {"cobasin": __version__, "element": element_path, "model": model, "out": str(out), "notes": []}
    if is_adapter(model):
        adapter = load_adapter(model)
        check_output(out, overwrite, [adapter.folder, folder])
        check_read(out, [path, base, adapter.config.get("base_model_name_or_path") or None])
        if element.spec.architecture == LORA:
            if base is not None:
                raise InputError(
                    f"--base {base}: an element of adapters moves their ranks and needs no base; leave it out"
                )
            moved, found = apply_to_adapter(element, adapter), products_kept(element, adapter)
        else:
            moved, found = _move_adapter(element, adapter, base, path)
        report |= {"adapter": True, **found}
        save_adapter(moved, out, files=report_files(report, card.applied(report)), overwrite=overwrite)
    elif base is not None:
        raise InputError(f"--base {base}: a base goes with an adapter, and {model} is none")
    else:
        source = load(model)
        check_output(out, overwrite, [source.folder, folder])
        check_read(out, [path])
        report |= evidence_of_file(element, source)
        save_with_bar(transform(element, source), out, overwrite, report_files(report, card.applied(report)))
    return report


def _move_adapter(element: Element, adapter: Adapter, base: str | None, path: Path) -> tuple[Adapter, dict]:
    """The adapter moved with its base, and the report; ``path`` is the element's file or the matched model's folder."""
    home = path if path.is_dir() else path.parent if path.name == FILE else None
    matched = load(home) if home and (home / "config.json").is_file() else None
    named = adapter.config.get("base_model_name_or_path")
    base = base or (named if named and expanded(named).is_dir() else None)
    original = None if base is None else headed(adapter, load(base))
    config = original.config if original else matched.config if matched else None
    typed = None
    if original is not None:
        element, typed = acting_on(element, original)
    type_adapter(adapter, element.spec, config)  # what does not fit is best told by the adapter's own tensors
    if typed is not None and matched is not None:
        check_made(element, typed, matched)
    moved = move_adapter(element, adapter, typed, config)
    notes = on_new_base(moved, adapter, str(home.absolute()) if home and matched else None)
    return moved, {"base": base, "notes": notes, **adapter_evidence(element, adapter, typed)}
