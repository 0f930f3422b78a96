"""The command line: the verbs, progress on standard error, exit codes.

Exit codes: 0 done (verify: the same function), 1 verify found different functions or inspect --check a wrong
declaration, 2 bad input or undecided, 130 interrupted.
"""

from __future__ import annotations

import io
import json as jsonlib
import math
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from cobasin.errors import InputError

INTERRUPTED = 130

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
SpecFile = Annotated[
    Path | None,
    typer.Option(
        "--spec",
        help="A Python file of yours that declares architectures; it is run. No code is taken from a model folder.",
    ),
]
Out = Annotated[Path, typer.Option("--out", help="The folder to write. It appears only when complete.")]
SYMMETRY = (
    "'full' (all symmetries of the architecture, isometries in the heads), 'gl' (full, and any invertible map in the "
    "heads where the architecture allows it), 'paper' (Zhang et al. 2025: FFN permutation, attention rotation and "
    "scale), or a list out of: ffn, heads, attention, scale, residual."
)


@app.command()
def match(
    source: Annotated[str, typer.Argument(help="The model to transform.")],
    anchor: Annotated[str, typer.Argument(help="The model to bring it close to; it is never changed.")],
    out: Out,
    symmetry: Annotated[str, typer.Option(help=SYMMETRY)] = "full",
    layers: Annotated[
        str | None, typer.Option(help="Only these layers, like 0-4,7; leaves the residual stream alone.")
    ] = None,
    spec: SpecFile = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Transform SOURCE, without changing its function, into the equivalent model closest to ANCHOR.

    Writes an ordinary model folder of the same architecture and dtype, with the transformation
    (cobasin.safetensors) and a report (cobasin.json) beside it. Average it with the anchor with any tool.

    Example: cobasin match ./model-b ./model-a --out ./b-matched
    """
    from cobasin import present, workflow

    _declare(spec)
    report = workflow.match_to_folder(source, anchor, out, symmetry, layers, overwrite)
    _result(report, json, present.match_report)


@app.command(name="apply")
def apply_(
    element: Annotated[str, typer.Argument(help="A folder that cobasin match has written, or its element file.")],
    model: Annotated[str, typer.Argument(help="A model of the element's type, or a LoRA (PEFT folder) of its source.")],
    out: Out,
    base: Annotated[
        str | None, typer.Option(help="The base of the LoRA; by default the folder that its adapter_config.json names.")
    ] = None,
    spec: SpecFile = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Move MODEL as ELEMENT moved its source: the same function, in the basis of the element's anchor.

    A LoRA moves with its base: on the matched model it computes what it did on the source.

    Example: cobasin apply ./b-matched ./lora-of-b --out ./lora-matched
    """
    from cobasin import present, workflow

    _declare(spec)
    _result(workflow.apply_to_folder(element, model, out, base, overwrite), json, present.apply_report)


@app.command()
def merge(
    models: Annotated[list[str], typer.Argument(help="Two models or more; all are matched to the first.")],
    out: Out,
    weights: Annotated[str | None, typer.Option(help="One number a model, like 0.7,0.3; equal by default.")] = None,
    match: Annotated[str, typer.Option(help="How to match: 'none', " + SYMMETRY)] = "full",
    head_from: Annotated[
        str | None, typer.Option(help="Take the task head of this model instead of the average.")
    ] = None,
    spec: SpecFile = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Match every model to the first, average them, and write a folder that from_pretrained loads.

    Example: cobasin merge ./model-a ./model-b --out ./merged
    """
    from cobasin import present, workflow

    _declare(spec)
    report = workflow.merge_to_folder(models, out, weights, match, head_from, overwrite)
    _result(report, json, present.merge_report)


@app.command()
def verify(
    a: Annotated[str, typer.Argument(metavar="A", help="A model.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another model.")],
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Largest relative difference in float64; by default measured from the rounding of the files."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Do A and B compute the same function? Exit code 0: yes, 1: no, 2: cannot tell.

    Both run on probe inputs made for the model type, in the files' dtype and in float64.

    Example: cobasin verify ./model-b ./b-matched
    """
    from cobasin import present
    from cobasin.checkpoint import load
    from cobasin.verification import verify as verify_

    if tolerance is not None and not (math.isfinite(tolerance) and tolerance >= 0):
        raise InputError(f"tolerance {tolerance}: expected a finite number that is not negative")
    with present.status("running both models on probe inputs"):
        verdict = verify_(load(a), load(b), tolerance)
    _result({"a": a, "b": b, **verdict.to_dict()}, json, present.verdict)
    raise typer.Exit({True: 0, False: 1, None: 2}[verdict.same])


@app.command()
def inspect(
    model: Annotated[str | None, typer.Argument(help="The model to look at.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the known architectures and their groups.")] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Is the declaration of its architecture right? Runs random elements of the group through the model, "
            "and says what is wrong. Exit code 1: it is wrong.",
        ),
    ] = False,
    propose: Annotated[
        bool,
        typer.Option("--propose", help="Print the draft of a declaration, unverified, for an unknown architecture."),
    ] = False,
    spec: SpecFile = None,
    json: Json = False,
) -> None:
    """Show the type of MODEL: its spaces, their groups, and the dimension of its symmetry group.

    Example: cobasin inspect ./model-a
    """
    from cobasin import inspection, present

    if (model is None) != list_:
        raise InputError("name a model, or ask for the known architectures with --list (one of the two)")
    if list_ + check + propose > 1:
        raise InputError("--list, --check and --propose: one at a time")
    _declare(spec)
    if model is None:
        _result({"architectures": inspection.known_architectures()}, json, present.architectures)
    elif propose:
        from cobasin.proposal import propose as propose_

        _result({"model": model, "verified": False, "declaration": propose_(model)}, json, present.proposal)
    elif check:
        from cobasin.checking import check_declaration

        with present.status("running random elements of the group through the model"):
            found = check_declaration(model)
        _result({"model": model, **found.to_dict()}, json, present.check)
        raise typer.Exit(0 if found.sound else 1)
    else:
        _result(inspection.inspect(model), json, present.inspection)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where to put the models, the picture and the numbers.")] = Path("demo-out"),
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Train two small models on real images, match, verify and merge them, and draw what happened.

    Takes a few minutes on two cores and downloads nothing.

    Example: cobasin demo --out ./demo
    """
    from cobasin.demo import run, show

    _result(run(out, overwrite=overwrite), json, show)


def _declare(spec: Path | None) -> None:
    if spec is not None:
        from cobasin.architectures import load_file

        load_file(spec)


def _result(report: dict, json: bool, show) -> None:
    if json:
        print(jsonlib.dumps(report, allow_nan=False))
    else:
        show(report)


def _terminate(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its warnings would bury the line of an error
    if isinstance(sys.stdout, io.TextIOWrapper):  # a letter that the terminal lacks must not end a run in its report
        sys.stdout.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _terminate)  # clean up as after Ctrl-C
    # Before torch is imported: its threads then sleep between small operations instead of spinning, which on a
    # busy machine costs the others more than it saves.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app()
    except InputError as error:
        print("error:", " ".join(str(error).splitlines()), file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:
        if end.code == INTERRUPTED:  # what typer makes of a KeyboardInterrupt
            print("interrupted; no unfinished output was left behind", file=sys.stderr)
        raise
