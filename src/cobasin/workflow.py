"""What the commands do: check, match, write, verify, report."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import torch

from cobasin import __version__, card, present
from cobasin.api import match, merge, transform
from cobasin.checkpoint import Checkpoint, load
from cobasin.errors import InputError
from cobasin.symmetry.element import Element
from cobasin.verification import verify
from cobasin.writer import check_output, save

# above this the two float64 models that verification builds would be the largest thing in memory by far
VERIFIED_PARAMETERS = 100_000_000


def match_to_folder(source: str, anchor: str, out: Path, symmetry: str, layers: str | None, overwrite: bool) -> dict:
    """Match, write the matched model with its element and report; returns the report."""
    models = load(source), load(anchor)
    check_output(out, overwrite, [model.folder for model in models])
    with present.rounds(f"matching {source} to {anchor}") as progress:
        element = match(*models, symmetry=symmetry, layers=layers, progress=progress)
    report = {"cobasin": __version__, "source": source, "anchor": anchor, "out": str(out), **element.report}
    report |= _evidence(element, models[0])
    _save(
        transform(element, models[0]),
        out,
        overwrite,
        {
            "cobasin.safetensors": element.save,
            "cobasin.json": json.dumps(report, indent=2),
            "README.md": card.matched(report),
        },
    )
    return report


def merge_to_folder(
    models: list[str], out: Path, weights: str | None, symmetry: str, head_from: str | None, overwrite: bool
) -> dict:
    """Match, average and write; returns the report."""
    head = None if head_from is None else _position(head_from, models)
    shares = [1.0] * len(models) if weights is None else _numbers(weights)
    loaded = [load(model) for model in models]
    check_output(out, overwrite, [model.folder for model in loaded])
    with present.rounds(f"matching to {models[0]}") as progress:
        merged = merge(loaded, shares, symmetry, head, progress=progress)
    matches = [
        {"source": name, **element.report, **_evidence(element, model)}
        for name, model, element in zip(models[1:], loaded[1:], merged.elements, strict=True)
        if element is not None
    ]
    report = {
        "cobasin": __version__,
        "models": models,
        "weights": [share / sum(shares) for share in shares],
        "match": symmetry,
        "head_from": None if head is None else models[head],
        "out": str(out),
        "matches": matches,
    }
    files: dict[str, Callable[[Path], None] | str] = {
        "cobasin.json": json.dumps(report, indent=2),
        "README.md": card.merged(report),
    }
    for i, element in enumerate(merged.elements, start=1):
        if element is not None:
            files[f"cobasin-{i}.safetensors"] = element.save
    _save(merged.checkpoint, out, overwrite, files)
    return report


def _evidence(element: Element, source: Checkpoint) -> dict:
    """What shows that the function is kept: the group's own equations; for all but large models logits in float64."""
    evidence: dict = {"deviation_from_group": element.deviation()}
    parameters = sum(math.prod(header.shape) for header in source.headers.values())
    if parameters > VERIFIED_PARAMETERS:
        return evidence | {"verification": None}
    with present.status("verifying the function in float64"):
        verdict = verify(source, transform(element, source, torch.float64))
    if verdict.same is False:
        raise RuntimeError(f"the matched model computes another function ({verdict.reason}): a wrong declaration?")
    return evidence | {"verification": verdict.to_dict()}


def _save(checkpoint: Checkpoint, out: Path, overwrite: bool, files: dict) -> None:
    size = sum(math.prod(header.shape) * header.dtype.itemsize for header in checkpoint.headers.values())
    with present.bar(f"writing {out}", size) as progress:
        save(checkpoint, out, files=files, overwrite=overwrite, progress=progress)


def _position(model: str, models: list[str]) -> int:
    """Which of the models it is; a folder may be written in several ways, like ./a and a/."""
    paths = [Path(one) for one in models]
    if Path(model) not in paths:
        raise InputError(f"--head-from {model}: expected one of the models to merge: {', '.join(models)}")
    return paths.index(Path(model))


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"weights {text!r}: expected numbers like 0.7,0.3") from None
