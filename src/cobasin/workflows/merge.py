"""What `cobasin merge` does: read a recipe or options, merge, write, verify, report."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cobasin import __version__
from cobasin.checkpoints import card
from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.fingerprint import fingerprint
from cobasin.checkpoints.output import FOUND, working
from cobasin.checkpoints.refusals import check_output, check_read
from cobasin.checkpoints.sharing import sharing
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.writer import Content
from cobasin.errors import InputError
from cobasin.finding.kept import Kept
from cobasin.finding.match import check_shared
from cobasin.fusion.registry import find
from cobasin.merging.merge import Merge, merge_recipe, shares
from cobasin.merging.plan import plan
from cobasin.paths import expanded
from cobasin.presenting import progress as bars
from cobasin.recipe import Recipe
from cobasin.recipe.data_file import data_config
from cobasin.recipe.document import read_value
from cobasin.workflows.shared import (
    evidence_of,
    inputs_of,
    part_report,
    report_files,
    save_with_bar,
    shards_with_bar,
    write_with_bar,
)

_IN_RECIPE = {"weights": "parameters", "set": "parameters", "merge_method": "merge_method", "base_model": "base_model"}
_IN_RECIPE |= {"repair": "repair", "heal": "heal", "data": "repair or heal"}
_OPTION = {"merge_method": "method", "base_model": "base"}


def recipe_of(models: list[str], options: Mapping[str, Any]) -> Recipe:
    """The recipe that the arguments of the command line name or amount to.

    Raises:
        InputError: for a recipe that cannot be read, and options that do not go with it or each other.
    """
    files = [model for model in models if model.lower().endswith((".yaml", ".yml")) and not Path(model).is_dir()]
    if not files:
        return Recipe.of(_content(models, options), "merge")
    if len(models) > 1:
        raise InputError(f"{files[0]} is a recipe: it names all models itself, so give nothing beside it")
    if clash := [name for name in _IN_RECIPE if name in options]:
        option = _OPTION.get(clash[0], clash[0])
        raise InputError(f"--{option} goes with models; in {files[0]} write it under {_IN_RECIPE[clash[0]]}")
    recipe = Recipe.read(files[0])
    return recipe.changed(_match(options), _head(options, recipe.referenced))


def _content(models: list[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe from models and options."""
    if len(models) + ("base_model" in options) < 2:
        raise InputError(f"a merge needs two models or more, got {len(models)}; a recipe is a file named *.yaml")
    if "weights" in options and any(one.partition("=")[0].strip() == "weight" for one in options.get("set", [])):
        raise InputError("--weights and --set weight=...: one of the two")
    method = find(options.get("merge_method", "linear"))
    parameters = _settings(options.get("set", []))
    if method.statistics is not None:
        raise InputError(f"{method.name} needs data: write a recipe, with statistics: {{data: {{path: FILE}}}}")
    if method.needs_base and "base_model" not in options:
        raise InputError(f"{method.name} merges what the models have learned since their base: name it with --base")
    weights = shares(_numbers(options["weights"]), len(models)) if "weights" in options else None
    content: dict[str, Any] = {
        "merge_method": method.name,
        "models": [
            {"model": model} | ({} if weights is None else {"parameters": {"weight": weights[i]}})
            for i, model in enumerate(models)
        ],
        "match": {"symmetry": "full"} | _match(options),
    }
    if parameters:
        content["parameters"] = parameters
    if "base_model" in options:
        content["base_model"] = options["base_model"]
    if head := _head(options, [*models, *([options["base_model"]] if "base_model" in options else [])]):
        content["head"] = head
    return content | _after(options)


def _after(options: Mapping[str, Any]) -> dict[str, Any]:
    """What follows the merge, and its data."""
    content: dict[str, Any] = {"repair": {}} if "repair" in options else {}
    content |= {"heal": {"steps": options["heal"]}} if "heal" in options else {}
    if "data" in options:
        if not content:
            raise InputError("--data is what --repair and --heal read: give one of them, or leave it out")
        content[next(iter(content))]["data"] = data_config(options["data"])
    return content


def _match(options: Mapping[str, Any]) -> dict[str, str]:
    names = {"match": "symmetry", "anchor": "anchor", "device": "device"}
    return {key: options[option] for option, key in names.items() if option in options}


def _head(options: Mapping[str, Any], models: list[str]) -> str | None:
    if "head_from" not in options:
        return "keep" if "keep_heads" in options else None
    if "keep_heads" in options:
        raise InputError("--keep-heads and --head-from: one of the two")
    # a folder may be written in several ways, like ./a and a/
    model = next((model for model in models if Path(model) == Path(options["head_from"])), None)
    if model is None:
        wanted = ", ".join(models)
        raise InputError(f"--head-from {options['head_from']}: expected one of the models to merge: {wanted}")
    return model


def _settings(texts: Iterable[str]) -> dict[str, Any]:
    """Parameters from the values of ``--set``."""
    found: dict[str, Any] = {}
    for text in texts:
        name, given, value = map(str.strip, text.partition("="))
        if not (name and given and value):
            raise InputError(f"--set {text}: expected NAME=VALUE, like density=0.5")
        if name in found:
            raise InputError(f"--set {text}: {name} is set twice")
        try:
            found[name] = read_value(value)
        except yaml.YAMLError:
            raise InputError(f"--set {text}: {value!r} is not a value") from None
    return found


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"weights {text!r}: expected numbers like 0.7,0.3") from None


def plan_of(
    recipe: Recipe,
    out: Path | None = None,
    overwrite: bool = False,
    arguments: Sequence[str] = (),
    resume: bool = False,
    part: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """The plan of a merge, for ``--dry-run``; what `merge_to_folder` would refuse is refused."""
    _check_whole(recipe, resume, part)
    loaded = {name: load(name) for name in recipe.referenced}
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
    arguments: Sequence[str] = (),
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
    loaded = {name: load(name) for name in recipe.referenced}
    folders = [model.folder for model in loaded.values()]
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
            report["heads"] = dict(zip(_folder_names(recipe.with_heads), recipe.with_heads, strict=True))
        files |= report_files(report, card.merged(report))
        if recipe.head != "keep":
            write_with_bar(merged.checkpoint, folder, out, files | merged.tokenizer(merged.checkpoint))
            return report
        written = None
        for name, checkpoint in zip(report["heads"], merged.checkpoints, strict=True):
            if not (folder / name).exists():
                one = checkpoint if written is None else _on_body(checkpoint, written)
                save_with_bar(one, folder / name, False, files | merged.tokenizer(checkpoint))
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
    made = copy.copy(checkpoint)
    made.read = lambda name: (written if name in same else checkpoint)[name]
    return made


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


def _check_out(
    recipe: Recipe, out: Path, overwrite: bool, arguments: Sequence[str], loaded: Mapping[str, Checkpoint]
) -> list[str]:
    """Refuse an output folder that is in the way of what is read; the recipe and the data, which are read, too."""
    folders = [model.folder for model in loaded.values() if model.folder is not None]
    check_output(out, overwrite, folders)
    given = recipe.statistics
    cache = None if given is None or given.cache is None else expanded(given.cache).resolve()
    if inside := [folder for folder in folders if cache is not None and cache.is_relative_to(folder.resolve())]:
        raise InputError(f"statistics.cache {cache}: lies in {inside[0]}, a model that is read; name another folder")
    data = [] if given is None or given.data is None else given.data if isinstance(given.data, list) else [given.data]
    after = None if recipe.after is None else recipe.after.data
    data = [*data, *(one for one in (recipe.match.data, after) if one is not None)]
    read = [path for path in (*arguments, *(one.path for one in data)) if expanded(path).exists()]
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
