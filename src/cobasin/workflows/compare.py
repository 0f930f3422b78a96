"""What `cobasin compare` does: compare, and write numbers and a picture where a folder is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cobasin import __version__
from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.output import publishing
from cobasin.checkpoints.refusals import check_output
from cobasin.comparing.compare import compare
from cobasin.errors import InputError
from cobasin.evaluation.plots import plot_comparison
from cobasin.paths import short
from cobasin.presenting import progress as bars


def compare_models(a: str, b: str, symmetry: str, out: Path | None, overwrite: bool = False) -> dict[str, Any]:
    """Compare two models, and write compare.json and compare.png if there is an ``out``; returns the report.

    Raises:
        InputError: for models that cannot be matched; for an ``out`` that cannot be used, and ``overwrite`` without it.
    """
    if overwrite and out is None:
        raise InputError("--overwrite: replaces the folder of --out, and none is named")
    models = load(a), load(b)
    if out is not None:
        check_output(out, overwrite, [model.folder for model in models])
    with bars.steps(f"matching {b} to {a}") as progress:
        comparison = compare(*models, symmetry=symmetry, progress=progress)
    report = {"cobasin": __version__, "a": a, "b": b, "symmetry": symmetry, **comparison.to_dict()}
    if out is not None:
        report["out"] = str(out)
        with publishing(out, overwrite, None) as folder:
            title = f"{short(a)} and {short(b)}: {comparison.verdict}"
            plot_comparison(comparison, folder / "compare.png", title)
            (folder / "compare.json").write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", "utf-8")
    return report
