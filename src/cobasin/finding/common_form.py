"""Models in one canonical form, where they are compared, matched, and their elements written down."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cobasin.checkpoints.alike import omissions
from cobasin.checkpoints.pairs import check_pair
from cobasin.checkpoints.preprocessors import other_pixels
from cobasin.checkpoints.sentence_transformers import embeds
from cobasin.checkpoints.typed import Typed
from cobasin.execution.jobs import CPU
from cobasin.execution.outcomes import Keep, numbers
from cobasin.finding.activations import Runnable, by_activations
from cobasin.finding.forms import check_free, forms_of, too_long
from cobasin.finding.kept import Kept
from cobasin.finding.search import Prepared, Search
from cobasin.matching.choice import Choice
from cobasin.matching.many import Models
from cobasin.matching.state import Match, compared
from cobasin.matching.weights import ascend, within
from cobasin.progress import Progress, rounds
from cobasin.symmetry.action import Values
from cobasin.symmetry.balance import conditions, in_isometries, keep_bases
from cobasin.symmetry.canonical import Gauge, canonical, frames_as_gauge, frames_of, gauge_of
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import Form
from cobasin.symmetry.keys import key_text, worst_by_space
from cobasin.symmetry.state import Remembered, State, squared_distance

COARSE = 0.5  # relative: rounding that a map makes so large is worth a note
ROOM = 16 << 20  # bytes of every model in canonical form that are kept
FAR = 0.5  # of the anchor's squared norm, between matched models; pairs of different seeds have 0.9 to 1.3 of it
AGREED = 1e-8  # squared distance of matched weights, over their squared norm
EMBEDS = (
    "modules.json: Sentence Transformers takes embeddings from this model, without its head; what the head puts out "
    "is kept, embeddings are in another basis"
)
APART = (
    "the models are still far apart, as those of different seeds are: measure what comes of them (cobasin path); "
    "method learned brings their losses closer"
)
JOINT = (
    "what the two towers say of each other is kept; text_embeds and image_embeds are in another basis: make those that "
    "are stored anew, or leave the stream where it is (--symmetry ffn,heads,attention,scale)"
)

Found = tuple[Values, dict[str, Any]]
"""The elements found for a model, and what the report says of the search."""


class CommonForm:
    """Models in one canonical form.

    Attributes:
        typed: the models as elements act on them: untied, where folding a norm gives the head values of its own.
        apart: what is moved along, but not compared: task heads, where label sets differ.
        models: their tensors in canonical form.
        anchors: the models in whose gauge the others can be written.
        search: how elements are found; None by weights.
        notes: what a reader of the result should know.
    """

    def __init__(
        self,
        typed: Sequence[Typed],
        symmetry: str,
        layers: str | None = None,
        anchors: Sequence[int] | None = None,
        search: Search | None = None,
        why_not: str = "",
        apart: Sequence[str] = (),
    ):
        """Check all that headers and configs can tell, and choose the form.

        Args:
            typed: two or more.
            symmetry, layers: as in `cobasin.match`.
            anchors: the models in whose gauge the others may be written; all where None, none where nothing is written.
            search: how elements are found; by weights where None.
            why_not: why norms are not folded, though they could be.
            apart: tensors that only one of the models really has.

        Raises:
            InputError: for models that cannot be compared.
        """
        for other in typed[1:]:
            check_pair(typed[0], other)
        self.symmetry, choice = symmetry, Choice.parse(symmetry, layers)
        self.layers = layers and "".join(layers.split())
        choice.check(typed[0].spec)
        heads = typed[0].heads if any(model.labels != typed[0].labels for model in typed) else []
        self.apart = [*heads, *apart]
        self.search: Prepared | None = search.prepared(typed) if search else None
        wanted = list(range(len(typed)) if anchors is None else anchors)
        forms, self.typed, self.anchors, self.notes = forms_of(typed, choice, wanted, why_not)
        if heads:
            self.notes.append("the label sets differ: the task heads were moved along, but not compared")
        self.notes += [*omissions(typed), *other_pixels(typed)]
        if "residual" in choice.parts and any(embeds(model.checkpoint) for model in typed):
            self.notes.append(EMBEDS)
        if "residual" in choice.parts and any(key[0] == "joint" for key in forms[0].spec.sites):
            self.notes.append(JOINT)
        states = [Remembered(canonical(form, model), ROOM) for form, model in zip(forms, self.typed, strict=True)]
        tied = {name for form in forms for name in form.spec.tied}  # repeats another tensor, if only in some models
        place = search.place() if search else CPU
        self.models = Models(forms, states, choice, [*self.apart, *tied], place)
        self._gauges: dict[int, Gauge] = {}
        # of a pair: what was found, and the distances of its tensors before and after
        self._found: dict[tuple[int, int], tuple[Values, dict[str, float], dict[str, float]]] = {}

    def find(self, source: int, anchor: int, progress: Progress, keep: Kept | None = None) -> Found:
        """Match one model to another.

        What ``keep`` has of matching by weights, or gets from other parts, is not searched for again.

        Raises:
            InputError: where the symmetry leaves nothing free; for NaN or infinite values.
        """
        started = time.perf_counter()
        form, ends = self.models.forms[source], (self.models.states[source], self.models.states[anchor])
        check_free([form], self.models.choice, self.symmetry, self.models.excluded)
        keep = _of_pair(keep, source, anchor)
        first = _distances(keep, "start", *ends, compared(form, self.models.excluded))
        match = self.models.match(source, ends[1], distances=first)
        clock, cpu = time.perf_counter(), time.process_time()
        ascent = ascend(match, rounds(progress), keep=keep)
        more, history = {}, list(ascent.history)
        if self.search is not None and self.search.asked.method == "activations":
            more = self._with_activations(self.search, match, (source, anchor), progress)
            history.append(match.total)
        self._found[source, anchor] = match.values, first, match.distances
        return match.values, {
            **more,
            "objective": [math.sqrt(value) for value in history],
            "rounds": ascent.rounds,
            "ascent_seconds": time.perf_counter() - clock,
            "ascent_cpu_seconds": time.process_time() - cpu,
            "seconds": time.perf_counter() - started,
        }

    def _with_activations(
        self, search: Prepared, match: Match, pair: tuple[int, int], progress: Progress
    ) -> dict[str, Any]:
        """Go on from an ascent by weights; the match holds the result, what is returned belongs in the report."""
        if agree(match):
            return {"method": "activations", "notes": ["the weights agree: nothing was left for method activations"]}
        ends = [self.runnable(i) for i in pair]
        batches = search.inputs.batches([end.model for end in ends], progress)
        match.set(by_activations(match, ends, search.compared(batches), rounds(progress, "matching activations")))
        note = f"matched by weights and by activations on {search.inputs.count} {search.inputs.kind}"
        return search.report | {"notes": [note]}

    def runnable(self, model: int) -> Runnable:
        """A model in canonical form, in memory where the search runs models."""
        assert self.search is not None
        return Runnable(self.typed[model], self.models.forms[model], self.models.states[model], self.search.device)

    def element(
        self,
        source: int,
        anchor: int,
        values: Values,
        found: Mapping[str, Any],
        moved: tuple[Element, Values] | None = None,
        keep: Kept | None = None,
    ) -> Element:
        """The element with these values, from the gauge of one model to that of another, with its report.

        Args:
            source, anchor: positions of the models; the anchor must be one of ``anchors``.
            values: what was found.
            found: what the report says of the search; the objective, unless it has one, is that before and after.
            moved: the anchor's own element, and what was found for it, where it moves, too.
            keep: as in `find`.
        """
        started = time.perf_counter()
        match, first = self._held(source, anchor, values, moved and moved[1])
        form, ends = match.form, (self.typed[source], self.typed[anchor])
        target_state: State = ends[1] if moved is None else moved[0].apply(ends[1])
        own, target = self._gauge(source), dict(self._gauge(anchor))
        frames = frames_of(form, own)
        others = keep_bases(form, match.values, frames, frames_of(form, target))
        acting, others = in_isometries(form, match.values, others)
        target |= frames_as_gauge(others)
        # a head keeps its own gauge: the anchor's has other labels
        target |= {key: value for key, value in own.items() if key.split(":")[0] in self.apart}
        element = Element(form, acting, own, target)
        counted = [name for name in ends[1] if name not in ends[1].spec.tied and name not in self.apart]
        keep = _of_pair(keep, source, anchor)
        before, after = (
            math.sqrt(sum(_distances(keep, *what, counted).values()))
            for what in (("before", *ends), ("after", element.apply(ends[0]), target_state))
        )
        more: dict[str, Any] = {} if moved is None else {"anchor_moved": True}
        notes = [*self.notes, *found.get("notes", [])]
        if form.balanced:
            more["condition"] = worst_by_space(conditions(form, acting, frames, others).items())
            notes += _amplification(max(more["condition"].values()), ends[0])
        if found.get("method") != "learned" and not within(match, FAR):
            notes.append(APART)
        notes += _growth(form) if after > before and match.total < sum(first.values()) else []
        report = {
            "symmetry": self.symmetry,
            "layers": self.layers,
            "distance_before": before,
            "distance_after": after,
            "spaces": {
                key_text(key): {
                    "before": math.sqrt(sum(first[name] for name in match.tensors_of([key]))),
                    "after": math.sqrt(sum(match.distances[name] for name in match.tensors_of([key]))),
                }
                for key in match.groups
            },
            "objective": [math.sqrt(sum(first.values())), math.sqrt(match.total)],
            **found,
            "seconds": found["seconds"] + time.perf_counter() - started,
            **more,
            "notes": notes,
        }
        return replace(element, report=report)

    def _held(
        self, source: int, anchor: int, values: Values, anchor_values: Values | None
    ) -> tuple[Match, dict[str, float]]:
        """A match that holds these values, and the squared distances before it."""
        known = self._found.get((source, anchor))
        if anchor_values is None and known is not None and known[0] is values:
            _, first, last = known
            return self.models.match(source, self.models.states[anchor], values, distances=last), first
        match = self.models.match(source, self.models.states[anchor])
        first = dict(match.distances)
        if anchor_values is not None:
            match = self.models.match(source, self.models.moved_state(anchor, anchor_values))
        match.set(values)
        return match, first

    def too_long(self, reference: int, found: Mapping[int, Values]) -> str | None:
        """Why models that were found for a reference should not be written in its gauge; see `forms.too_long`."""
        for i, values in found.items():
            element = Element(self.models.forms[i], values, self._gauge(i), self._gauge(reference))
            if (why := too_long(element, self.typed[i])) is not None:
                return why
        return None

    def _gauge(self, model: int) -> Gauge:
        if model not in self._gauges:
            self._gauges[model] = gauge_of(self.models.forms[model], self.typed[model])
        return self._gauges[model]


def _amplification(condition: float, model: Typed) -> list[str]:
    """A note where a map of this condition would make the rounding of the model's file visible."""
    rounding = condition * model.checkpoint.rounding
    if rounding <= COARSE:
        return []
    return [
        f"a map of condition {condition:.1e} amplifies the rounding of the file to {rounding:.1e}: convert the models "
        "to float32 first, or match with --symmetry full"
    ]


def _growth(form: Form) -> list[str]:
    """A note where files may look further apart than before because readers hold an offset in their weights."""
    carried = [norm.bias for norm in form.norms if norm.bias and any(map(form.carries_offset, norm.readers))]
    return [
        f"the files look further apart than before although the models are closer: readers without a bias hold {one} "
        "as a constant in large weights"
        for one in carried[:1]
    ]


def agree(*matches: Match) -> bool:
    """Whether nothing but rounding is left between the weights of models that were matched."""
    norm = sum(float(one.anchor[name].double().norm()) ** 2 for one in matches for name in one.tensors)
    return sum(one.total for one in matches) <= AGREED * norm


def _of_pair(keep: Kept | None, source: int, anchor: int) -> Kept | None:
    return None if keep is None else keep.within(f"{source}-{anchor}")


def _distances(keep: Keep | None, what: str, a: State, b: State, names: Sequence[str]) -> dict[str, float]:
    """The squared distance of every one of these tensors."""
    return numbers(keep, what, names, lambda name: squared_distance(a[name], b[name]))
