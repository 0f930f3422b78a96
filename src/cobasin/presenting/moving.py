"""Tables of the verbs that move models: match, apply, transport."""

from __future__ import annotations

from rich.table import Table

from cobasin.presenting.console import output


def part_report(report: dict) -> None:
    """What is said when a part is done."""
    output.print(
        f"part {report['part']} of {report['parts']} is done; once all are, the same command with --resume in place of "
        f"--part writes {report['out']}"
    )


def match_report(report: dict) -> None:
    """The table of `cobasin match`."""
    output.print(f"matched {report['source']} to {report['anchor']} ({freed(report)})")
    distances(report)
    output.print(f"written to {report['out']}" + (f" and {report['anchor_out']}" if "anchor_out" in report else ""))


def apply_report(report: dict) -> None:
    """The lines of `cobasin apply`."""
    output.print(f"moved {report['model']} by {report['element']}")
    output.notes(report)
    _function(report)
    output.print(f"written to {report['out']}")


def transport_report(report: dict) -> None:
    """The table of `cobasin transport`."""
    output.print(f"{report['base']} matched to {report['new']} ({freed(report)})")
    distances(report)
    times = "" if report["scale"] == 1 else f" {report['scale']:g} times"
    done = "" if report.get("adapter") else f" and added{times}"
    output.print(
        f"what {report['tuned']} has learned was moved so{done}; how much of it {report['new']} has gained by that, "
        "only a measurement can tell"
    )
    output.print(f"written to {report['out']}")


def freed(report: dict) -> str:
    """What of the symmetry group was matched."""
    return report["symmetry"] + (f", layers {layers}" if (layers := report.get("layers")) else "")


def distances(report: dict) -> None:
    """The table of the distances that a match has changed, and what goes with it."""
    output.print("distance in canonical form, by space:")
    table = Table("space", "before", "after")
    merged: dict[str, list[float]] = {}
    for key, row in report["spaces"].items():  # one row a layer would fill pages; they are in cobasin.json
        sums = merged.setdefault(key.split(".")[0], [0.0, 0.0])
        sums[0] += row["before"] ** 2
        sums[1] += row["after"] ** 2
    for space, (before, after) in merged.items():
        table.add_row(space, f"{before**0.5:.6g}", f"{after**0.5:.6g}")
    output.table(table)
    output.print(
        f"all: {report['objective'][0]:.6g} -> {report['objective'][-1]:.6g}; "
        f"of the files as they are: {report['distance_before']:.6g} -> {report['distance_after']:.6g}; "
        f"{report['rounds']} round{'s' * (report['rounds'] != 1)}, {report['seconds']:.1f} s",
    )
    if "condition" in report:
        worst = ", ".join(f"{space} {figure:.3g}" for space, figure in report["condition"].items())
        output.print(f"largest condition number of a map: {worst}")
    output.notes(report)
    _function(report)


def _function(report: dict) -> None:
    if report["verification"] is None:
        output.print(f"function: {report['not_verified']}")
    else:
        output.print(f"function in float64: {report['verification']['reason']}")
        if rounded := report["verification"].get("rounded"):
            output.print(
                f"note: rounded to the dtypes of the file it is not surely the same function: {rounded}; convert both "
                "models to a wider dtype first"
            )
