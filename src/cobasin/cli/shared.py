"""What the commands share: the app, options, and how a result is shown."""

from __future__ import annotations

import json as jsonlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from cobasin import __version__
from cobasin.errors import InputError
from cobasin.paths import expanded

Show = Callable[[dict], None]

app = typer.Typer(
    name="cobasin",
    epilog="Models are Hugging Face folders or hub ids (org/name, org/name@revision). Every command takes --json for "
    "one machine-readable object on standard output; progress and messages go to standard error. Exit codes: 0 done, "
    "1 a no of verify or of inspect --check, 2 bad input (one line, nothing written) or undecided, 70 a defect of "
    "cobasin, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"cobasin {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Bring trained transformers into one basin, prove that their function did not change, then merge them.

    Example: cobasin match ./model-b ./model-a --out ./b-matched

    Example: cobasin verify ./model-b ./b-matched

    Example: cobasin merge ./model-a ./model-b --out ./merged
    """


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output instead of a table.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output folder if it is not empty.")]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on where the same command was interrupted, with what it had finished (it starts anew where there is "
        "nothing), and keep what is finished if this one is interrupted, too. Matching by activations starts anew; "
        "not with --repair and --heal.",
    ),
]
PartOf = Annotated[
    str | None,
    typer.Option(
        "--part",
        metavar="I/N",
        help="Do part I of N of the work, in a hidden folder beside --out that all N share (on other machines, too); "
        "what they have done is gathered by the same command with --resume in place of --part. Not with methods of "
        "matching that run models, --repair, --heal and --keep-heads.",
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        help="'local', or 'ray': the parts run on the nodes of a Ray cluster that share this folder (pip install "
        "'cobasin[ray]')."
    ),
]
Address = Annotated[str, typer.Option(help="Of the Ray cluster; 'auto' is the one that this machine belongs to.")]
SpecFile = Annotated[
    Path | None,
    typer.Option(
        "--spec",
        help="A Python file of yours that declares architectures; it is run. No code is taken from a model folder.",
    ),
]


def path_of(option: str) -> Callable[[str], Path]:
    """How an option's path is read; messages call it by the option."""

    def parse(path: str) -> Path:
        return expanded(path, option)

    return parse


OUT = typer.Option(
    "--out", parser=path_of("--out"), metavar="PATH", help="The folder to write. It appears only when complete."
)
Out = Annotated[Path, OUT]
SYMMETRY = (
    "'full' (all symmetries of the architecture, isometries in the heads), 'gl' (full, and any invertible map in the "
    "heads where the architecture allows it), 'paper' (Zhang et al. 2025: FFN permutation, attention rotation and "
    "scale), or a list out of: ffn, experts, heads, attention, scale, residual, residual-order (the residual stream by "
    "permutations only, no norm folded)."
)


def declare(spec: Path | None) -> None:
    """Take up the declarations of a user's file."""
    if spec is not None:
        from cobasin.architectures import load_file

        load_file(spec)


def one_part(part: str | None, engine: str, address: str, resume: bool) -> tuple[int, int] | None:
    """The part that is asked for; None for all of a work.

    Raises:
        InputError: these do not go together, or there is none such.
    """
    from cobasin.execution.parts import read_part

    if engine not in ("local", "ray"):
        raise InputError(f"--engine {engine}: expected local or ray")
    if engine == "local" and address != "auto":
        raise InputError(f"--address {address}: is that of a Ray cluster; it goes with --engine ray")
    if part is not None and resume:
        raise InputError(f"--part {part}: goes without --resume, which gathers the parts")
    if part is not None and engine != "local":
        raise InputError(f"--part {part}: goes without --engine {engine}, which makes parts of its own")
    return None if part is None else read_part(part)


def in_parts(
    work: Callable[..., dict], part: str | None, engine: str, address: str, resume: bool, json: bool, show: Show
) -> None:
    """Do a work, or one part of it, or its parts on a cluster and then what is left; and print the report.

    Args:
        work: takes ``resume``, and ``part``: None for all of it.
        part, engine, address, resume: as given.
        json, show: see `result`.
    """
    from cobasin.presenting.moving import part_report

    one = one_part(part, engine, address, resume)
    if engine == "ray":
        from cobasin.execution.cluster import on_ray

        on_ray(work, address)
    report = work(resume=resume or engine == "ray", part=one)
    result(report, json, show if one is None else part_report)


def result(report: dict, json: bool, show: Show) -> None:
    """Print a report, as JSON or by ``show``; the exit code stays that of the work where nobody reads to the end.

    Raises:
        InputError: it cannot be written.
    """
    if sys.stdout is None:  # closed before the start
        return
    try:
        if json:
            print(jsonlib.dumps(report, allow_nan=False))
        else:
            show(report)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left would be written at exit
        if not isinstance(error, BrokenPipeError):
            raise InputError(
                f"standard output cannot be written: {error.strerror}; what was to be written to files is there"
            ) from error
