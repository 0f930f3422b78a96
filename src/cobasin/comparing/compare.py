"""How two models are related, told from their weights alone.

Both are brought to canonical form and matched by the whole symmetry group, so that nothing that is pure gauge counts.
Two figures then tell the cases apart:

* ``kept``, the share of coordinates (neurons, directions of heads and of the residual stream) that matching leaves
  where they are. Fine-tuning leaves neurons in their places: of n neurons in random order one stays by chance, whatever
  n, and the trace of a random rotation is about 0. So do models of which one was matched to the other before, of
  whatever origin, which the second figure tells.
* ``shared``, how far the matched layers are from what chance gives, on the way to equality. A layer's agreement is
  ``c = 1 - |a - b|²/(|a|² + |b|²)``: 0 for unrelated weights, 1 for equal ones. Matching finds some agreement between
  any two models, the more the smaller they are. That floor f is measured, by matching a copy of one of them whose
  tensors are shuffled along every axis (the same entries and shapes, no relation). ``shared`` is the median over the
  layers of ``(c - f)/(1 - f)``. Models ``s + a`` and ``s + b`` whose own parts a and b are unrelated agree by
  ``|s|²/(|s|² + |a|²)``, so from 1/2 on they have more in common than apart: they **share a base** where half of the
  coordinates or more are kept, otherwise a **basin**, as a model does with a scrambled copy of a fine-tune of it.
  Models from different seeds agree beyond chance in what their data
  fixes, such as embeddings, and less than half in their layers: they are **independent**.

Models are the **same** if their files hold the same numbers, or if matching brings files that differ so close that only
rounding is left, and their outputs do not contradict it. So are files that differ by no more than float32 arithmetic
leaves, as after a match that was undone, where their outputs can be asked; files in bfloat16 a rounding apart may be
fine-tunes. And so are those of float32 whose layers agree and whose outputs are equal: what a zero hides, as that of a
norm's gain, has no best basis. All of this is about weights; whether the loss stays low in between, a `LossPath` says.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.typed import Typed
from cobasin.comparing.agreement import (
    OUTSIDE,
    Difference,
    by_layer,
    by_tensor,
    cosines,
    difference,
    kept,
    place_of,
    shuffled,
    spectrum,
    total,
)
from cobasin.comparing.comparable import Comparable, comparable
from cobasin.errors import NotProbed
from cobasin.execution.jobs import threads_for
from cobasin.finding.common_form import CommonForm
from cobasin.matching.state import Match
from cobasin.matching.weights import ascend
from cobasin.progress import Progress, progress_of, rounds
from cobasin.symmetry.keys import Key
from cobasin.verification import VERIFIED_PARAMETERS, Verdict, verify

HALF = 0.5  # of the coordinates; of the way from chance to equality
CLOSE = 0.95  # an agreement of layers that is half of the way or more, whatever chance gives up to 0.9
NEAR = 4  # roundings of the files that may be rounding; the outputs have the last word
ARITHMETIC = 8 * torch.finfo(torch.float32).eps  # of matching, which moves tensors in float32

_STAGES = ("files", "before", "after", "chance")

Relation = Literal["same", "share a base", "share a basin", "independent"]


@dataclass(frozen=True)
class Comparison:
    """How two models are related, and the evidence.

    Relative distances are ``|a - b| / sqrt(|a|² + |b|²)``: 0 for equal weights, 1 for unrelated ones. There are those
    of the ``files`` as they are, in canonical form ``before`` and ``after`` matching, and by ``chance``: what matching
    reaches with a shuffled model (None where the verdict does not need it).

    Attributes:
        verdict, reason: the relation (see the module's docstring), and why.
        distance: Euclidean distance of the ``files``, ``before`` and ``after``.
        relative: relative distances over all tensors.
        layers: relative distances of every layer, and of what is outside of the layers.
        spaces: for every space that is matched, the Euclidean distance of the tensors it runs through, of the
            ``files``, ``before`` and ``after``; the share of its coordinates that is ``kept`` (None: they have no
            order); and the spectrum of the ``agreement``: cosines between matched coordinates (neurons, heads; under an
            orthogonal group singular directions of the cross-Gram), 101 from the largest to the smallest. The same by
            ``chance``; and all of it for every one of the ``layers``, where it lies in layers.
        kept, shared: the figures behind the verdict; ``kept`` is None where no space has an order.
        verification: of the outputs, where the weights alone could not tell.
        notes: what a reader should know.
        seconds: how long it took.
    """

    verdict: Relation
    reason: str
    distance: dict[str, float]
    relative: dict[str, float | None]
    layers: dict[str, dict[str, float | None]]
    spaces: dict[str, dict[str, Any]]
    kept: float | None
    shared: float | None
    verification: Verdict | None
    notes: list[str]
    seconds: float = 0.0

    def __repr__(self) -> str:
        return f"<Comparison: {self.verdict}: {self.reason}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def compare(a: Any, b: Any, symmetry: str = "gl", progress: Progress | None = None) -> Comparison:
    """Say how two models are related: the same, of one base, in one basin, or independent.

    It compares weights, modulo symmetry; loss between the models is not measured (`cobasin.loss_path` does).

    Args:
        a, b: anything `cobasin.load` takes; of one configuration, and of one architecture, or of classes with the same
            layers, which alone are compared then. Of different vocabularies, what their tokenizers have in common is.
        symmetry: as in `cobasin.match`; by default the largest group.
        progress: see `Progress`.

    Returns:
        The verdict, its reason, and the figures behind it, of all of the models, of every space and layer.

    Raises:
        InputError: as `cobasin.match`.
    """
    started = time.perf_counter()
    progress = progress_of(progress)
    given = comparable([Typed.of(load(model)) for model in (a, b)])
    with threads_for(given.models[0].checkpoint.parameters):
        found = _compared(given, symmetry, progress)
    return replace(found, seconds=time.perf_counter() - started)


def _compared(given: Comparable, symmetry: str, progress: Progress) -> Comparison:
    typed = given.models
    common = CommonForm(typed, symmetry, anchors=[], apart=given.apart)  # nothing is written
    anchor, source = common.models.states
    values, _ = common.find(1, 0, progress)
    matches = {"before": common.models.match(1, anchor), "after": common.models.match(1, anchor, values)}
    first, second = typed  # as the files have them: the common form may have untied a head
    counted = [name for name in first if name not in first.spec.tied and name not in common.apart]
    tensors = {"files": {name: difference(first[name], second[name]) for name in counted}}
    tensors |= {stage: by_tensor(match) for stage, match in matches.items()}
    layers = {stage: by_layer(matches["after"].spec, parts) for stage, parts in tensors.items()}
    files = total(tensors["files"].values())
    stay = kept(matches["after"], matches["after"].groups)
    stay = stay if stay is None else max(stay, 0.0)  # of traces of rotations
    close = _close(layers["after"])
    same, reason, verification = _same(typed, counted, given.left, files, total(tensors["after"].values()), close)
    shared, stays = None, stay is not None and stay >= HALF
    if same:
        verdict: Relation = "same"
    elif stays and close:
        verdict = "share a base"
        reason = f"{stay:.0%} of the coordinates stay in their places; relative distance {files.relative:.2g}"
    else:
        matches["chance"] = replace(common.models, states=[anchor, shuffled(source)]).match(1, anchor)
        ascend(matches["chance"], rounds(progress, "matching by chance"))
        layers["chance"] = by_layer(matches["chance"].spec, by_tensor(matches["chance"]))
        shared = _shared(layers["after"], layers["chance"])
        verdict = "independent" if shared < HALF else "share a base" if stays else "share a basin"
        reason = (
            f"matched, the layers are {max(shared, 0.0):.0%} of the way from what chance gives to equality in weights"
        )
        if stay is not None:
            reason = f"{stay:.0%} of the coordinates stay in their places; {reason}"
    relative = {stage: total(parts.values()).relative for stage, parts in layers.items()}
    return Comparison(
        verdict,
        reason,
        {"files": math.sqrt(files.squared)} | {stage: math.sqrt(matches[stage].total) for stage in ("before", "after")},
        {stage: relative.get(stage) for stage in _STAGES},
        {
            place: {stage: layers[stage][place].relative if stage in layers else None for stage in _STAGES}
            for place in layers["files"]
        },
        _spaces(matches, tensors["files"]),
        stay,
        shared,
        verification,
        given.notes + common.notes,
    )


def _same(
    typed: Sequence[Typed],
    counted: Sequence[str],
    left: Sequence[str],
    files: Difference,
    matched: Difference,
    close: bool,
) -> tuple[bool, str, Verdict | None]:
    """Whether the models are the same, why, and what their outputs say, if they had to be asked.

    ``left``: what of the models is not compared, so that their outputs are others, whatever the rest. ``close``: that
    their layers agree so well that outputs may be equal all the same.
    """
    first, second = typed
    if all(_equal(first[name], second[name]) for name in counted):
        but = f", but for {' and '.join(left)}" if left else ""
        return True, f"the files hold the same numbers, up to their dtype{but}", None
    rounding = max(model.checkpoint.rounding for model in typed)
    runs = not left and first.checkpoint.parameters <= VERIFIED_PARAMETERS
    near = runs and files.relative <= ARITHMETIC
    rounded = near or matched.relative <= (NEAR if runs else 1) * rounding + ARITHMETIC < files.relative
    what, found = ("the files", files) if near else ("matched, they", matched)
    explained = "no more than rounding explains" if rounded else "which no output shows"
    reason = f"{what} differ by {found.relative:.1g} of their size, {explained}"
    if not (runs and (rounded or (close and rounding <= ARITHMETIC))):
        return rounded, reason, None
    try:
        verdict = verify(first.checkpoint, second.checkpoint)
    except NotProbed as error:  # their functions were not compared, which says nothing against them
        return rounded, f"{reason}; not run on probe inputs: {error}", None
    if not rounded and not verdict.same:
        return False, reason, None
    said = "their outputs cannot tell" if verdict.same is None else "outputs in float64"
    return verdict.same is not False, f"{reason}; {said}: {verdict.reason}", verdict


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal in the coarser of their dtypes."""
    dtype = max(a.dtype, b.dtype, key=lambda dtype: torch.finfo(dtype).eps)
    return a.to(dtype).equal(b.to(dtype))


def _close(matched: Mapping[str, Difference]) -> bool:
    """Whether layers agree so well that chance need not be asked; not where all that agrees is next to nothing."""
    agree = statistics.median(matched[place].agreement for place in _places(matched)) >= CLOSE
    return agree and total(matched.values()).agreement >= HALF


def _shared(matched: Mapping[str, Difference], chance: Mapping[str, Difference]) -> float:
    """The median over layers of where they are between chance (0) and equality (1); 0 where none can tell.

    What is outside of them says little, and counts only where layers say nothing, as constant ones do, which agree with
    themselves however they are shuffled: embeddings of one vocabulary agree between independent models, too.
    """
    floors = {place: found.agreement for place, found in chance.items() if found.agreement < 1}
    shares = {place: (matched[place].agreement - floor) / (1 - floor) for place, floor in floors.items()}
    return statistics.median(shares[place] for place in _places(shares)) if shares else 0.0


def _places(layers: Mapping[str, Any]) -> list[str]:
    """The layers; of a model without any, all of it."""
    return [place for place in layers if place != OUTSIDE] or [OUTSIDE]


def _spaces(matches: Mapping[str, Match], files: Mapping[str, Difference]) -> dict[str, dict[str, Any]]:
    """What `Comparison` says of every space: of all of it, and layer by layer."""
    after = matches["after"]
    keys: dict[str, dict[str, list[Key]]] = {}
    for key in after.groups:
        keys.setdefault(key[0], {}).setdefault(place_of(after.spec.index(key)), []).append(key)
    found = {}
    for space, places in keys.items():
        every = [key for own in places.values() for key in own]
        agreement = {
            name: {key: cosines(matches[stage], key) for key in every} if stage in matches else None
            for name, stage in (("agreement", "after"), ("chance", "chance"))
        }
        layers = {place: _of_keys(matches, files, own, agreement) for place, own in places.items() if place != OUTSIDE}
        found[space] = _of_keys(matches, files, every, agreement) | {"layers": layers}
    return found


def _of_keys(
    matches: Mapping[str, Match],
    files: Mapping[str, Difference],
    keys: Sequence[Key],
    agreement: Mapping[str, dict[Key, torch.Tensor] | None],
) -> dict[str, Any]:
    tensors = matches["after"].tensors_of(keys)
    sites = {site.tensor for key in keys for site in matches["after"].spec.sites[key]}
    return {
        "files": math.sqrt(math.fsum(files[name].squared for name in sites if name in files)),  # gains of norms, too
        **{stage: math.sqrt(sum(matches[stage].distances[name] for name in tensors)) for stage in ("before", "after")},
        "kept": kept(matches["after"], keys),
        **{name: None if own is None else spectrum(own[key] for key in keys) for name, own in agreement.items()},
    }
