"""The commands that show: inspect, methods and demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cobasin.cli.shared import Json, Overwrite, SpecFile, app, declare, path_of, result
from cobasin.errors import InputError


@app.command()
def inspect(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="The model to look at.")] = None,
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
    """Show the symmetries of a model, or all architectures.

    Its spaces, the group of each, the dimension of the whole group, and the types of the tensors.

    Example: cobasin inspect ./model-a

    Example: cobasin inspect --list

    Example: cobasin inspect ./model-a --propose > declaration.py

    Example: cobasin inspect ./model-a --spec declaration.py --check
    """
    from cobasin.presenting import progress, showing
    from cobasin.workflows import inspection

    if (model is None) != list_:
        raise InputError("name a model, or ask for the known architectures with --list (one of the two)")
    if list_ + check + propose > 1:
        raise InputError("--list, --check and --propose: one at a time")
    declare(spec)
    if model is None:
        with progress.status("making a type of every known class"):
            found = inspection.known_architectures()
        result({"architectures": found}, json, showing.architectures)
    elif propose:
        from cobasin.proposal import propose as propose_

        result({"model": model, "verified": False, "declaration": propose_(model)}, json, showing.proposal)
    elif check:
        from cobasin.proposal.checking import check_declaration

        with progress.status("running random elements of the group through the model"):
            checked = check_declaration(model)
        result({"model": model, **checked.to_dict()}, json, showing.check)
        raise typer.Exit(0 if checked.sound else 1)
    else:
        result(inspection.inspect(model), json, showing.inspection)


@app.command()
def methods(json: Json = False) -> None:
    """Show the merge methods.

    What each does, the parameters that it takes, what it needs, the paper that it is from.

    Example: cobasin methods --json
    """
    from cobasin.fusion.registry import methods as methods_
    from cobasin.presenting import showing

    result({"methods": [method.report for method in methods_().values()]}, json, showing.methods)


@app.command()
def demo(
    out: Annotated[
        Path,
        typer.Option(
            parser=path_of("--out"), metavar="PATH", help="Where to put the models, the picture and the numbers."
        ),
    ] = Path("demo-out"),
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Train two small models, match, verify and merge them.

    On real images, with a picture of what happened. Takes a few minutes on two cores and downloads nothing.

    Example: cobasin demo --out ./demo
    """
    from cobasin.demo import run, show

    result(run(out, overwrite=overwrite), json, show)
