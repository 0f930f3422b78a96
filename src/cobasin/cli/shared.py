"""What the commands share: the app, options, and how a result is shown."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="cobasin",
    help="Bring trained transformers into one basin, prove that their function did not change, then merge them.",
    epilog="Models are Hugging Face folders or hub ids. Every command takes --json for one machine-readable object "
    "on standard output; progress and messages go to standard error.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output instead of a table.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output folder if it is not empty.")]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on where the same command was interrupted, with what it had finished (it starts anew where there is "
        "nothing), and keep what is finished if this one is interrupted, too.",
    ),
]
SpecFile = Annotated[
    Path | None,
    typer.Option(
        "--spec",
        help="A Python file of yours that declares architectures; it is run. No code is taken from a model folder.",
    ),
]
OUT = typer.Option("--out", help="The folder to write. It appears only when complete.")
Out = Annotated[Path, OUT]
SYMMETRY = (
    "'full' (all symmetries of the architecture, isometries in the heads), 'gl' (full, and any invertible map in the "
    "heads where the architecture allows it), 'paper' (Zhang et al. 2025: FFN permutation, attention rotation and "
    "scale), or a list out of: ffn, heads, attention, scale, residual, residual-order (the residual stream by "
    "permutations only, no norm folded)."
)


def declare(spec: Path | None) -> None:
    """Take up the declarations of a user's file."""
    if spec is not None:
        from cobasin.architectures import load_file

        load_file(spec)


def result(report: dict, json: bool, show) -> None:
    """Print a report, as JSON or by ``show``."""
    if json:
        print(jsonlib.dumps(report, allow_nan=False))
    else:
        show(report)
