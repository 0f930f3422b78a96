"""Tables of the verb that merges."""

from __future__ import annotations

from rich.filesize import decimal
from rich.table import Table

from cobasin.presenting.console import SHOWN, output, setting
from cobasin.presenting.moving import distances, freed

COLLECTED = {
    "fisher": "Fisher information",
    "grams": "Grams of inputs",
    "grams_in_turn": "Grams of inputs, layer by layer,",
    "activations": "activations",
}

AFTER = {"merge": "the merge itself", "repair": "repaired", "heal": "healed"}


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
        output.print(f"\n{one['source']} matched to {report['reference']} ({freed(one)})")
        distances(one)
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
        anchor = report["match"]["anchor"]
        match = f"matched ({how}) to {f'their {anchor}' if anchor in ('medoid', 'consensus') else anchor}"
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
    return ", ".join(map(setting, value)) if isinstance(value, (tuple, list)) else setting(value)
