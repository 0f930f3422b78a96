"""The command that makes one model of several: merge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cobasin.cli.shared import (
    OUT,
    SYMMETRY,
    Address,
    Engine,
    Json,
    Overwrite,
    PartOf,
    Resume,
    SpecFile,
    app,
    declare,
    in_parts,
    one_part,
    result,
)
from cobasin.errors import InputError


@app.command()
def merge(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE.yaml | MODEL MODEL...",
            help="A recipe, or two models or more; BASE+ADAPTER is a base with a LoRA.",
        ),
    ],
    out: Annotated[Path | None, OUT] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="How to merge. Means: linear (the default), slerp, nuslerp, multislerp, karcher. One model towards "
            "another: nearswap, arcee_fusion. Of what was learned since a --base: task_arithmetic, ties, dare_linear, "
            "dare_ties, breadcrumbs, breadcrumbs_ties, della, della_linear, sce, ram, ramplus_tl, model_stock. With "
            "data, so by a recipe: fisher, regmean, regmean++. By optimal transport: ot_wts; with data, ot_acts, "
            "ot_acts_emd. By a recipe with slices also passthrough, which stacks layers."
        ),
    ] = None,
    weights: Annotated[str | None, typer.Option(help="One number a model, like 0.7,0.3; by default 1 each.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A parameter of the method, like t=0.5; a list, like t=[0,0.5,1], runs over the layers."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of methods that draw random numbers, as DARE and DELLA do; by default 0.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="The model that the others were trained from; it is matched, too.")
    ] = None,
    tokenizer_source: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL|base|union",
            help="Whose tokenizer the result has. Where vocabularies differ, the models are brought to this one; "
            "'union': that of the model that gives the other files (by default the base, or the first), with what the "
            "others have added.",
        ),
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
    device: Annotated[
        str | None,
        typer.Option(
            help="Where weights are matched (by default on the CPU), and where --repair and --heal run: cpu, cuda, "
            "cuda:1, ...; of a recipe, what it says."
        ),
    ] = None,
    head_from: Annotated[
        str | None, typer.Option(help="Do not merge the task heads, but take that of this model.")
    ] = None,
    keep_heads: Annotated[
        bool, typer.Option("--keep-heads", help="Write one folder a model, with the merged body and its own task head.")
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="After the merge, reset the statistics of its norms to those between the models (REPAIR)."
        ),
    ] = False,
    heal: Annotated[
        int | None,
        typer.Option(
            metavar="STEPS",
            help="In the end, train the merged model for so many steps, at most, to answer as the models do on average "
            "(in a recipe also against labels).",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="The inputs of --repair and --heal, as for match; they are made up otherwise."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check all that can be checked without reading weights, and print the plan."),
    ] = False,
    resume: Resume = False,
    part: PartOf = None,
    engine: Engine = "local",
    address: Address = "auto",
    spec: SpecFile = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Match models to each other, and merge them.

    Writes a folder that from_pretrained loads. Options say how to merge, or a recipe does: a YAML file in mergekit's
    grammar, with match: (how the models are matched), statistics: (the data that fisher, regmean and ot_acts read),
    repair: and heal: added. A recipe without match: merges its models as they are. --match, --anchor, --device,
    --head-from and --keep-heads override a recipe.

    Example: cobasin merge ./model-a ./model-b --out ./merged

    Example: cobasin merge ./model-a ./model-b --method ties --base ./base --set density=0.3 --out ./merged

    Example: cobasin merge ./base+./lora-1 ./base+./lora-2 --match none --out ./merged

    Example: cobasin merge ./model-a ./model-b --repair --heal 100 --data train.jsonl --out ./merged

    Example: cobasin merge recipe.yaml --match full --out ./merged

    Example: cobasin merge recipe.yaml --dry-run
    """
    from cobasin.presenting.merging import merge_report, plan
    from cobasin.recipe.options import Options, recipe_of
    from cobasin.workflows import merge as merging

    options = Options(
        method=method,
        weights=weights,
        set=set_ or [],
        seed=seed,
        base=base,
        tokenizer_source=tokenizer_source,
        match=match,
        anchor=anchor,
        device=device,
        head_from=head_from,
        keep_heads=keep_heads,
        repair=repair,
        heal=heal,
        data=data,
    )
    recipe, read = recipe_of(models, options), [*models, *([] if data is None else [data])]
    if dry_run:
        declare(spec)
        one, on_ray = one_part(part, engine, address, resume), engine == "ray"
        how = {"resume": resume or on_ray, "part": (1, 1) if on_ray else one}
        result(merging.plan_of(recipe, out, overwrite, read, **how), json, plan)
        return
    if out is None:
        raise InputError("--out is missing: name the folder to write, or ask for the plan with --dry-run")

    def work(**how: Any) -> dict:
        declare(spec)
        return merging.merge_to_folder(recipe, out, overwrite, read, **how)

    in_parts(work, part, engine, address, resume, json, merge_report)
