"""Collect statistics of a model on data: one pass, streamed, resumable, kept in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cobasin.checkpoints.fingerprint import fingerprint
from cobasin.checkpoints.typed import Typed
from cobasin.data import Batches, task_of
from cobasin.errors import InputError
from cobasin.execution.devices import device_of
from cobasin.execution.outcomes import Keep
from cobasin.progress import Count, silent
from cobasin.statistics.activations import SAMPLED, Activations
from cobasin.statistics.fishers import Fishers
from cobasin.statistics.grams import Grams, InputGram
from cobasin.statistics.modules import built, linear_maps
from cobasin.statistics.slices import Collector, alone, together
from cobasin.statistics.store import Partial, Source, prepare, read, write

KINDS = {"fisher": ("seed",), "fisher_empirical": (), "grams": (), "activations": ("seed", "sampled")}
"""What can be collected, and the settings it depends on."""


def collect(
    kind: str,
    typed: Typed,
    batches: Batches,
    *,
    seed: int = 0,
    sampled: int = SAMPLED,
    device: str = "auto",
    cache: Path | None = None,
    progress: Count = silent,
    keep: Keep | None = None,
) -> dict[str, Any]:
    """Collect one kind of statistics of a model.

    The model runs in float32, a float64 model in float64. With ``cache``, the result is kept there in a file whose
    name depends on the model, the data and the settings, and read from it the next time. What was added up so far
    is kept beside it every minute, so that a run that was stopped goes on where it was, to the same result. Parts of
    one run keep the slices of the data instead, and do not read the file: a part that has it must not leave the others
    without its slices.

    Args:
        kind: ``fisher`` (labels drawn from the model), ``fisher_empirical`` (labels of the data): a tensor for
            every parameter; ``grams``: an `InputGram` for every linear map; ``activations``: float32 [sampled, n]
            for every module with a weight, at tokens that depend on the data and the seed alone; fewer rows of a module
            that has one output for a text, and a decoder's are of its own tokens.
        typed: the model.
        batches: the data, as inputs of the model.
        seed: of the labels that are drawn, or of the sample of tokens.
        sampled: the number of tokens whose activations are kept.
        device: where to run; ``auto`` leaves it to accelerate.
        cache: a folder for files of statistics.
        progress: called with the number of batches done, and of all.
        keep: where parts of one run find what the others have added up.

    Returns:
        By spec name.

    Raises:
        InputError: there is no such device; the model has no head to take the Fisher information of, or the data no
            labels; a file in ``cache`` is damaged or not what its name says; numbers became infinite.
    """
    settings = {"seed": seed, "sampled": sampled}
    if cache is None:
        return _run(kind, typed, batches, settings, device, None, progress, keep)
    own = {name: settings[name] for name in KINDS[kind]}
    source = Source(kind, fingerprint(typed.checkpoint), batches.digest, batches.rows, own)
    path = Path(cache) / source.file_name
    if path.exists() and not (keep is not None and keep.shared):
        return read(path, source)[0]
    prepare(path.parent)
    partial = Partial(path.with_name(f"{path.name}.partial"), source)
    result = _run(kind, typed, batches, settings, device, partial, progress, keep)
    write(path, source, result)
    partial.path.unlink(missing_ok=True)
    return result


def collector(kind: str, typed: Typed, device: torch.device, *, seed: int = 0, sampled: int = SAMPLED) -> Collector:
    """What collects statistics of that kind: the model is built, and moved to the device.

    Raises:
        InputError: as in `collect`.
    """
    model, holders = built(typed, typed, typed.checkpoint.running_dtype, device)
    if kind == "grams":
        return Grams(model, linear_maps(holders))
    if kind == "activations":
        return Activations(model, holders, sampled, seed)
    return Fishers(model, typed, task_of(typed.checkpoint), sampled=kind == "fisher", seed=seed)


def _run(
    kind: str,
    typed: Typed,
    batches: Batches,
    settings: Mapping[str, int],
    device: str,
    partial: Partial | None,
    progress: Count,
    keep: Keep | None,
) -> dict[str, Any]:
    """One pass over the data, or what is left of it."""
    sums = collector(kind, typed, device_of(device), **settings)
    rows = alone(sums, batches, partial, progress) if keep is None else together(sums, batches, keep, progress)
    result = sums.result(rows)
    for name, value in result.items():
        if not (value.matrix if isinstance(value, InputGram) else value).isfinite().all():
            raise InputError(
                f"{typed.checkpoint.label}: {kind} of {name}: has NaN or infinite values; the model overflows on this "
                "data"
            )
    return result
