"""Collect statistics of a model on data: one pass, streamed, resumable, kept in a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.fingerprint import fingerprint
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.weight_files import one_line
from cobasin.errors import InputError
from cobasin.evaluation.running import instantiate
from cobasin.statistics.activations import SAMPLED, Activations
from cobasin.statistics.fishers import Fishers
from cobasin.statistics.grams import Grams, InputGram
from cobasin.statistics.modules import holders_of, linear_maps
from cobasin.statistics.rows import row_count
from cobasin.statistics.store import Source, prepare, read, write

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from cobasin.data import Batches

KINDS = {"fisher": ("seed",), "fisher_empirical": (), "grams": (), "activations": ("seed", "sampled")}
"""What can be collected, and the settings it depends on."""

SAVE_EVERY = 60.0  # seconds


class Collector(Protocol):
    """Sums over the batches of a data set."""

    model: PreTrainedModel

    def add(self, inputs: Mapping[str, Tensor], labels: Tensor | None, row: int) -> None:
        """Add one batch, whose first row is row number ``row``."""

    def state(self) -> dict[str, Tensor]:
        """What was added up so far."""
        ...

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""

    def result(self, rows: int) -> dict[str, Any]:
        """The statistics by spec name."""
        ...


def collect(
    kind: str,
    typed: Typed,
    batches: Batches,
    *,
    seed: int = 0,
    sampled: int = SAMPLED,
    device: str = "auto",
    cache: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Collect one kind of statistics of a model.

    The model runs in float32, a float64 model in float64. With ``cache``, the result is kept there in a file whose
    name depends on the model, the data and the settings, and read from it the next time. What was added up so far
    is kept beside it every minute, so that a run that was stopped goes on where it was, to the same result.

    Args:
        kind: ``fisher`` (labels drawn from the model), ``fisher_empirical`` (labels of the data): a tensor for
            every parameter; ``grams``: an `InputGram` for every linear map; ``activations``: float32 [sampled, n]
            for every module with a weight.
        typed: the model.
        batches: the data, as inputs of the model.
        seed: of the labels that are drawn, or of the sample of tokens.
        sampled: the number of tokens whose activations are kept.
        device: where to run; ``auto`` leaves it to accelerate.
        cache: a folder for files of statistics.
        progress: called with the number of batches done, and of all.

    Returns:
        By spec name.

    Raises:
        InputError: there is no such device; the model has no head to take the Fisher information of, or the data no
            labels; a file in ``cache`` is damaged or not what its name says; numbers became infinite.
    """
    settings = {"seed": seed, "sampled": sampled}
    if cache is None:
        return _run(kind, typed, batches, settings, device, None, progress)
    own = {name: settings[name] for name in KINDS[kind]}
    source = Source(kind, fingerprint(typed.checkpoint), batches.digest, batches.rows, own)
    path = Path(cache) / source.file_name
    if path.exists():
        return read(path, source)[0]
    prepare(path.parent)
    partial = _Partial(path.with_name(f"{path.name}.partial"), source)
    result = _run(kind, typed, batches, settings, device, partial, progress)
    write(path, source, result)
    partial.path.unlink(missing_ok=True)
    return result


def collect_activations(
    model: Typed | Checkpoint, batches: Batches, rows: int, *, seed: int = 0, device: str = "auto"
) -> dict[str, Tensor]:
    """The outputs of every module with a weight at ``rows`` tokens: float32 [rows, n] by the weight's spec name.

    The tokens depend on the data and the seed alone. A module that has one output for a text gives fewer rows, a
    decoder gives those of its own tokens.

    Raises:
        InputError: as in `collect`.
    """
    typed = model if isinstance(model, Typed) else Typed.of(model)
    return collect("activations", typed, batches, seed=seed, sampled=rows, device=device)


def collector(kind: str, typed: Typed, device: torch.device, *, seed: int = 0, sampled: int = SAMPLED) -> Collector:
    """What collects statistics of that kind: the model is built, and moved to the device.

    Raises:
        InputError: as in `collect`.
    """
    model = instantiate(typed.checkpoint, typed.checkpoint.running_dtype)
    holders = holders_of(model, typed)
    nn.Module.to(model, device)
    if kind == "grams":
        return Grams(model, linear_maps(holders))
    if kind == "activations":
        return Activations(model, holders, sampled, seed)
    from cobasin.data import task_of

    return Fishers(model, typed, task_of(typed.checkpoint), sampled=kind == "fisher", seed=seed)


def device_of(name: str) -> torch.device:
    """The device of that name; of ``auto``, the one that accelerate chooses.

    Raises:
        InputError: there is none.
    """
    if name == "auto":
        from accelerate import PartialState

        name = str(PartialState().device)
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name!r} cannot be used here ({one_line(error)}); take cpu, or auto") from error


@dataclass
class _Partial:
    """What was added up so far, in a file."""

    path: Path
    source: Source

    def save(self, sums: Collector, done: int, row: int) -> None:
        """Keep what was added up from ``done`` batches with ``row`` rows."""
        write(self.path, self.source, sums.state(), done=done, row=row)

    def load(self, sums: Collector) -> tuple[int, int]:
        """Put it back, and say how many batches and rows it is of."""
        if not self.path.exists():
            return 0, 0
        state, notes = read(self.path, self.source)
        sums.resume(state)
        return notes["done"], notes["row"]


def _run(
    kind: str,
    typed: Typed,
    batches: Batches,
    settings: Mapping[str, int],
    device: str,
    partial: _Partial | None,
    progress: Callable[[int, int], None] | None,
) -> dict[str, Any]:
    """One pass over the data, or what is left of it."""
    place = device_of(device)
    sums = collector(kind, typed, place, **settings)
    done, row = (0, 0) if partial is None else partial.load(sums)
    report = progress or (lambda done, total: None)
    report(done, len(batches))
    saved = time.monotonic()
    for batch in batches.skip(done):
        inputs = {name: _to(value, place, sums.model.dtype) for name, value in batch.inputs.items()}
        sums.add(inputs, None if batch.labels is None else batch.labels.to(place), row)
        done, row = done + 1, row + row_count(inputs)
        report(done, len(batches))
        if partial is not None and done < len(batches) and time.monotonic() - saved >= SAVE_EVERY:
            partial.save(sums, done, row)
            saved = time.monotonic()
    result = sums.result(row)
    for name, value in result.items():
        if not (value.matrix if isinstance(value, InputGram) else value).isfinite().all():
            raise InputError(
                f"{typed.checkpoint.label}: {kind} of {name}: has NaN or infinite values; the model overflows on this "
                "data"
            )
    return result


def _to(value: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    return value.to(device, dtype) if value.is_floating_point() else value.to(device)
