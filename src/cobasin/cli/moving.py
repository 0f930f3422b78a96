"""The commands that move models: match, apply, transport."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cobasin.cli.shared import (
    SYMMETRY,
    Address,
    Engine,
    Json,
    Out,
    Overwrite,
    PartOf,
    Resume,
    SpecFile,
    app,
    declare,
    in_parts,
    path_of,
    result,
)


@app.command()
def match(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The model to transform.")],
    anchor: Annotated[
        str, typer.Argument(metavar="ANCHOR", help="The model to bring it close to; it is never changed.")
    ],
    out: Out,
    symmetry: Annotated[str, typer.Option(help=SYMMETRY)] = "full",
    layers: Annotated[
        str | None, typer.Option(help="Only these layers, like 0-4,7; leaves the residual stream alone.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="'weights'; 'activations' (weights, and what both models compute on the same inputs); 'learned' (from "
            "there, the models between the two learn; see --loss)."
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
        int | None,
        typer.Option(
            help="Inputs that are used, at most; by default 256 for activations (of texts that are made up 128), and "
            "to learn all of --data, or 32768 that are made up (of texts 1024)."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the inputs, and of what is random in learning.")] = 0,
    steps: Annotated[
        int, typer.Option(help="Steps of learning, at most; it ends earlier where held-out inputs gain nothing more.")
    ] = 1000,
    loss: Annotated[
        str,
        typer.Option(
            help="What is learned: 'parents' (to answer as the two models do on average; needs no labels) or 'labels' "
            "(those of --data)."
        ),
    ] = "parents",
    orders: Annotated[
        bool,
        typer.Option(
            "--orders", help="Learn the orders of FFN neurons, too; slower, and no better where it was tried."
        ),
    ] = False,
    anchor_out: Annotated[
        Path | None,
        typer.Option(
            parser=path_of("--anchor-out"),
            metavar="PATH",
            help="Learn with the anchor's scales and general maps moving, too, and write it here, its function "
            "unchanged: average the two folders that are written.",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            help="Where activations and learned run the models, and, where it is named, weights are matched: auto, "
            "cpu, cuda, cuda:1, ..."
        ),
    ] = "auto",
    resume: Resume = False,
    part: PartOf = None,
    engine: Engine = "local",
    address: Address = "auto",
    spec: SpecFile = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Bring SOURCE close to ANCHOR, its function unchanged.

    Of all models that compute what SOURCE computes, this finds one close to ANCHOR: neurons and heads in another order,
    heads and the residual stream in another basis. Two LoRAs (PEFT folders) of one base are matched in their ranks.

    Writes an ordinary model folder of the same architecture and dtype, with the transformation
    (cobasin.safetensors) and a report (cobasin.json) beside it. Average it with the anchor with any tool,
    by cobasin merge --match none where a note says that its output head was untied.

    Example: cobasin match ./model-b ./model-a --out ./b-matched

    Example: cobasin match ./model-b ./model-a --method learned --symmetry gl --out ./b-matched

    Example: cobasin match ./model-b ./model-a --method learned --data train.jsonl --out ./b-matched

    Example: cobasin match ./lora-1 ./lora-2 --out ./lora-1-matched
    """
    from cobasin.presenting import moving
    from cobasin.workflows import match as matching

    search = {"method": method, "data": data, "samples": samples, "seed": seed, "steps": steps, "loss": loss}
    search |= {"orders": orders, "device": device, "anchor_out": anchor_out}

    def work(**how: Any) -> dict:
        declare(spec)
        return matching.match_to_folder(source, anchor, out, symmetry, layers, overwrite, **search, **how)

    in_parts(work, part, engine, address, resume, json, moving.match_report)


@app.command(name="apply")
def apply_(
    element: Annotated[
        str, typer.Argument(metavar="ELEMENT", help="A folder that cobasin match has written, or its element file.")
    ],
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A model with the element's layers, or a LoRA (PEFT folder) of its source."
        ),
    ],
    out: Out,
    base: Annotated[
        str | None, typer.Option(help="The base of the LoRA; by default the folder that its adapter_config.json names.")
    ] = None,
    spec: SpecFile = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Move a model or a LoRA as a match moved its source.

    MODEL keeps its function, and is in the basis of the anchor that ELEMENT was found for. A LoRA moves with its base:
    on the matched model it computes what it did on the source.

    Example: cobasin apply ./b-matched ./lora-of-b --out ./lora-matched
    """
    from cobasin.presenting import moving
    from cobasin.workflows.apply import apply_to_folder

    declare(spec)
    result(apply_to_folder(element, model, out, base, overwrite), json, moving.apply_report)


@app.command()
def transport(
    base: Annotated[str, typer.Argument(metavar="BASE", help="What the fine-tune started from.")],
    tuned: Annotated[
        str, typer.Argument(metavar="TUNED", help="The fine-tune: a model, or a LoRA (PEFT folder) of the base.")
    ],
    new: Annotated[
        str,
        typer.Argument(metavar="NEW", help="The base to carry it to, of BASE's class; TUNED may have another head."),
    ],
    out: Out,
    element: Annotated[
        str | None,
        typer.Option(
            help="A folder that cobasin match BASE NEW has written, or its element file: where the bases are matched "
            "by another method than weights, or in a run that can be resumed."
        ),
    ] = None,
    symmetry: Annotated[str, typer.Option(help=SYMMETRY)] = "full",
    scale: Annotated[float, typer.Option(help="Add so many times what was learned; a LoRA has its own scale.")] = 1.0,
    spec: SpecFile = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Carry what TUNED has learned since BASE to another base.

    Writes NEW + SCALE x (TUNED - BASE), where TUNED and BASE are first moved by what matches BASE to NEW; of a LoRA a
    LoRA for NEW. Between bases that were trained independently only a part of what was learned arrives: measure it.

    Example: cobasin transport ./base-v1 ./my-fine-tune ./base-v2 --out ./my-fine-tune-v2

    Example: cobasin transport ./base-v1 ./my-lora ./base-v2 --element ./base-v1-matched --out ./my-lora-v2
    """
    from cobasin.presenting import moving
    from cobasin.workflows.transport import transport_to_folder

    declare(spec)
    report = transport_to_folder(base, tuned, new, out, element, symmetry, scale, overwrite)
    result(report, json, moving.transport_report)
