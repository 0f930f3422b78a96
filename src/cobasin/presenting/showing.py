"""Tables of the verbs that show: inspect and methods."""

from __future__ import annotations

from rich.table import Column, Table

from cobasin.presenting.console import output, setting


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


def architectures(report: dict) -> None:
    """The table of `cobasin inspect --list`: a row a family, with the groups of all its heads."""
    families: dict[tuple[str, str], list[dict]] = {}
    for row in report["architectures"]:
        families.setdefault((row["family"], row["model_type"]), []).append(row)
    widths = {"family": 12, "model_type": 12, "heads": 27, "group of every space": 36}  # 100 columns with the lines
    table = Table(
        *(Column(name, max_width=width) for name, width in widths.items()),
        title="groups at Transformers' default configuration, norms folded where they can be",
        caption=f"{len(families)} families, {len(report['architectures'])} classes; the stream of a bare Model is its "
        "output, and fixed",
        show_lines=True,
    )
    for (family, model_type), rows in sorted(families.items()):
        heads = ", ".join(row["head"] for row in rows)
        table.add_row(family, model_type, heads, _groups(rows))
    output.table(table)


def methods(report: dict) -> None:
    """The table of `cobasin methods`."""
    widths = {"method": 16, "what it does": 34, "parameters (--set)": 22, "needs": 11, "from": 26}
    table = Table(*(Column(name, max_width=width) for name, width in widths.items()), show_lines=True)
    table.columns[0].no_wrap = True
    for row in report["methods"]:
        given = ", ".join(f"{name}={_default(value)}" for name, value in row["parameters"].items())
        base = {"needed": "a base", "optional": "(a base)", None: ""}[row["base"]]
        needs = [word for word in (base, "data" if row["statistics"] else "") if word]
        table.add_row(row["method"], row["does"].replace("``", ""), given, ", ".join(needs), row["reference"])
    output.table(table)


def _default(value: object) -> str:
    return "(required)" if value is None else setting(value)


def _groups(rows: list[dict]) -> str:
    """Spaces by group, free ones first; of the heads that differ, the first in which a space is free."""
    groups: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: row["head"] == "Model"):
        groups |= {space: g for space, g in row["groups"].items() if groups.get(space, "fixed") == "fixed"}
    spaces: dict[str, list[str]] = {}
    for space, group in sorted(groups.items(), key=lambda item: item[1] == "fixed"):
        spaces.setdefault(group, []).append(space)
    return "\n".join(f"{', '.join(names)}: {group}" for group, names in spaces.items()) or str(rows[0]["note"])
