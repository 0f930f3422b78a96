"""Tables of the verbs that measure: verify, compare, path."""

from __future__ import annotations

from statistics import median

from rich.table import Table

from cobasin.presenting.console import SHOWN, output


def verdict(report: dict) -> None:
    """The answer of `cobasin verify`."""
    answer = {True: "same function", False: "different functions", None: "cannot tell"}[report["same"]]
    output.print(f"{answer}: {report['reason']}")
    table = Table("difference of the outputs", "")
    for key, text in (
        ("relative_float64", "relative, float64"),
        ("absolute_float64", "absolute, float64"),
        ("relative_native", "relative, in the files' dtype"),
        ("noise_float64", "relative, by one rounding of A"),
        ("tolerance", "tolerance"),
    ):
        if report.get(key) is not None:
            table.add_row(text, f"{report[key]:.3g}")
    if table.row_count:
        output.table(table)


def path_report(report: dict) -> None:
    """The table of `cobasin path`."""
    data, metric = report["data"], report["metric"]
    output.print(f"the line from {report['a']} to {report['b']}, on {data['rows']} rows of {data['path']}")
    raw = report["paths"]["raw"]
    for name, end in (("A", 0), ("B", -1)):
        output.print(f"{name}: loss {_number(raw['loss'][end])}, {metric} {_number(raw['metric'][end])}")
    table = Table("", "barrier of the loss", "loss at the midpoint", f"{metric} at the midpoint")
    for path in report["paths"].values():
        middle = path["midpoint"]
        table.add_row(path["label"], *map(_number, (path["barrier"], middle["loss"], middle["metric"])))
    output.table(table)
    if plane := report["plane"]:
        measured = [*plane["loss"], [model["loss"] for model in plane["models"]]]  # the grid may meet no model
        lowest = min((loss for row in measured for loss in row if loss is not None), default=None)
        output.print(f"the plane through both and {report['c']}: lowest loss {_number(lowest)}")
    for match in report["matches"]:
        output.notes(match)
    output.print(f"written to {report['out']}")


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"


def compare_report(report: dict) -> None:
    """The tables of `cobasin compare`."""
    output.print(f"{report['verdict']}: {report['reason']}")
    relative, chance = report["relative"], report["shared"] is not None
    output.print(
        f"relative distance (0: equal, 1: unrelated): of the files {_number(relative['files'])}, in canonical form "
        f"{_number(relative['before'])}, matched ({report['symmetry']}) {_number(relative['after'])}"
    )
    spaces = {name: row["layers"] for name, row in report["spaces"].items() if row["layers"]}
    title = "relative distance, and the median cosine of coordinates when matched"
    stages = ["files", "canonical", "matched", *["by chance"] * chance]
    table = Table("layer", *stages, *spaces, title=title)
    for place in list(report["layers"])[:SHOWN]:
        distances = [f"{value:.3f}" for value in report["layers"][place].values() if value is not None]
        cosines = [f"{median(own[place]['agreement']):.2f}" if place in own else "" for own in spaces.values()]
        table.add_row(place, *distances, *cosines)
    output.table(table)
    if (more := len(report["layers"]) - SHOWN) > 0:
        output.print(f"and {more} more layers (--json has them all)")
    headings = [*stages[:3], "stay in place", "median cosine when matched", *["by chance"] * chance]
    table = Table("space", *headings, title="distance of the tensors that a space runs through")
    for space, row in report["spaces"].items():
        medians = [_number(median(row[key])) for key in ("agreement", "chance") if row[key] is not None]
        distances = [f"{row[stage]:.6g}" for stage in ("files", "before", "after")]
        table.add_row(space, *distances, _share(row["kept"]), *medians)
    output.table(table)
    output.notes(report)
    if "out" in report:
        output.print(f"written to {report['out']}")


def _share(value: float | None) -> str:
    return "" if value is None else f"{max(value, 0.0):.0%}"
