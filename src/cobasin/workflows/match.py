"""`cobasin match`: check, match, write, verify, report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cobasin import __version__
from cobasin.adapters.folder import is_adapter, load_adapter, save_adapter
from cobasin.adapters.match import apply_to_adapter, match_adapters
from cobasin.checkpoints import card
from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.output import FOUND, working
from cobasin.checkpoints.refusals import check_output, check_read
from cobasin.checkpoints.sharing import sharing
from cobasin.errors import InputError
from cobasin.finding.applying import transform
from cobasin.finding.forms import UNTIED
from cobasin.finding.kept import Kept
from cobasin.finding.match import match_all
from cobasin.finding.search import Search
from cobasin.paths import resolved
from cobasin.presenting import progress as bars
from cobasin.recipe.data_file import data_config
from cobasin.symmetry.element import Element
from cobasin.workflows.moved_adapters import products_kept
from cobasin.workflows.shared import (
    evidence_of_file,
    inputs_of,
    match_files,
    part_report,
    save_with_bar,
    shards_with_bar,
    write_with_bar,
)

TIED_ANCHOR = "to average it with an anchor whose head is tied, use cobasin merge: others average what both have"


def match_to_folder(
    source: str,
    anchor: str,
    out: Path,
    symmetry: str,
    layers: str | None,
    overwrite: bool,
    method: str = "weights",
    data: str | None = None,
    resume: bool = False,
    anchor_out: Path | None = None,
    part: tuple[int, int] | None = None,
    **search: Any,
) -> dict:
    """Match, write the matched model with its element and report; returns the report.

    Args:
        source, anchor: models, or two adapters of one base.
        out: the folder to write.
        symmetry, layers: as in `cobasin.match`.
        overwrite: whether folders may be replaced.
        method: as in `cobasin.match`.
        data: a data set, or a YAML file that describes one.
        resume: go on where a run of the same command was interrupted. What is needed for that is kept in a hidden
            folder beside ``out`` until that is written.
        anchor_out: where to write the anchor, which then moves, too.
        part: do this part, of so many, of the work; what is left is done by the same call with ``resume`` instead.
        search: further arguments of `cobasin.match_all`.

    Raises:
        InputError: as `cobasin.match_all`; for output folders that are in the way, and options that do not go together.
    """
    if method != "learned" and anchor_out is not None:
        raise InputError(f"--anchor-out goes with --method learned; --method {method} learns nothing")
    if is_adapter(source) or is_adapter(anchor):
        if method != "weights" or data is not None or resume or part is not None or Search(**search) != Search():
            raise InputError(
                "adapters of one base are matched by their weights, at once: only --symmetry, --out, --overwrite and "
                "--json go with them"
            )
        return _match_adapters(source, anchor, out, symmetry, layers, overwrite)
    models, rows = (load(source), load(anchor)), None if data is None else data_config(data)
    folders = [model.folder for model in models]
    files = () if data is None or rows is None else (data, rows.path)
    check_output(out, overwrite, folders)
    check_read(out, files)
    if anchor_out is not None:
        _check_apart(out, anchor_out)
        check_output(anchor_out, overwrite, folders)
        check_read(anchor_out, files)
    search |= {"method": method, "data": rows, "move": "source" if anchor_out is None else "all"}
    Search(**search)  # refused before what an interrupted run has left is removed

    def found(keep: Kept) -> tuple[Element, Element | None]:
        with bars.steps(f"matching {source} to {anchor}") as progress:
            ours, theirs = match_all(models, symmetry, layers, 1, progress, **search, keep=keep).elements
        assert ours is not None
        return ours, theirs

    run = {"command": "match", "cobasin": __version__, "symmetry": symmetry, "layers": layers}
    run |= {"source": source, "anchor": anchor}  # which is which: among the inputs they have no order
    run |= {key: str(value) for key, value in (search | {"anchor_out": anchor_out}).items()}
    run |= inputs_of(dict(zip((source, anchor), models, strict=True)), files)
    if part is not None:
        with sharing(out, overwrite, folders, run, part) as (folder, one):
            ours, _ = found(Kept(folder / FOUND, one))
            shards_with_bar(transform(ours, models[0]), folder, out, one)
        return part_report(out, part)
    with working(out, overwrite, folders, run, resume) as folder:
        ours, theirs = found(Kept(folder / FOUND))
        report = {"cobasin": __version__, "source": source, "anchor": anchor, "out": str(out), **ours.report}
        if UNTIED in report["notes"] and anchor_out is None:
            report["notes"] = [*report["notes"], TIED_ANCHOR]
        report |= evidence_of_file(ours, models[0])
        if theirs is not None and anchor_out is not None:
            report["anchor_out"] = str(anchor_out)
            report["anchor_report"] = theirs.report | evidence_of_file(theirs, models[1])
            report["notes"] = [*report["notes"], f"the anchor moved, too: average this with {anchor_out}, not {anchor}"]
        # both are written before either is there
        write_with_bar(transform(ours, models[0]), folder, out, match_files(ours, report, card.matched(report)))
        if theirs is not None and anchor_out is not None:
            files = match_files(theirs, report, card.anchor(report))
            save_with_bar(transform(theirs, models[1]), anchor_out, overwrite, files)
    return report


def _check_apart(out: Path, anchor_out: Path) -> None:
    one, other = resolved(out), resolved(anchor_out)
    if one == other or one in other.parents or other in one.parents:
        raise InputError(f"--anchor-out {anchor_out}: --out is {out}; name two folders, neither within the other")


def _match_adapters(source: str, anchor: str, out: Path, symmetry: str, layers: str | None, overwrite: bool) -> dict:
    """Match two adapters of one base in their ranks, and write the first."""
    for one, other in ((source, anchor), (anchor, source)):
        if not is_adapter(one):
            raise InputError(f"{other} is an adapter, {one} is none: match two models, or two adapters of one base")
    if symmetry not in ("full", "gl") or layers is not None:
        raise InputError(
            "adapters of one base are matched by any invertible map of their ranks: no other --symmetry, no --layers"
        )
    ends = load_adapter(source), load_adapter(anchor)
    check_output(out, overwrite, [end.folder for end in ends])
    with bars.steps(f"matching {source} to {anchor}") as progress:
        element = match_adapters(*ends, progress=progress)
    report = {"cobasin": __version__, "source": source, "anchor": anchor, "out": str(out), **element.report}
    report |= {"adapter": True, **products_kept(element, ends[0])}
    files = match_files(element, report, card.matched(report))
    save_adapter(apply_to_adapter(element, ends[0]), out, files=files, overwrite=overwrite)
    return report
