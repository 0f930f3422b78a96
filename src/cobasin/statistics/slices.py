"""Sums over the batches of a data set, slice by slice: a slice is a job, and other parts of a run may do it.

Every slice is summed by itself, and the slices are joined in their order. So the result is the same, whoever has summed
which of them: to the last bit, where processors are alike.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from cobasin.execution.outcomes import Keep, Outcome, found_by
from cobasin.progress import Count
from cobasin.statistics.rows import row_count
from cobasin.symmetry.keys import Key
from cobasin.symmetry.state import on_cpu

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from cobasin.data import Batches
    from cobasin.statistics.store import Partial

SLICES = 16  # of a data set, whoever sums them; fewer, where there are fewer batches
SAVE_EVERY = 60.0  # seconds
_SUMS: Key = ("sums",)

Sums = dict[str, Tensor]


class Collector(Protocol):
    """Sums over the batches of a data set."""

    model: PreTrainedModel

    def look(self, inputs: Mapping[str, Tensor]) -> None:
        """Tell from the first batch what has to be known of a run of the model; done once, in every part alike."""

    def add(self, inputs: Mapping[str, Tensor], labels: Tensor | None, row: int) -> None:
        """Add one batch, whose first row is row number ``row``."""

    def state(self) -> Sums:
        """What was added up so far."""
        ...

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there; from nothing, where there is nothing in it."""

    def joined(self, total: Sums, more: Sums) -> Sums:
        """What was added up of some rows and of those after them; ``total`` may be changed."""
        ...

    def result(self, rows: int) -> dict[str, Any]:
        """The statistics by spec name."""
        ...


def alone(sums: Collector, batches: Batches, partial: Partial | None, report: Count) -> int:
    """Add up all batches; returns how many rows these have.

    Args:
        sums: afterwards it holds the sums.
        batches: the data.
        partial: where to keep what was added up, every minute, and to go on from.
        report: called with the number of batches done, and of all.
    """
    total, own, done, row = ({}, {}, 0, 0) if partial is None else partial.load()
    report(done, len(batches))
    _look(sums, batches)
    saved = time.monotonic()
    for span in _slices(len(batches)):
        in_total = span.stop < done or (span.stop == done and not own)  # the last that was finished may still be apart
        if in_total:
            continue
        sums.resume(own)
        for rows in _adding(sums, batches, range(done, span.stop)):
            done, row = done + 1, row + rows
            report(done, len(batches))
            if partial is not None and done < len(batches) and time.monotonic() - saved >= SAVE_EVERY:
                partial.save(total, sums.state(), done, row)
                saved = time.monotonic()
        total, own = sums.joined(total, on_cpu(sums.state())), {}
    sums.resume(total)
    return row


def together(sums: Collector, batches: Batches, keep: Keep, report: Count) -> int:
    """`alone`, but with other parts of the run, which find each other's slices in ``keep``; or with what these left."""
    slices, ran, total, row = _slices(len(batches)), 0, {}, 0
    report(0, len(batches))
    _look(sums, batches)

    def of_slice(number: int) -> Outcome:
        nonlocal ran
        sums.resume({})
        rows = 0
        for more in _adding(sums, batches, slices[number]):
            rows, ran = rows + more, ran + 1
            report(ran, len(batches))
        return Outcome({_SUMS: on_cpu(sums.state())}, {}, {"rows": rows})

    def slice_(number: int) -> Outcome:
        return found_by(keep, f"slice-{number}", number, lambda: of_slice(number))

    for number in range(len(slices)):
        if keep.shared and keep.owns(number):
            slice_(number)
    for number in range(len(slices)):
        found = slice_(number)
        total = sums.joined(total, dict(found.values.get(_SUMS, {})))  # of no tensor there is no entry
        row += found.says["rows"]
    report(len(batches), len(batches))
    sums.resume(total)
    return row


def added(total: Sums, more: Sums) -> Sums:
    """Sums of tensors, joined; ``total`` is changed."""
    for name, tensor in more.items():
        total[name] = total[name].add_(tensor) if name in total else tensor
    return total


def _adding(sums: Collector, batches: Batches, span: range) -> Iterator[int]:
    """Add the batches of these numbers; after each one, the number of its rows."""
    for number, batch in zip(span, islice(batches.skip(span.start), len(span)), strict=True):
        there = batch.to(sums.model.device, sums.model.dtype)
        sums.add(there.inputs, there.labels, number * batches.size)
        yield row_count(there.inputs)


def _look(sums: Collector, batches: Batches) -> None:
    sums.look(next(iter(batches)).to(sums.model.device, sums.model.dtype).inputs)


def _slices(count: int) -> list[range]:
    """So many batches, in consecutive slices."""
    slices = min(SLICES, count)
    return [range(count * i // slices, count * (i + 1) // slices) for i in range(slices)]
