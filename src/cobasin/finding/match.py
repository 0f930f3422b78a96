"""Matching, for Python: two models, or any number."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from cobasin.checkpoints.alike import equally_stored, equally_tied
from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.fingerprint import fingerprint
from cobasin.checkpoints.pairs import check_pair
from cobasin.checkpoints.typed import Typed
from cobasin.data.vocabulary import in_common, told_apart
from cobasin.errors import InputError, shown, whole
from cobasin.execution.jobs import threads_for
from cobasin.finding.common_form import CommonForm, Found
from cobasin.finding.from_pairs import from_pairs
from cobasin.finding.kept import Kept, check_kept
from cobasin.finding.learning import check_movable, learned
from cobasin.finding.own_tokens import with_own_tokens
from cobasin.finding.search import STEPS, Search
from cobasin.paths import expanded
from cobasin.progress import Progress, progress_of
from cobasin.symmetry.element import Element
from cobasin.symmetry.state import State


def match(
    source: Any,
    anchor: Any,
    symmetry: str = "full",
    layers: str | None = None,
    progress: Progress | None = None,
    method: str = "weights",
    data: Any = None,
    samples: int | None = None,
    seed: int = 0,
    steps: int = STEPS,
    loss: str = "parents",
    device: str = "auto",
    state: str | Path | None = None,
    orders: bool = False,
) -> Element:
    """Find the function-preserving transformation that brings ``source`` closest to ``anchor``.

    Args:
        source, anchor: anything `load` takes; of one architecture and configuration. Of different vocabularies, which
            their tokenizers tell, the tokens that both have are compared (by ``weights``), and each keeps its own.
        symmetry: ``full``, ``gl`` (full, with any invertible map in place of the orthogonal ones where the
            architecture allows it), ``paper``, or a list out of ffn, experts (their order), heads, attention, scale,
            residual (the stream, with norms folded so that it may turn), residual-order (the stream by permutations
            only).
        layers: restrict it to layers, like ``"0-4,7"``; the residual stream is then left alone.
        progress: called after every round, and at every look of learning; see `Progress`.
        method: ``weights``; ``activations``, what the models compute on the same inputs is compared, too;
            ``learned``, from there the models between the two learn. See `cobasin.finding.search`.
        data, samples, seed, steps, loss, state, orders: of ``activations`` and ``learned``, see
            `cobasin.finding.search.Search`; without data the inputs are made up.
        device: where weights are compared and models run, see `cobasin.finding.search.Search`.

    Returns:
        The element; its ``report`` has the distances before and after, in all and per space, the number of
        rounds and the seconds taken.

    Raises:
        InputError: for models that cannot be matched, before any tensor is read; for NaN or infinite values; for
            data that do not fit, and models for which no inputs can be made up.
    """
    search: dict[str, Any] = {"method": method, "data": data, "samples": samples, "seed": seed, "steps": steps}
    search |= {"loss": loss, "device": device, "state": state, "orders": orders}
    (element, _) = match_all([source, anchor], symmetry, layers, 1, progress, **search).elements
    assert element is not None
    return element


@dataclass(frozen=True)
class Matched:
    """Models brought together.

    Attributes:
        typed: the models as the elements act on them: all untied, where one of them had to be.
        elements: for every model the element that brings it to the others; None for the reference, unless its scales
            and general maps were moved, too.
        reference: the position of the model in whose gauge all others are written, with its norm gains, free biases
            and order of neurons.
        report: how that was found; what it did to a model is in its element's report.
    """

    typed: list[Typed]
    elements: list[Element | None]
    reference: int
    report: dict

    @cached_property
    def states(self) -> tuple[State, ...]:
        """The matched tensors, by spec name, as they are asked for; the reference's are its own, unless it moved."""
        return tuple(
            model if element is None else element.apply(model)
            for model, element in zip(self.typed, self.elements, strict=True)
        )

    @property
    def ends(self) -> list[Checkpoint]:
        """The matched models in float32, as they are averaged and interpolated."""
        return [model.derived(state, torch.float32) for model, state in zip(self.typed, self.states, strict=True)]


def match_all(
    models: Sequence[Any],
    symmetry: str = "full",
    layers: str | None = None,
    anchor: str | int = "medoid",
    progress: Progress | None = None,
    method: str = "weights",
    data: Any = None,
    samples: int | None = None,
    seed: int = 0,
    steps: int = STEPS,
    loss: str = "parents",
    move: str = "source",
    device: str = "auto",
    state: str | Path | None = None,
    orders: bool = False,
    keep: Kept | None = None,
) -> Matched:
    """Bring any number of models together.

    Args:
        models: anything `load` takes, or typed; of one architecture and configuration; for vocabularies see `match`.
        symmetry, layers: as in `match`.
        anchor: what the models are matched to. An index: that model. ``medoid``: the one that is closest to all
            others, once all pairs are matched; of two models the first. ``consensus``: their own mean (see
            `cobasin.matching.many`), from as many starts as there are models; the medoid is the reference, of two
            models the one whose fingerprint comes first. Apart from the medoid of two, neither depends on the order
            in which models are given. A mean is held in memory.
        progress: see `Progress`.
        method, data, samples, seed, steps, loss, device, state, orders: as in `match`. By ``learned`` all
            models learn jointly, from where weights have brought them; a consensus is not found by ``activations``.
        move: of ``learned``: ``source``, the reference stays; ``all``, its scales and general maps move, too, and it
            has an element.
        keep: where to keep what is found on the way, how far learning is among it. Where it has something, which must
            be of a search like this one, the search goes on from there; parts that share it share what is found by
            weights.

    Raises:
        InputError: as in `match`; for fewer than two models; for an anchor that is none of these; where ``all``
            shall move and the reference has no scales or general maps.
    """
    started = time.perf_counter()
    progress = progress_of(progress)
    check_kept(keep)
    place = None if state is None else expanded(state, "state")
    search = Search(method, data, samples, seed, steps, loss, move, device, place, orders)
    if not isinstance(models, Iterable) or isinstance(models, str):
        raise InputError(f"models: {shown(models)}: expected a list of two or more")
    models = list(models)
    if len(models) < 2:
        raise InputError(f"matching needs two models or more, got {len(models)}")
    if keep is not None and keep.shared:
        check_shared(search.method)
    if keep is not None and search.method == "learned" and search.state is None:
        search = replace(search, state=keep.folder / "learning")
    typed = equally_stored([model if isinstance(model, Typed) else Typed.of(load(model)) for model in models])
    if any(key.endswith("tie_word_embeddings") for model in typed for key in model.spec.function_keys):
        # elsewhere each file says it
        typed = equally_tied(typed)
    fixed = _fixed(anchor, len(typed))
    if keep is not None and (ended := keep.elements()) is not None:
        reference, elements, report = ended
        return Matched(_as_matched(typed, elements), elements, reference, report)
    if anchor == "consensus" and search.method == "activations":
        raise InputError("anchor consensus: not found by method activations; take medoid, a model, or another method")
    with threads_for(max(model.checkpoint.parameters for model in typed)):
        matched = _matched(typed, symmetry, layers, anchor, fixed, progress, search, keep)
    report = matched.report | {"seconds": time.perf_counter() - started}
    if keep is not None and not keep.shared:
        keep.save_elements(matched.reference, matched.elements, report)
    return replace(matched, report=report)


def _matched(
    typed: list[Typed],
    symmetry: str,
    layers: str | None,
    anchor: str | int,
    fixed: int | None,
    progress: Progress,
    search: Search,
    keep: Kept | None,
) -> Matched:
    """`match_all` of models that are stored alike; ``fixed`` is the position of the anchor, where it is known."""
    learns, order, anchors = search.method == "learned", list(range(len(typed))), None if fixed is None else [fixed]
    given, rows, notes = typed, list[torch.Tensor](), list[str]()
    one_class = len({model.checkpoint.architecture for model in typed}) == 1  # else that is what is the matter
    if search.method == "weights" and one_class and told_apart(typed):
        typed, rows, notes = _in_common(typed)
    common = CommonForm(typed, symmetry, layers, anchors, search)
    if learns:
        check_movable(common.models.forms[:1], common.models.choice, symmetry, search, common.models.excluded)
    if fixed is None or learns:
        # all that follows depends on this order, and so on nothing but what the models are
        prints = [fingerprint(model.checkpoint) for model in given]
        order.sort(key=prints.__getitem__)

    def search_in(common: CommonForm, keep: Kept | None) -> tuple[int, dict[int, Found], dict]:
        if fixed is None:
            return from_pairs(common, order, anchor, progress, keep)
        return fixed, {i: common.find(i, fixed, progress, keep) for i in order if i != fixed}, {}

    reference, found, report = search_in(common, keep)
    if long := common.too_long(reference, {i: values for i, (values, _) in found.items()}):
        common = CommonForm(typed, symmetry, layers, anchors, search, why_not=long)
        reference, found, report = search_in(common, None if keep is None else keep.anew("by-order"))
    if learns:
        found = learned(common, order, reference, found, progress)
    elements = _elements(common, reference, found, keep)
    named = anchor if isinstance(anchor, str) else fixed
    typed = common.typed
    if rows:
        typed = _as_matched(given, elements)
        ends = zip(elements, typed, rows, strict=True)
        elements = [element and with_own_tokens(element, model, own, notes) for element, model, own in ends]
    return Matched(typed, elements, reference, {"anchor": named, "reference": reference, **report})


def _elements(
    common: CommonForm, reference: int, found: Mapping[int, Found], keep: Kept | None
) -> list[Element | None]:
    """An element for everything that was found; where the reference moves, the others go where it is then."""
    elements: list[Element | None] = [None] * len(common.typed)
    moved = None
    if reference in found:
        own = elements[reference] = common.element(reference, reference, *found[reference], keep=keep)
        moved = own, found[reference][0]
    for i in found.keys() - {reference}:
        elements[i] = common.element(i, reference, *found[i], moved, keep)
    return elements


def check_shared(method: str) -> None:
    """Refuse to share a search that runs models."""
    if method != "weights":
        raise InputError(
            f"method {method} runs models, which is not shared: match without --part and --engine ray, then share the "
            "merge, by --match none"
        )


def _as_matched(typed: Sequence[Typed], elements: Sequence[Element | None]) -> list[Typed]:
    """The models as these elements act on them: all untied, where one of them had to be."""
    tied = set().union(*(element.spec.tied for element in elements if element is not None))
    return [model.untied() if model.spec.tied.keys() - tied else model for model in typed]


def _in_common(typed: list[Typed]) -> tuple[list[Typed], list[torch.Tensor], list[str]]:
    """`in_common`; where common tokens cannot be told, it is refused with all else that differs."""
    try:
        return in_common(typed)
    except InputError as error:
        for other in typed[1:]:
            try:
                check_pair(typed[0], other)
            except InputError as differing:
                raise InputError(f"{differing}: {error}") from error
        raise


def _fixed(anchor: str | int, count: int) -> int | None:
    """The position of the anchor, where that is known beforehand.

    Raises:
        InputError: for an anchor that does not exist.
    """
    if whole(anchor):
        if not 0 <= anchor < count:
            raise InputError(f"anchor {anchor} does not exist: there are models 0 to {count - 1}")
        return int(anchor)
    if not isinstance(anchor, str) or anchor not in ("medoid", "consensus"):
        raise InputError(f"anchor {shown(anchor)}: expected medoid, consensus, or the position of a model")
    return 0 if anchor == "medoid" and count == 2 else None
