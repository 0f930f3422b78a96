"""Tables of what there is: known architectures, merge methods."""

from __future__ import annotations

from rich.table import Column, Table

from cobasin.presenting.tables import output


def architectures(report: dict) -> None:
    """The table of `cobasin inspect --list`: a row a family, with the groups of all its heads."""
    families: dict[tuple[str, str], list[dict]] = {}
    for row in report["architectures"]:
        families.setdefault((row["family"], row["model_type"]), []).append(row)
    widths = {"family": 12, "model_type": 12, "heads": 27, "group of every space": 36}  # 100 columns with the lines
    table = Table(
        *(Column(name, max_width=width, overflow="fold") for name, width in widths.items()),
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
    for row in report["methods"]:
        given = ", ".join(f"{name}={_default(value)}" for name, value in row["parameters"].items())
        base = {"needed": "a base", "optional": "(a base)", None: ""}[row["base"]]
        needs = [word for word in (base, "data" if row["statistics"] else "") if word]
        table.add_row(row["method"], row["does"].replace("``", ""), given, ", ".join(needs), row["reference"])
    output.table(table)


def _default(value: object) -> str:
    if value is None:
        return "(required)"
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _groups(rows: list[dict]) -> str:
    """Spaces by group, free ones first; of the heads that differ, the first in which a space is free."""
    groups: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: row["head"] == "Model"):
        groups |= {space: g for space, g in row["groups"].items() if groups.get(space, "fixed") == "fixed"}
    spaces: dict[str, list[str]] = {}
    for space, group in sorted(groups.items(), key=lambda item: item[1] == "fixed"):
        spaces.setdefault(group, []).append(space)
    return "\n".join(f"{', '.join(names)}: {group}" for group, names in spaces.items()) or str(rows[0]["note"])
