"""Two adapters of one base: what each adds is a product B A, the same for every invertible map between the factors."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from cobasin.adapters.folder import FACTOR, Adapter, in_dtype, load_adapter
from cobasin.adapters.layers import RANK
from cobasin.errors import InputError
from cobasin.matching.choice import Choice
from cobasin.matching.state import Match
from cobasin.matching.weights import ascend
from cobasin.progress import Progress, progress_of, rounds
from cobasin.symmetry.balance import keep_bases
from cobasin.symmetry.canonical import frames_as_gauge, frames_of, gauge_of
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from cobasin.symmetry.spec import Space, Spec
from cobasin.symmetry.state import apart

LORA = "LoRA"  # in the place of an architecture


def match_adapters(
    source: str | Path | Adapter, anchor: str | Path | Adapter, progress: Progress | None = None
) -> Element:
    """The invertible maps between the factors of ``source`` that bring it closest to ``anchor``.

    Both sides of every rank are brought to the balanced basis and matched there by isometries; the result is written in
    the anchor's basis.

    Args:
        source, anchor: PEFT folders, or adapters read from them.
        progress: see `Progress`.

    Raises:
        InputError: where the two do not adapt the same weights with the same ranks.
    """
    started = time.perf_counter()
    progress = progress_of(progress)
    source, anchor = load_adapter(source), load_adapter(anchor)
    _check_pair(source, anchor)
    form = form_of(rank_spec(source), balanced=True)
    ends = [_tensors(adapter) for adapter in (source, anchor)]
    match = Match.of(form, Choice(frozenset({"rank", "scale"}), general=True), *ends)
    first = dict(match.distances)
    history = ascend(match, rounds(progress)).history
    own, target = (gauge_of(form, end) for end in ends)
    factors = _factors(source)
    frames = (frames_of(form, gauge) for gauge in (own, target))
    # a module that has no balanced basis, such as one whose B is zero, keeps its own: the inverse finds none either
    target |= frames_as_gauge(keep_bases(form, match.values, *frames))
    element = Element(form, match.values, own, target)
    report = {
        "symmetry": "gl",
        "distance_before": apart(ends[0], ends[1], ends[1]),
        "distance_after": apart(element.apply(ends[0]), ends[1], ends[1]),
        "objective": [math.sqrt(value) for value in history],
        "spaces": {
            f"rank.{factors[names[0]][0]}": {
                "before": math.sqrt(sum(first[name] for name in names)),
                "after": math.sqrt(sum(match.distances[name] for name in names)),
            }
            for names in (match.tensors_of([key]) for key in match.groups)
        },
        "rounds": len(history) - 1,
        "seconds": time.perf_counter() - started,
        "notes": _notes(source, anchor),
    }
    return replace(element, report=report)


def _notes(source: Adapter, anchor: Adapter) -> list[str]:
    """What the configs say that averages of factors do not heed."""
    notes = {
        "base_model_name_or_path": "the adapters name different bases: {} and {}",
        "lora_alpha": "the adapters scale what they add by different lora_alpha, {} and {}: an average of their "
        "factors has one",
        "use_rslora": "one of the adapters divides by the root of its rank (use_rslora: {} and {}), the other does not",
        "alpha_pattern": "the adapters scale some modules differently (alpha_pattern: {} and {})",
        "alora_invocation_tokens": "the adapters act behind different tokens (alora_invocation_tokens: {} and {})",
    }
    values = {name: [adapter.config.get(name) or None for adapter in (source, anchor)] for name in notes}
    return [notes[name].format(*both) for name, both in values.items() if both[0] != both[1]]


def apply_to_adapter(element: Element, adapter: Adapter, dtype: torch.dtype | None = None) -> Adapter:
    """The same adapter with its factors in the basis that `match_adapters` found.

    Raises:
        InputError: for an adapter of other ranks or weights; as a tensor is read, where its dtype does not hold it.
    """
    if rank_spec(adapter) != element.spec:
        raise InputError(f"{adapter.label} does not have the weights and ranks that the element acts on")
    moved = element.apply(_tensors(adapter))
    headers = {name: replace(h, dtype=dtype or h.dtype) for name, h in adapter.headers.items()}

    def read(name: str) -> Tensor:
        return in_dtype(adapter.label, name, moved[name], headers[name].dtype)

    return replace(adapter, config=dict(adapter.config), headers=headers, read=read)


def products(adapter: Adapter) -> dict[str, Tensor]:
    """``B A`` of every module."""
    factors: dict[str, dict[str, Tensor]] = {}
    for name, (module, letter) in _factors(adapter).items():
        factors.setdefault(module, {})[letter] = adapter[name].double().flatten(1)
    return {module: pair["B"] @ pair["A"] for module, pair in factors.items() if len(pair) == 2}


def _factors(adapter: Adapter) -> dict[str, tuple[str, str]]:
    """The factors among the tensors: the module of each, and whether it is its A or B."""
    matrices = (name for name, header in adapter.headers.items() if len(header.shape) > 1)
    found = {name: one for name in matrices if (one := FACTOR.fullmatch(name))}
    return {name: (one[1], one[2][-1]) for name, one in found.items() if one[2][-1] in "AB"}


def rank_spec(adapter: Adapter) -> Spec:
    """The type of an adapter whose base stands still: only its ranks are free.

    Raises:
        InputError: a module has one factor only, one twice, or two of different ranks.
    """
    spaces: dict[str, Space] = {}
    templates: dict[str, str] = {}
    ranks: dict[str, str] = {}
    factors, there = _factors(adapter), dict[str, set[str]]()
    for name, header in adapter.headers.items():
        axes = [f"fixed_{size}" for size in header.shape]
        spaces |= {axis: Space(size) for axis, size in zip(axes, header.shape, strict=True)}
        if name in factors:
            module, letter = factors[name]
            rank = ranks.setdefault(module, f"rank_{len(ranks)}")
            place, mark = (0, "") if letter == "A" else (1, "'")
            axes[place] = rank + mark
            if letter in there.setdefault(module, set()):
                raise InputError(f"{adapter.label}: the lora_{letter} of {module} is there twice")
            own = spaces.setdefault(rank, Space(header.shape[place], RANK, part="rank"))
            if own.size != header.shape[place]:
                raise InputError(
                    f"{adapter.label}: {name} has shape {tuple(header.shape)}, but the other factor has rank {own.size}"
                )
            there[module].add(letter)
        templates[name] = " ".join(axes)
    if half := sorted(module for module, letters in there.items() if len(letters) < 2):
        (missing,) = {"A", "B"} - there[half[0]]
        raise InputError(f"{adapter.label}: the lora_{missing} of {half[0]} is missing or no matrix")
    return Spec(LORA, spaces, templates)


def _check_pair(source: Adapter, anchor: Adapter) -> None:
    problems = []
    for name in sorted(source.headers.keys() | anchor.headers.keys()):
        shapes = [end.headers[name].shape if name in end else "missing" for end in (source, anchor)]
        if shapes[0] != shapes[1]:
            problems.append(f"{name} is {shapes[0]} in {source.label} and {shapes[1]} in {anchor.label}")
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InputError(f"the adapters do not adapt the same weights with the same ranks: {problems[0]}{more}")


def _tensors(adapter: Adapter) -> dict[str, Tensor]:
    return {name: adapter[name].double() for name in adapter}
