"""What `cobasin path` does: match, evaluate along the line and on a plane, write numbers and pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cobasin import __version__
from cobasin.checkpoints.alike import alike
from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.output import publishing
from cobasin.checkpoints.refusals import check_output, check_read
from cobasin.checkpoints.typed import Typed
from cobasin.data import Batch, batches, task_of
from cobasin.errors import InputError
from cobasin.evaluation.blend import check_line
from cobasin.evaluation.page import Table, page
from cobasin.evaluation.path import Evaluate, LossPath, check_points, loss_path
from cobasin.evaluation.plane import GRID, LossPlane, check_grid, loss_plane
from cobasin.evaluation.plots import plot_paths, plot_plane
from cobasin.evaluation.tasks import METRICS, check_metric, evaluate
from cobasin.execution.devices import device_of
from cobasin.finding.applying import found_between
from cobasin.finding.match import Matched, match_all
from cobasin.matching.choice import Choice
from cobasin.paths import expanded, short
from cobasin.presenting import progress as bars
from cobasin.progress import Progress
from cobasin.recipe.data_file import data_config
from cobasin.symmetry.element import Element

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Request:
    """The options of `cobasin path`, which the command line describes."""

    data: str
    split: str | None
    match: str
    element: str | None
    points: int
    plane: str | None
    grid: int | None
    samples: int
    batch_size: int
    seed: int
    device: str


def path_to_folder(a: str, b: str, out: Path, request: Request, overwrite: bool) -> dict[str, Any]:
    """Measure the line from one model to another, and write it down; returns what is in path.json.

    Raises:
        InputError: for models that cannot be matched or have different labels, data that does not fit them, and
            numbers out of range, all before a tensor is read; for an element that was found between others.
    """
    grid = _checked(request)
    models = alike([Typed.of(load(name)) for name in (a, b, request.plane) if name is not None])
    path = None if request.element is None else expanded(request.element, "element")
    folders = [model.checkpoint.folder for model in models]
    check_output(out, overwrite, [*folders, path if path and path.is_dir() else None])
    data = data_config(request.data, request.split)
    check_read(out, [request.data, data.path, path])
    _check_models(models)
    first = models[0].checkpoint
    task, device = task_of(first), device_of(request.device)
    rows = batches(first, data, samples=request.samples, batch_size=request.batch_size, seed=request.seed)
    rows = rows.by_length()
    if not rows.labelled:  # better now than after the matching
        raise InputError(f"the rows have no labels, without which there is no loss: {rows.unlabelled()}")
    matched = _matched(models, request, path, f"matching {b} to {a}")
    matches = [element.report for element in matched.elements if element is not None]
    symmetry, method = matches[0]["symmetry"], matches[0].get("method", "weights")
    by = symmetry if method == "weights" else f"{symmetry}, {method}"
    labels = {"raw": "not matched", "matched": f"matched ({by})"}
    ends = {"raw": Matched(models, [None] * len(models), 0, {}).ends, "matched": matched.ends}
    loaded = list(rows)  # read and encoded once, not for every point
    with bars.steps() as show:
        plane = None
        if request.plane is not None:  # before the lines: there may be none
            plane = loss_plane(ends["matched"], _measure(loaded, task, show, "plane", grid**2 + 3), grid, device)
        paths = {}
        for kind, pair in ends.items():
            measure = _measure(loaded, task, show, f"line, {labels[kind]}", request.points)
            paths[kind] = loss_path(pair[0], pair[1], measure, request.points, device)
    report = {
        "cobasin": __version__,
        "a": a,
        "b": b,
        "c": request.plane,
        "symmetry": symmetry,
        "method": method,
        "out": str(out),
        "data": {"path": data.path, "rows": rows.rows, "digest": rows.digest, "seed": request.seed},
        "task": task,
        "metric": METRICS[task],
        "matches": matches,
        "paths": {kind: {"label": labels[kind], **line.to_dict()} for kind, line in paths.items()},
        "plane": plane and plane.to_dict(),
    }
    _write(report, {labels[kind]: line for kind, line in paths.items()}, plane, out, overwrite)
    return report


def _checked(request: Request) -> int:
    """Refuse options that cannot be, alone or together; the points along a side of the plane."""
    check_points(request.points)
    if request.grid is not None and request.plane is None:
        raise InputError(f"--grid {request.grid}: is that of the plane through three models; name the third by --plane")
    grid = GRID if request.grid is None else request.grid
    check_grid(grid)
    Choice.parse(request.match)
    if request.element is not None and request.plane is not None:
        raise InputError(f"--plane {request.plane}: all models are matched by weights for it; leave --element out")
    return grid


def _check_models(models: list[Typed]) -> None:
    """Refuse models that have no line between them, or no metric."""
    first, *others = models
    for other in others:
        check_line(first, other)
    task = task_of(first.checkpoint)
    try:
        check_metric(first.checkpoint.config, task)
    except InputError as error:
        raise InputError(f"{first.checkpoint.label}: {error}") from error


def _matched(models: list[Typed], request: Request, path: Path | None, doing: str) -> Matched:
    """All models in the basis of the first: by weights, or by an element that was found before."""
    if path is None:
        with bars.steps(doing) as progress:
            return match_all(models, request.match, anchor=0, progress=progress, device=request.device)
    element = Element.load(path)
    source, anchor = found_between(element, models[1], models[0], request.match)
    return Matched([anchor, source], [None, element], 0, {})


def _measure(rows: Sequence[Batch], task: str, show: Progress, doing: str, total: int) -> Evaluate:
    """Loss and metric of a model, with progress."""
    done = 0

    def measured(model: PreTrainedModel) -> tuple[float, float]:
        nonlocal done
        show(doing, done, total)
        score = evaluate(model, rows, task)
        done += 1
        return score.loss, score.metric

    return measured


def _write(report: dict, paths: dict[str, LossPath], plane: LossPlane | None, out: Path, overwrite: bool) -> None:
    names = [short(report[key]) for key in ("a", "b", "c") if report[key] is not None]
    title = f"From {names[0]} to {names[1]} in a straight line"
    with publishing(out, overwrite, None) as folder:
        plot_paths(paths, folder / "path.png", title, report["metric"])
        pictures = [(folder / "path.png", f"{title}: loss and {report['metric']}; the numbers are in the table")]
        if plane is not None:
            plot_plane(plane, folder / "plane.png", names, report["metric"])
            pictures.append((folder / "plane.png", f"The plane through {', '.join(names)}"))
        (folder / "path.html").write_text(page(title, _sentences(report), pictures, _tables(report)), "utf-8")
        (folder / "path.json").write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", "utf-8")


def _sentences(report: dict) -> list[str]:
    data = report["data"]
    return [
        f"{report['b']} was {report['paths']['matched']['label']} to {report['a']}. At every point the weights are "
        f"averaged, and the average is evaluated on {data['rows']} rows of {data['path']}.",
        "The barrier is the most by which the loss lies above the straight line between the losses of the ends.",
    ]


def _tables(report: dict) -> list[Table]:
    paths, metric = report["paths"], report["metric"]
    summary = [
        (path["label"], path["barrier"], path["midpoint"]["loss"], path["midpoint"]["metric"])
        for path in paths.values()
    ]
    columns = [f"{quantity}, {path['label']}" for path in paths.values() for quantity in ("loss", metric)]
    values = [path[quantity] for path in paths.values() for quantity in ("loss", "metric")]
    return [
        Table("Barrier and midpoint", ["", "barrier", "loss at the midpoint", f"{metric} at the midpoint"], summary),
        Table(
            "Along the line",
            [f"share of {short(report['b'])}", *columns],
            list(zip(paths["raw"]["alphas"], *values, strict=True)),
        ),
    ]
