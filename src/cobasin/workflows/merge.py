"""What `cobasin merge` does with a recipe: plan, or merge, write, report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cobasin import __version__
from cobasin.adapters.added import adapter_in, load_named
from cobasin.checkpoints import card
from cobasin.checkpoints.checkpoint import Checkpoint, Content, load
from cobasin.checkpoints.fingerprint import fingerprint
from cobasin.checkpoints.output import FOUND, working
from cobasin.checkpoints.refusals import check_output, check_read
from cobasin.checkpoints.sharing import sharing
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.finding.kept import Kept
from cobasin.finding.match import check_shared
from cobasin.merging.merge import Merge, merge_recipe
from cobasin.merging.plan import plan
from cobasin.paths import expanded, resolved
from cobasin.presenting import progress as bars
from cobasin.recipe import Recipe
from cobasin.workflows.shared import (
    evidence_of,
    inputs_of,
    part_report,
    report_files,
    save_with_bar,
    shards_with_bar,
    write_with_bar,
)


def plan_of(
    recipe: Recipe,
    out: Path | None,
    overwrite: bool,
    arguments: Sequence[str],
    resume: bool,
    part: tuple[int, int] | None,
) -> dict[str, Any]:
    """The plan of a merge, for ``--dry-run``; what `merge_to_folder` would refuse is refused."""
    _check_whole(recipe, resume, part)
    loaded = {name: load_named(name) for name in recipe.referenced}
    _check_cache(recipe, loaded)
    if out is not None:
        _check_out(recipe, out, overwrite, arguments, loaded)
    found = {"cobasin": __version__, **plan(recipe, loaded)}
    if part is not None and recipe.match.symmetry != "none":
        check_shared(recipe.match.method)
    return found


def merge_to_folder(
    recipe: Recipe,
    out: Path,
    overwrite: bool,
    arguments: Sequence[str],
    resume: bool = False,
    part: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Merge and write: one folder, or one for every task whose head is kept; returns the report.

    Args:
        recipe: what to merge.
        out: the folder to write.
        overwrite: whether it may be replaced.
        arguments: of the command line, among them the files of recipe and data, which ``out`` must not replace.
        resume: go on where a run of the same command was interrupted, from the elements and shards that are finished.
        part: do this part, of so many, of the work; what is left is done by the same call with ``resume`` instead.
    """
    _check_whole(recipe, resume, part)
    loaded = {name: load_named(name) for name in recipe.referenced}
    folders = [model.folder for model in loaded.values()]
    _check_cache(recipe, loaded)
    read = _check_out(recipe, out, overwrite, arguments, loaded)
    run: dict[str, Any] | None = None
    if recipe.after is None:
        run = {"command": "merge", "cobasin": __version__, "recipe": recipe.text()}
        run |= inputs_of(loaded, read)
    if part is not None and run is not None:
        with sharing(out, overwrite, folders, run, part) as (folder, one):
            with bars.steps() as progress:
                merged = merge_recipe(recipe, loaded, progress, Kept(folder / FOUND, one))
            shards_with_bar(merged.checkpoint, folder, out, one)
        return part_report(out, part)
    with working(out, overwrite, folders, run, resume) as folder:
        with bars.steps() as progress:
            merged = merge_recipe(recipe, loaded, progress, Kept(folder / FOUND))
        report = _report(merged, loaded, out)
        files: dict[str, Content] = {
            f"cobasin-{i}.safetensors": element.save for i, element in enumerate(merged.elements) if element is not None
        }
        if recipe.head == "keep":
            report["heads"] = dict(zip(_folder_names(recipe.between), recipe.between, strict=True))
        files |= report_files(report, card.merged(report))
        if recipe.head != "keep":
            write_with_bar(merged.checkpoint, folder, out, files)
            return report
        written = None
        for name, checkpoint in zip(report["heads"], merged.checkpoints, strict=True):
            if not (folder / name).exists():
                one = checkpoint if written is None else _on_body(checkpoint, written)
                save_with_bar(one, folder / name, False, files)
            written = written or load(folder / name)
    return report


def _on_body(checkpoint: Checkpoint, written: Checkpoint) -> Checkpoint:
    """A result that takes all but its task head from one that is written: to fuse it again would cost as much."""
    typed = Typed.of(checkpoint)
    heads = {typed.disk_names[name] for name in typed.task_heads}
    same = {
        name
        for name, header in checkpoint.headers.items()
        if name not in heads
        and name in written.headers
        and (header.dtype, header.shape) == (written.headers[name].dtype, written.headers[name].shape)
    }
    return replace(checkpoint, read=lambda name: (written if name in same else checkpoint)[name])


def _check_whole(recipe: Recipe, resume: bool, part: tuple[int, int] | None) -> None:
    """Refuse to go on from, or to share, what is only done as a whole."""
    if recipe.after is not None and (resume or part is not None):
        raise InputError(
            "repair and heal keep no state and are not shared: leave them out, or --resume, --part and --engine ray"
        )
    if recipe.head == "keep" and part is not None:
        raise InputError(
            "a merge that keeps every task head writes several folders, which is not shared: leave out --part and "
            "--engine ray"
        )


def _check_cache(recipe: Recipe, loaded: Mapping[str, Checkpoint]) -> None:
    """Refuse to keep statistics in a model that is read."""
    if recipe.statistics is None or recipe.statistics.cache is None:
        return
    cache = resolved(recipe.statistics.cache)
    folders = [model.folder for model in loaded.values() if model.folder is not None]
    if inside := [folder for folder in folders if cache.is_relative_to(folder.resolve())]:
        raise InputError(f"statistics.cache {cache}: lies in {inside[0]}, a model that is read; name another folder")


def _check_out(
    recipe: Recipe, out: Path, overwrite: bool, arguments: Sequence[str], loaded: Mapping[str, Checkpoint]
) -> list[str]:
    """Refuse an output folder that is in the way of what is read; the recipe and the data, which are read, too."""
    check_output(out, overwrite, [model.folder for model in loaded.values()])
    given = recipe.statistics
    data = [] if given is None or given.data is None else given.data if isinstance(given.data, list) else [given.data]
    after = None if recipe.after is None else recipe.after.data
    data = [*data, *(one for one in (recipe.match.data, after) if one is not None)]
    adapters = [name for name in map(adapter_in, recipe.referenced) if name is not None]
    read = [path for path in (*arguments, *(one.path for one in data), *adapters) if expanded(path).exists()]
    check_read(out, read, None if given is None else given.cache)
    return read


def _folder_names(models: list[str]) -> list[str]:
    """A folder name for every model: the last part of its path; numbered, where two are the same."""
    names = [re.sub(r"[^\w.-]", "_", Path(model).resolve().name) or "model" for model in models]
    return names if len({name.lower() for name in names}) == len(names) else [f"{n}-{i}" for i, n in enumerate(names)]


def _report(merged: Merge, loaded: Mapping[str, Checkpoint], out: Path) -> dict[str, Any]:
    recipe = merged.recipe
    matches = []
    for i, (name, parent, element) in enumerate(zip(merged.names, merged.parents, merged.elements, strict=True)):
        if element is not None:
            matches.append({"source": name, "file": f"cobasin-{i}.safetensors"} | element.report)
            matches[-1] |= evidence_of(element, parent)
    with bars.status("hashing the parents"):
        hashes = {name: fingerprint(loaded[name]) for name in merged.names}  # of the files, tied or not
    return {
        "cobasin": __version__,
        "method": recipe.merge_method,
        "models": recipe.inputs,
        "weights": merged.weights,
        "base": recipe.base,
        "parents": hashes,
        "recipe": recipe.text(),
        "match": recipe.match.symmetry if matches else "none",  # one model, given twice, is not matched
        "anchor": recipe.match.anchor if matches else None,
        "reference": merged.names[merged.matched.reference] if matches else None,
        "head": recipe.head,
        "out": str(out),
        "matching": merged.matched.report,
        "matches": matches,
        "statistics": merged.statistics,
        "after": merged.after,
        "notes": merged.notes,
    }
