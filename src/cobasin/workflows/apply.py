"""What `cobasin apply` and `cobasin transport` do: move models and adapters by an element that was found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from cobasin import __version__
from cobasin.adapters.folder import Adapter, is_adapter, load_adapter, save_adapter
from cobasin.adapters.headed import headed
from cobasin.adapters.layers import type_adapter
from cobasin.adapters.match import LORA, apply_to_adapter
from cobasin.adapters.merged import merged as base_and_adapter
from cobasin.adapters.move import move_adapter
from cobasin.checkpoints import card
from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.refusals import check_output, check_read
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError, NotProbed
from cobasin.finding.acting import acting_on
from cobasin.finding.applying import check_made, transform
from cobasin.finding.forms import UNTIED
from cobasin.finding.transport import transport, transport_adapter
from cobasin.paths import expanded
from cobasin.presenting import progress as bars
from cobasin.symmetry.element import FILE, Element
from cobasin.verification import VERIFIED_PARAMETERS, change, judge, verify
from cobasin.workflows.shared import (
    checked,
    evidence_of,
    evidence_of_file,
    match_files,
    not_run,
    products_kept,
    report_files,
    save_with_bar,
)


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
    notes = _on_new_base(moved.adapter, source, str(expanded(new).absolute()) if expanded(new).is_dir() else new)
    report |= {**moved.element.report, "adapter": True}
    report["notes"] = [note for note in report["notes"] if note != UNTIED]  # of the bases, of which it changes nothing
    report |= _adapter_evidence(moved.element, source, moved.base)
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
    notes = _on_new_base(moved, adapter, str(home.absolute()) if home and matched else None)
    return moved, {"base": base, "notes": notes, **_adapter_evidence(element, adapter, typed)}


def _on_new_base(moved: Adapter, adapter: Adapter, new: str | None) -> list[str]:
    """Name the base of a moved adapter in its config; what a reader should know of how it was moved."""
    moved.config["base_model_name_or_path"] = new  # of no revision, which moving has left out
    added = len(moved.headers) - len(adapter.headers)
    return [f"{added} biases (lora_bias) were added: they hold constants that the adapter read"] if added else []


def _adapter_evidence(element: Element, adapter: Adapter, base: Typed | None) -> dict:
    """What shows that base and adapter together compute what they did, where the base is known and not large."""
    evidence: dict = {"deviation_from_group": element.deviation()}
    if base is None:
        why = f"not run on probe inputs: the base of {adapter.label} is no local folder; name it (--base FOLDER)"
        return evidence | {"verification": None, "not_verified": why}
    element, base = acting_on(element, base.checkpoint)
    if base.checkpoint.parameters > VERIFIED_PARAMETERS:
        return evidence | {"verification": None, "not_verified": "not run on probe inputs (large base)"}
    with bars.status("verifying the function of base and adapter in float64"):
        new_base = Typed.of(transform(element, base.checkpoint, torch.float64))
        moved = move_adapter(element, adapter, base, dtype=torch.float64)
        try:
            before, after = _joined(base, adapter), base_and_adapter(new_base, moved, torch.float64)
        except InputError as error:  # a bias where the base has none, or an adapted embedding that no config can untie
            return evidence | not_run(error)
        try:
            verdict = verify(before, after)
        except NotProbed as error:
            return evidence | not_run(error)
        found = checked(verdict, "base and adapter", base.spec.architecture)
        if verdict.relative_float64 is not None:
            written = base_and_adapter(new_base, move_adapter(element, adapter, base), torch.float64)
            kept, _, reason = judge(change(before, written), verdict.noise_float64)
            found |= {} if kept else {"same": None, "rounded": reason}
    return evidence | {"verification": found}


def _joined(base: Typed, adapter: Adapter) -> Checkpoint:
    """Base and adapter as one model in float64 that says it is stored as the base is: that tells what is rounding."""
    return replace(base_and_adapter(base, adapter, torch.float64), headers=base_and_adapter(base, adapter).headers)
