"""What the commands share: what identifies a run, what shows that a function is kept, how files are written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from cobasin import __version__
from cobasin.architectures import declared_in
from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.output import stamp
from cobasin.checkpoints.refusals import output_errors
from cobasin.checkpoints.writer import save, write, write_shards
from cobasin.errors import InputError, NotProbed
from cobasin.execution.parts import Part
from cobasin.finding.applying import transform
from cobasin.paths import expanded
from cobasin.presenting import progress as bars
from cobasin.symmetry.element import FILE, Element
from cobasin.verification import VERIFIED_PARAMETERS, Verdict, change, judge, verify


def inputs_of(models: Mapping[str, Checkpoint], files: Iterable[str | Path]) -> dict[str, Any]:
    """What a run reads, as it is now: the models, declarations from outside, and what ``files`` are there."""
    declared = {path for model in models.values() if (path := declared_in(model.architecture)) is not None}
    there = {path for file in (*files, *declared) if (path := expanded(file)).exists()}
    folders = {f"model {name}": stamp(model.folder) for name, model in models.items() if model.folder is not None}
    return folders | {f"file {path}": stamp(path) for path in there}


def match_files(element: Element, report: dict, text: str) -> dict:
    """The files that go with a matched model."""
    return {FILE: element.save, **report_files(report, text)}


def report_files(report: dict, text: str) -> dict[str, str]:
    """Report and model card, by the names of their files."""
    return {"cobasin.json": json.dumps(report, indent=2), "README.md": text}


def evidence_of(element: Element, source: Checkpoint) -> dict:
    """What shows that the function is kept: the group's own equations; for all but large models logits in float64.

    Raises:
        InputError: in float64 rounding makes another function of the moved model.
    """
    evidence: dict = {"deviation_from_group": element.deviation()}
    if source.parameters > VERIFIED_PARAMETERS:
        not_verified = "not run on probe inputs (large model); check with cobasin verify"
        return evidence | {"verification": None, "not_verified": not_verified}
    with bars.status("verifying the function in float64"):
        try:
            moved = transform(element, source, torch.float64)
            verdict = verify(source, moved)
        except NotProbed as error:
            return evidence | not_run(error)
        if verdict.same is False and verdict.relative_float64 is not None:
            _check_conditioning(moved, verdict.relative_float64)
    return evidence | {"verification": checked(verdict, "the model", source.architecture)}


def evidence_of_file(element: Element, source: Checkpoint) -> dict:
    """The same of a model that is written, which its dtypes may not hold.

    Raises:
        InputError: rounded to them, it computes another function.
    """
    evidence = evidence_of(element, source)
    found = evidence["verification"]
    if found is None or found["relative_float64"] is None:  # not run, or its outputs say nothing
        return evidence
    with bars.status("verifying the file's function"):
        kept, _, reason = judge(change(source, transform(element, source)), found["noise_float64"])
    if kept is False:
        raise InputError(
            f"{source.label}, moved and rounded to the dtypes of its file, computes another function ({reason}); "
            "convert the models to a wider dtype first, or match with symmetries that leave norms as they are "
            "(residual-order in place of residual)"
        )
    return evidence | {"verification": found | ({} if kept else {"same": None, "rounded": reason})}


def _check_conditioning(moved: Checkpoint, difference: float) -> None:
    """Refuse a moved model whose function differs by no more than rounding in float64 may change it.

    Raises:
        InputError: it is one.
    """
    if judge(difference, verify(moved, moved).noise_float64)[0] is not False:
        raise InputError(
            f"{moved.label}: moved to an anchor whose tensors are larger by far, its function is lost to rounding in "
            f"float64 (relative difference {difference:.1e}); fewer symmetries keep it, such as "
            "ffn,heads,residual-order"
        )


def not_run(error: InputError) -> dict[str, Any]:
    """What a report says where the function could not be verified."""
    return {"verification": None, "not_verified": f"not run on probe inputs: {error}"}


def checked(verdict: Verdict, what: str, architecture: str) -> dict[str, Any]:
    """The verdict for a report.

    Raises:
        InputError: the function is another one, by the user's own declaration.
        RuntimeError: it is by cobasin's.
    """
    if verdict.same is False:
        said = f"{what}, once moved, computes another function ({verdict.reason})"
        if (file := declared_in(architecture)) is None:
            raise RuntimeError(said)
        raise InputError(f"{file}: wrong declaration of {architecture}: {said}; see cobasin inspect MODEL --check")
    return verdict.to_dict()


def save_with_bar(checkpoint: Checkpoint, out: Path, overwrite: bool, files: dict) -> None:
    """`save` with a progress bar."""
    with bars.bar(f"writing {out}", checkpoint.size) as progress:
        save(checkpoint, out, files=files, overwrite=overwrite, progress=progress)


def write_with_bar(checkpoint: Checkpoint, folder: Path, out: Path, files: dict) -> None:
    """`write` with a progress bar; ``folder`` becomes ``out``."""
    with bars.bar(f"writing {out}", checkpoint.size) as progress, output_errors(out.resolve()):
        write(checkpoint, folder, files=files, progress=progress)


def shards_with_bar(checkpoint: Checkpoint, folder: Path, out: Path, part: Part) -> None:
    """The shards of a part, with a progress bar."""
    with bars.bar(f"writing {out}, part {part.number}", checkpoint.size) as progress, output_errors(out.resolve()):
        write_shards(checkpoint, folder, progress, part)


def part_report(out: Path, part: tuple[int, int]) -> dict:
    """What is said of a part that is done."""
    return {"cobasin": __version__, "out": str(out), "part": part[0], "parts": part[1]}
