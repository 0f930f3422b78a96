"""The verbs, for Python: match and merge."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cobasin.checkpoint import Checkpoint, load
from cobasin.errors import InputError
from cobasin.fusion.average import average
from cobasin.matching.choice import Choice
from cobasin.matching.state import Match
from cobasin.matching.weights import ascend
from cobasin.symmetry.balance import conditions, keep_bases
from cobasin.symmetry.canonical import frames_as_gauge, frames_of, gains_of, gauge_of, obstacles
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import Form, form_of
from cobasin.symmetry.spec import Key
from cobasin.symmetry.state import Lazy, State, squared_distance
from cobasin.typed import Typed, check_pair

Progress = Callable[[int, float], None]
COARSE = 0.5  # relative: rounding that a map makes so large is worth a note


def match(
    source: Any,
    anchor: Any,
    symmetry: str = "full",
    layers: str | None = None,
    progress: Progress | None = None,
) -> Element:
    """Find the function-preserving transformation that brings ``source`` closest to ``anchor``.

    Args:
        source, anchor: anything `load` takes; of one architecture, configuration and vocabulary.
        symmetry: ``full``, ``gl`` (full, with any invertible map in place of the orthogonal ones where the
            architecture allows it), ``paper``, or a list out of ffn, heads, attention, scale, residual.
        layers: restrict it to layers, like ``"0-4,7"``; the residual stream is then left alone.
        progress: called after every round with its number and the squared distance.

    Returns:
        The element; its ``report`` has the distances before and after, in all and per space, the number of
        rounds and the seconds taken.

    Raises:
        InputError: for models that cannot be matched, before any tensor is read; for NaN or infinite values.
    """
    pair = Typed.of(load(source)), Typed.of(load(anchor))
    return _match(*pair, Choice.parse(symmetry, layers), symmetry, progress)[0]


def _match(
    source: Typed, anchor: Typed, choice: Choice, symmetry: str, progress: Progress | None = None
) -> tuple[Element, Typed]:
    """The element, and the source as the element acts on it (untied, where that was needed)."""
    started = time.perf_counter()
    check_pair(source, anchor)
    choice.check(source.spec)
    excluded = source.heads if source.labels != anchor.labels else []
    form, source, anchor, notes = _form(source, anchor, choice)
    before = _distance(source, anchor, excluded)
    if excluded:
        notes.append("the label sets differ: the task heads were moved along, but not compared")
    state = Match(form, choice, source, anchor, excluded)
    if not state.groups:
        raise InputError(
            f"symmetry {symmetry!r} leaves nothing free in {source.spec.architecture}"
            + ("" if choice.layers is None else " with these layers (the residual stream runs through all of them)")
        )
    first = dict(state.distances)
    clock, cpu = time.perf_counter(), time.process_time()
    ascent = ascend(state, progress)
    clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
    ends = gauge_of(form, source), gauge_of(form, anchor)
    own, others = (frames_of(form, end) for end in ends)
    others = keep_bases(form, state.values, own, others)
    ends[1].update(frames_as_gauge(others))
    for name in excluded:  # a head keeps its own gauge: the anchor's has other labels
        ends[1].update({key: value.clone() for key, value in ends[0].items() if key.split(":")[0] == name})
    element = Element(form, state.values, *ends)
    report = {
        "symmetry": symmetry,
        "distance_before": before,
        "distance_after": _distance(element.apply(source), anchor, excluded),
        "objective": [math.sqrt(value) for value in ascent.history],
        "spaces": {
            ".".join(map(str, key)): {
                "before": math.sqrt(sum(first[name] for name in state.tensors_of([key]))),
                "after": math.sqrt(sum(state.distances[name] for name in state.tensors_of([key]))),
            }
            for key in state.groups
        },
        "rounds": ascent.rounds,
        "ascent_seconds": clock,
        "ascent_cpu_seconds": cpu,
        "seconds": time.perf_counter() - started,
        "notes": notes,
    }
    if form.balanced:
        report["condition"] = _worst(conditions(form, state.values, own, others))
        notes += _amplification(max(report["condition"].values()), source)
    carried = [norm.bias for norm in form.norms if norm.bias and any(map(form.carries_offset, norm.readers))]
    if carried and report["distance_after"] > before:
        notes.append(
            f"the files are further apart than before, the models are closer: readers without a bias carry "
            f"{carried[0]} along a long vector; in bfloat16 it costs digits"
        )
    return replace(element, report=report), source


def _worst(figures: dict[Key, float]) -> dict[str, float]:
    """The largest figure of every space."""
    worst: dict[str, float] = {}
    for key, figure in figures.items():
        worst[str(key[0])] = max(worst.get(str(key[0]), 0.0), figure)
    return worst


def _amplification(condition: float, model: Typed) -> list[str]:
    """A note where a map of this condition would make the rounding of the model's file visible."""
    headers = model.checkpoint.headers.values()
    rounding = condition * max(torch.finfo(h.dtype).eps for h in headers if h.dtype.is_floating_point)
    if rounding <= COARSE:
        return []
    return [
        f"a map of condition {condition:.1e} amplifies the rounding of the file to {rounding:.1e}: convert the models "
        "to float32 first, or match with --symmetry full"
    ]


def _form(source: Typed, anchor: Typed, choice: Choice) -> tuple[Form, Typed, Typed, list[str]]:
    """The canonical form to match in; folding the norms in front of a tied head unties it."""
    fix = partial(
        form_of,
        free_biases=not choice.paper,
        balanced=choice.general,
        parts=choice.parts,
        layers=choice.layers,
    )
    plain = fix(source.spec)
    if "residual" not in choice.parts or not source.spec.norms:
        return plain, source, anchor, []
    unties = source.spec.unties or anchor.spec.unties
    ends = (source.untied(), anchor.untied()) if unties else (source, anchor)
    form = fix(ends[0].spec, folded=True)
    if found := obstacles(form, gains_of(form, ends[0]), gains_of(form, ends[1])):
        note = "; ".join(found)
        return plain, source, anchor, [f"residual stream matched by permutation only: {note}"]
    notes = []
    if unties:
        notes.append(
            "the output head is untied from the embedding; to average with the tied anchor, give both originals to "
            "cobasin merge"
        )
    return form, *ends, notes


def _distance(a: State, b: Typed, excluded: Sequence[str] = ()) -> float:
    """Euclidean distance over all tensors that are neither tied nor excluded."""
    counted = (name for name in b if name not in b.spec.tied and name not in excluded)
    return math.sqrt(sum(squared_distance(a[name], b[name]) for name in counted))


@dataclass(frozen=True)
class Merge:
    """A merged model and how it came about.

    Attributes:
        checkpoint: the merged model, computed as it is read.
        elements: for every model after the first, the element that matched it to the first; None unmatched.
    """

    checkpoint: Checkpoint
    elements: list[Element | None]


def merge(
    models: Sequence[Any],
    weights: Sequence[float] | None = None,
    symmetry: str = "full",
    head_from: int | None = None,
    progress: Progress | None = None,
) -> Merge:
    """Match every model to the first, then take the weighted average.

    Args:
        models: anything `load` takes; of one architecture, configuration and vocabulary. The result has the
            dtypes, the sharding and the other files of the first (of the one that gives the head, if named).
        weights: one a model, normalised to sum to one; equal by default.
        symmetry: as in `match`, or ``none`` to average the models as they are.
        head_from: index of the model whose task head is taken instead of the average of all.
        progress: as in `match`.

    Raises:
        InputError: as in `match`; for weights that do not fit; for task heads of different label sets without
            ``head_from``.
    """
    typed = [Typed.of(load(model)) for model in models]
    for other in typed[1:]:
        check_pair(other, typed[0])
    shares = _shares(weights, len(typed))
    _check_heads(typed, head_from)
    choice = None if symmetry == "none" else Choice.parse(symmetry)
    states: list[State] = list(typed)
    elements: list[Element | None] = [None] * (len(typed) - 1)
    for i, other in enumerate(typed[1:], start=1):
        if choice is not None:
            elements[i - 1], typed[i] = element, _ = _match(other, typed[0], choice, symmetry, progress)
            states[i] = element.apply(typed[i])
    if not all(model.spec.unties for model in typed):
        untied = [model.untied() if model.spec.unties else model for model in typed]
        states = [new if state is old else state for new, old, state in zip(untied, typed, states, strict=True)]
        typed = untied
    base = typed[head_from or 0]
    own = set() if head_from is None else set(base.heads)

    def merged(name: str) -> Tensor:
        if name in own:
            return states[head_from or 0][name]
        return average([state[name] for state in states], shares)

    return Merge(base.derived(Lazy(base, merged)), elements)


def _shares(weights: Sequence[float] | None, count: int) -> list[float]:
    """Weights that sum to one."""
    if count < 2:
        raise InputError(f"a merge needs two models or more, got {count}")
    weights = [1.0] * count if weights is None else list(weights)
    if len(weights) != count:
        raise InputError(f"{len(weights)} weights for {count} models; give one a model")
    if not all(map(math.isfinite, weights)) or sum(weights) <= 0:
        raise InputError(f"weights {weights}: expected finite numbers with a positive sum")
    return [weight / sum(weights) for weight in weights]


def _check_heads(models: Sequence[Typed], head_from: int | None) -> None:
    different = next((model for model in models if model.labels != models[0].labels), None)
    if different is not None and head_from is None:
        raise InputError(
            f"the task heads of {models[0].checkpoint.label} and {different.checkpoint.label} have different "
            "labels and cannot be averaged; name the model whose head to take (--head-from MODEL)"
        )
