"""Tables on standard output."""

from __future__ import annotations

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table


class Output(Console):
    """A console that does not end the program where its reader has left."""

    def table(self, table: Table) -> None:
        """Print a table, whose cells rich may break at its width."""
        self.print(table, soft_wrap=False)

    def notes(self, report: dict) -> None:
        """Print what a reader of a report should know."""
        for note in report["notes"]:
            self.print(f"note: {note}")

    def on_broken_pipe(self) -> None:
        """Leave it to the caller."""
        raise BrokenPipeError


# Paths may hold what rich takes for markup or emoji. Neither they nor tables are to be broken in a pipe, where rich
# knows no width: lines are never, and tables find 200 columns there.
output = Output(
    markup=False, emoji=False, highlight=False, soft_wrap=True, width=None if Console().is_terminal else 200
)

SHOWN = 20  # rows of a table that may be long
COLLECTED = {
    "fisher": "Fisher information",
    "grams": "Grams of inputs",
    "grams_in_turn": "Grams of inputs, layer by layer,",
    "activations": "activations",
}

AFTER = {"merge": "the merge itself", "repair": "repaired", "heal": "healed"}


def part_report(report: dict) -> None:
    """What is said when a part is done."""
    output.print(
        f"part {report['part']} of {report['parts']} is done; once all are, the same command with --resume in place of "
        f"--part writes {report['out']}"
    )


def match_report(report: dict) -> None:
    """The table of `cobasin match`."""
    output.print(f"matched {report['source']} to {report['anchor']} ({_freed(report)})")
    _distances(report)
    output.print(f"written to {report['out']}" + (f" and {report['anchor_out']}" if "anchor_out" in report else ""))


def apply_report(report: dict) -> None:
    """The lines of `cobasin apply`."""
    output.print(f"moved {report['model']} by {report['element']}")
    output.notes(report)
    _function(report)
    output.print(f"written to {report['out']}")


def transport_report(report: dict) -> None:
    """The table of `cobasin transport`."""
    output.print(f"{report['base']} matched to {report['new']} ({_freed(report)})")
    _distances(report)
    done = "" if report.get("adapter") else f" and added {report['scale']:g} times"
    output.print(
        f"what {report['tuned']} has learned was moved so{done}; how much of it {report['new']} has gained by that, "
        "only a measurement can tell"
    )
    output.print(f"written to {report['out']}")


def merge_report(report: dict) -> None:
    """The table of `cobasin merge`."""
    weights = report["weights"]
    models = (
        report["models"]
        if weights is None
        else [f"{w:.3g} x {m}" for w, m in zip(weights, report["models"], strict=True)]
    )
    output.print(f"{report['method']} of {', '.join(models)}" + (f", base {report['base']}" if report["base"] else ""))
    for one in report["matches"]:
        output.print(f"\n{one['source']} matched to {report['reference']} ({_freed(one)})")
        _distances(one)
    if (objective := report["matching"].get("objective")) is not None:
        output.print(f"distance of all to their mean: {objective[0]:.6g} -> {objective[-1]:.6g}")
    output.notes(report)
    if report["after"] is not None:
        _after(report["after"])
    for folder, model in report.get("heads", {}).items():
        output.print(f"{folder}: with the task head of {model}")
    output.print(f"written to {report['out']}")


def plan(report: dict) -> None:
    """What `cobasin merge --dry-run` prints."""
    match = "not matched"
    if report["match"]["symmetry"] != "none":
        how = f"{report['match']['symmetry']}, by {report['match']['method']}"
        how += "" if report["match"]["layers"] is None else f", layers {report['match']['layers']}"
        match = f"matched ({how}) to {report['match']['anchor']}"
    output.print(f"{report['method']} of {len(report['models'])} models ({report['architecture']}), {match}")
    for model in report["models"]:
        output.print(f"  {model}" + (", the base" if model == report["base"] else ""))
    if report["head"] is not None:
        output.print(f"task head: {'one folder for that of every model' if report['folders'] else report['head']}")
    output.print(
        f"{report['tensors']} tensors, {report['parameters']:,} parameters; read {decimal(report['bytes_read'])}, "
        f"write {decimal(report['bytes_written'])}"
    )
    memory = ", ".join(f"{phase} {decimal(size)}" for phase, size in report["memory"].items())
    output.print(f"memory beside the mapped files, estimated: {memory}")
    if found := report["statistics"]:
        rows = ", ".join(f"{count} rows for {model}" for model, count in found["rows"].items())
        kept = f"; kept in {found['cache']}" if found["cache"] else ""
        output.print(f"{COLLECTED[found['kind']]} first collected on data: {rows}{kept}")
    if found := report["after"]:
        steps = [*(["repair"] if found["repair"] else []), *([f"heal, {found['heal']} steps"] if found["heal"] else [])]
        output.print(f"after the merge: {', '.join(steps)}, on {found['inputs']['count']} {found['inputs']['kind']}")
    names = list(report["groups"][0]["parameters"])
    table = Table("tensors", "the first of them", *names)
    for group in report["groups"][:SHOWN]:
        table.add_row(str(group["tensors"]), group["first"], *(_value(group["parameters"][name]) for name in names))
    output.table(table)
    if (more := len(report["groups"]) - SHOWN) > 0:
        output.print(f"and {more} more combinations of parameters (--json has them all)")
    output.notes(report)


def _after(report: dict) -> None:
    """What followed a merge: the first row is the merge itself."""
    held, losses = f"loss on {report['inputs']['held_out']} held-out {report['inputs']['kind']}", report["losses"]
    table = Table(held, *(f"against {word}" for word in losses["merge"]), title="after the merge, and no part of it")
    for stage, found in losses.items():
        table.add_row(AFTER[stage], *(f"{loss:.4g}" for loss in found.values()))
    output.table(table)


def _value(value: object) -> str:
    """A parameter, or one for every model."""
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_value, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _freed(report: dict) -> str:
    """What of the symmetry group was matched."""
    return report["symmetry"] + (f", layers {layers}" if (layers := report.get("layers")) else "")


def _distances(report: dict) -> None:
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
        f"{report['rounds']} rounds, {report['seconds']:.1f} s",
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


def inspection(report: dict) -> None:
    """The tables of `cobasin inspect`."""
    dtypes = ", ".join(report["dtypes"])
    output.print(f"{report['model']}: {report['architecture']}, {report['parameters']:,} parameters, {dtypes}")
    table = Table("space", "size", "group", "one for every", "elements", "dimension", "--symmetry")
    for row in report["spaces"]:
        free = row["group"] != "fixed"
        each = " ".join(row["over"]) if free else ""
        numbers = (str(row["elements"]), f"{row['dimension']:,}") if free else ("", "")
        table.add_row(row["space"], str(row["size"]), row["group"], each, *numbers, row["part"] if free else "")
    output.table(table)
    output.print(f"dimension of the symmetry group: {report['dimension']:,}")
    table = Table("type", "tensors", "parameters")
    for row in report["types"]:
        table.add_row(row["type"], str(row["tensors"]), f"{row['parameters']:,}")
    output.table(table)


def check(report: dict) -> None:
    """The answer of `cobasin inspect --check`."""
    answer = "holds" if report["sound"] else "is wrong"
    output.print(f"{report['model']}: the declaration of {report['architecture']} {answer}")
    table = Table("a random element of", "changes the outputs (float64) by")
    table.add_row("the group of every space", _size(report["plain"]))
    if report["canonical"] is not None or not report["pieces"]:
        table.add_row("the same, norms folded and biases moved", _size(report["canonical"]))
    for name, change in report["pieces"].items():
        table.add_row(f"  {name} alone", _size(change))
    table.add_row("(what may be rounding)", _size(report["limit"]))
    output.table(table)
    for line in report["repairs"]:
        output.print(f"with this change the function would be kept: {line}")
    for name in report["idle"]:
        output.print(f"the entry of {name} makes no difference: never read, or cancelled by a softmax (KeyBias)?")


def _size(change: float | None) -> str:
    return "not finite" if change is None else f"{change:.1e}"


def proposal(report: dict) -> None:
    """The draft of `cobasin inspect --propose`, to be written to a file."""
    output.print(report["declaration"], end="")
