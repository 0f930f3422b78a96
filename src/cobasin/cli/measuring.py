"""The commands that compare models: verify, compare, path."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cobasin.cli.shared import SYMMETRY, Json, Out, Overwrite, SpecFile, app, declare, path_of, result


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
    """Do A and B compute the same function?

    Both run on probe inputs made for the model type, in the files' dtype and in float64. They are the same where they
    differ by no more than four times what one rounding of the files changes (or by 5e-6), and different beyond twenty
    times that (and 1e-4). Exit code 0: the same, 1: different, 2: it cannot tell, or bad input.

    Example: cobasin verify ./model-b ./b-matched
    """
    from cobasin.presenting import measuring, progress
    from cobasin.verification import verify as verify_

    with progress.status("running both models on probe inputs"):
        verdict = verify_(a, b, tolerance)
    result({"a": a, "b": b, **verdict.to_dict()}, json, measuring.verdict)
    raise typer.Exit({True: 0, False: 1, None: 2}[verdict.same])


@app.command()
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A model.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one, of its class or with another head.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            parser=path_of("--out"),
            metavar="PATH",
            help="A folder for the picture (compare.png) and the numbers (compare.json).",
        ),
    ] = None,
    symmetry: Annotated[str, typer.Option(help="What is taken as equivalent: " + SYMMETRY)] = "gl",
    spec: SpecFile = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """How are A and B related?

    The same, sharing a base, sharing a basin, or independent; by their weights (the same: by their outputs, too).

    same: one is the other, maybe in another basis. share a base: fine-tunes, neurons in their places. share a basin:
    more in common than apart, once matched. independent: less, such as models from different seeds.

    Example: cobasin compare ./model-a ./model-b --out ./comparison
    """
    from cobasin.presenting import measuring
    from cobasin.workflows.compare import compare_models

    declare(spec)
    result(compare_models(a, b, symmetry, out, overwrite), json, measuring.compare_report)


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
    match: Annotated[str, typer.Option(help="How B is matched to A, by weights: " + SYMMETRY)] = "full",
    element: Annotated[
        str | None,
        typer.Option(
            help="A folder that cobasin match B A has written, or its element file: draws that match (by activations, "
            "learned, ...) in place of one by weights."
        ),
    ] = None,
    points: Annotated[int, typer.Option(help="Points on the line; an odd number, for a midpoint.")] = 25,
    plane: Annotated[
        str | None, typer.Option(metavar="C", help="Draw the plane through A, matched B and matched C, too.")
    ] = None,
    grid: Annotated[int | None, typer.Option(help="Points a side of the plane; 15 where not given.")] = None,
    split: Annotated[str | None, typer.Option(help="The split of the data, like test.")] = None,
    samples: Annotated[int, typer.Option(help="Rows that are used, at most.")] = 1000,
    batch_size: Annotated[int, typer.Option(help="Rows at a time.")] = 32,
    seed: Annotated[int, typer.Option(help="Of which rows are used.")] = 0,
    device: Annotated[
        str,
        typer.Option(help="Where the models run, and, where it is named, weights are matched: auto, cpu, cuda, ..."),
    ] = "auto",
    spec: SpecFile = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Draw loss and metric on the straight line from A to B.

    As they are, and with B matched to A. Writes the picture (path.png), a page that needs nothing beside it
    (path.html), and the numbers (path.json).

    Example: cobasin path ./model-a ./model-b --data test.jsonl --out ./line

    Example: cobasin path ./model-a ./model-b --element ./b-matched --data test.jsonl --out ./line
    """
    from cobasin.presenting import measuring
    from cobasin.workflows.path import Request, path_to_folder

    declare(spec)
    request = Request(data, split, match, element, points, plane, grid, samples, batch_size, seed, device)
    result(path_to_folder(a, b, out, request, overwrite), json, measuring.path_report)
