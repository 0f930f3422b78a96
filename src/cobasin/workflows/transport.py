"""What `cobasin transport` does: carry a fine-tune, or an adapter, to another base."""

from __future__ import annotations

from pathlib import Path

from cobasin import __version__
from cobasin.adapters.folder import Adapter, is_adapter, load_adapter, save_adapter
from cobasin.checkpoints import card
from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.refusals import check_output, check_read
from cobasin.errors import InputError
from cobasin.finding.forms import UNTIED
from cobasin.finding.transport import transport, transport_adapter
from cobasin.paths import expanded
from cobasin.presenting import progress as bars
from cobasin.symmetry.element import Element
from cobasin.workflows.moved_adapters import adapter_evidence, on_new_base
from cobasin.workflows.shared import evidence_of, match_files, save_with_bar


def transport_to_folder(
    base: str, tuned: str, new: str, out: Path, element_path: str | None, symmetry: str, scale: float, overwrite: bool
) -> dict:
    """Carry a fine-tune, or an adapter, from its base to another one; returns the report.

    Args:
        base, tuned, new: as in `cobasin.transport`; ``tuned`` may be a PEFT folder.
        out: the folder to write.
        element_path: a matched base, or its element; None to match the bases.
        symmetry, scale: as in `cobasin.transport`.
        overwrite: whether ``out`` may be replaced.

    Raises:
        InputError: as `cobasin.transport`; for an output folder that is in the way, and a scale of an adapter.
    """
    old, target = load(base), load(new)
    source = load_adapter(tuned) if is_adapter(tuned) else load(tuned)
    path = None if element_path is None else expanded(element_path, "element")
    folders = [model.folder for model in (old, target, source)]
    check_output(out, overwrite, [*folders, path if path and path.is_dir() else None])
    check_read(out, [path])
    element = None if path is None else Element.load(path)
    report = {"cobasin": __version__, "base": base, "tuned": tuned, "new": new, "element": element_path}
    report |= {"out": str(out), "scale": scale}
    if isinstance(source, Checkpoint):
        with bars.steps(f"matching {base} to {new}") as progress:
            carried = transport(old, source, target, element, scale, symmetry, progress)
        report |= {**carried.element.report, **evidence_of(carried.element, source)}
        report["notes"] = list(dict.fromkeys([*report["notes"], *carried.notes]))  # of the new base both may speak
        files = match_files(carried.element, report, card.transported(report))
        save_with_bar(carried.checkpoint, out, overwrite, files)
        return report
    if scale != 1.0:
        raise InputError(f"--scale {scale:g}: an adapter has a scale of its own, lora_alpha in adapter_config.json")
    with bars.steps(f"matching {base} to {new}") as progress:
        moved = transport_adapter(old, source, target, element, symmetry, progress)
    notes = on_new_base(moved.adapter, source, str(expanded(new).absolute()) if expanded(new).is_dir() else new)
    report |= {**moved.element.report, "adapter": True}
    report["notes"] = [note for note in report["notes"] if note != UNTIED]  # of the bases, of which it changes nothing
    report |= adapter_evidence(moved.element, source, moved.base)
    report["notes"] += [*_other_base(source, base), *notes]
    files = match_files(moved.element, report, card.transported(report))
    save_adapter(moved.adapter, out, files=files, overwrite=overwrite)
    return report


def _other_base(adapter: Adapter, base: str) -> list[str]:
    """What a reader should know where the adapter names another folder, or id, as its base."""
    named = adapter.config.get("base_model_name_or_path")
    if not named or expanded(named).is_dir() != expanded(base).is_dir() or named == base:
        return []  # whether a folder is what an id means is not known
    if expanded(named).is_dir() and expanded(named).samefile(expanded(base)):
        return []
    return [f"{adapter.label} names {named} as its base, not {base}: to other weights it adds what says nothing"]
