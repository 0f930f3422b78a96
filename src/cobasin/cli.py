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
OUT = typer.Option("--out", help="The folder to write. It appears only when complete.")
Out = Annotated[Path, OUT]
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
    method: Annotated[
        str,
        typer.Option(
            help="'weights'; 'activations' (and what both models compute on the same inputs); 'learned' (from there, "
            "the interpolated model learns to answer as the two do)."
        ),
    ] = "weights",
    data: Annotated[
        str | None,
        typer.Option(
            help="The inputs of activations and learned, which are made up otherwise: a file, a folder, a hub id, or "
            "a YAML file with the keys of a recipe's data."
        ),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="Inputs that are used, at most; by default 1024, or 128 texts that are made up.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the inputs, and of what is random in learning.")] = 0,
    steps: Annotated[int, typer.Option(help="Steps of learning, at most.")] = 200,
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
    search = {"method": method, "data": data, "samples": samples, "seed": seed, "steps": steps}
    report = workflow.match_to_folder(source, anchor, out, symmetry, layers, overwrite, **search)
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
    models: Annotated[
        list[str], typer.Argument(metavar="RECIPE.yaml | MODEL MODEL...", help="A recipe, or two models or more.")
    ],
    out: Annotated[Path | None, OUT] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="How to merge. Means: linear (the default), slerp, karcher. Of what was learned since a --base: "
            "task_arithmetic, ties, dare_linear, dare_ties, model_stock. With data, so by a recipe: fisher, regmean, "
            "regmean++. By optimal transport: ot_wts; with data, ot_acts, ot_acts_emd."
        ),
    ] = None,
    weights: Annotated[str | None, typer.Option(help="One number a model, like 0.7,0.3; by default 1 each.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="A parameter of the method, like t=0.5; a list runs over the layers."),
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="The model that the others were trained from; it is matched, too.")
    ] = None,
    match: Annotated[
        str | None,
        typer.Option(
            help="Match by these symmetries first: " + SYMMETRY + " 'none': merge the models as they are. The default "
            "is full; of a recipe, what it says under match:, or else none."
        ),
    ] = None,
    anchor: Annotated[
        str | None,
        typer.Option(
            help="What they are matched to: 'medoid' (the default: the model nearest to all others; of two the first), "
            "'consensus' (their own mean, by generalised Procrustes), or the name of one of them."
        ),
    ] = None,
    head_from: Annotated[
        str | None, typer.Option(help="Do not merge the task heads, but take that of this model.")
    ] = None,
    keep_heads: Annotated[
        bool, typer.Option("--keep-heads", help="Write one folder a model, with the merged body and its own task head.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check all that can be checked without reading weights, and print the plan."),
    ] = False,
    spec: SpecFile = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Match models to each other, merge them, and write a folder that from_pretrained loads.

    Options say how to merge, or a recipe does: a YAML file in mergekit's grammar, with match: (how the models are
    matched) and statistics: (the data that fisher, regmean and ot_acts read) added. --match, --anchor, --head-from and
    --keep-heads override a recipe.

    Example: cobasin merge ./model-a ./model-b --out ./merged

    Example: cobasin merge ./model-a ./model-b --method ties --base ./base --set density=0.3 --out ./merged

    Example: cobasin merge recipe.yaml --out ./merged
    """
    from cobasin import merge_workflow, present

    _declare(spec)
    options = {
        "merge_method": method,
        "weights": weights,
        "set": set_,
        "base_model": base,
        "match": match,
        "anchor": anchor,
        "head_from": head_from,
        "keep_heads": keep_heads,
    }
    given = {name: value for name, value in options.items() if value not in (None, False, [])}
    recipe = merge_workflow.recipe_of(models, given)
    if dry_run:
        _result(merge_workflow.plan_of(recipe), json, present.plan)
    elif out is None:
        raise InputError("--out is missing: name the folder to write, or ask for the plan with --dry-run")
    else:
        _result(merge_workflow.merge_to_folder(recipe, out, overwrite, models), json, present.merge_report)


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
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A model.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another model of the same architecture.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="A folder for the picture (compare.png) and the numbers (compare.json)."),
    ] = None,
    symmetry: Annotated[str, typer.Option(help="What is taken as equivalent: " + SYMMETRY)] = "gl",
    spec: SpecFile = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """How are A and B related? The same, sharing a base, sharing a basin, or independent; from their weights alone.

    same: one is the other in another basis. share a base: fine-tunes, neurons in their places. share a basin: more
    in common than apart, once matched. independent: little more in common than by chance.

    Example: cobasin compare ./model-a ./model-b --out ./comparison
    """
    from cobasin import compare_workflow, present_measures

    _declare(spec)
    _result(compare_workflow.compare_models(a, b, symmetry, out, overwrite), json, present_measures.compare_report)


@app.command()
def path(
    a: Annotated[str, typer.Argument(metavar="A", help="The model where the line starts; the other is matched to it.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The model where it ends.")],
    data: Annotated[
        str,
        typer.Option(
            help="What the models are evaluated on: a file, a folder, a hub id, or a YAML file with the keys "
            "of a recipe's data."
        ),
    ],
    out: Out,
    match: Annotated[str, typer.Option(help="How B is matched to A: " + SYMMETRY)] = "full",
    points: Annotated[int, typer.Option(help="Points on the line; odd, so that the midpoint is one.")] = 25,
    plane: Annotated[
        str | None, typer.Option(metavar="C", help="Draw the plane through A, matched B and matched C, too.")
    ] = None,
    grid: Annotated[int, typer.Option(help="Points a side of the plane.")] = 15,
    split: Annotated[str | None, typer.Option(help="The split of the data, like test.")] = None,
    samples: Annotated[int, typer.Option(help="Rows that are used, at most.")] = 1000,
    batch_size: Annotated[int, typer.Option(help="Rows at a time.")] = 32,
    seed: Annotated[int, typer.Option(help="Of which rows are used.")] = 0,
    device: Annotated[str, typer.Option(help="Where the models run: auto, cpu, cuda, ...")] = "auto",
    spec: SpecFile = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Draw loss and metric on the straight line from A to B, as they are and matched.

    Writes the picture (path.png), a page that needs nothing beside it (path.html), and the numbers (path.json).

    Example: cobasin path ./model-a ./model-b --data test.jsonl --out ./line
    """
    from cobasin import path_workflow, present_measures

    _declare(spec)
    request = path_workflow.Request(data, split, match, points, plane, grid, samples, batch_size, seed, device)
    _result(path_workflow.path_to_folder(a, b, out, request, overwrite), json, present_measures.path_report)


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
        app(prog_name="cobasin")
    except InputError as error:
        print("error:", " ".join(str(error).splitlines()), file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:
        if end.code == INTERRUPTED:  # what typer makes of a KeyboardInterrupt
            print("interrupted; no unfinished output was left behind", file=sys.stderr)
        raise
