"""The canonical forms that models can be brought to, and the anchors in whose gauge they can be written."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.matching.choice import Choice
from cobasin.matching.state import free_groups
from cobasin.symmetry.canonical import IMPOSSIBLE_OFFSET, SMALLEST_OFFSET, carries, gains_of, obstacles
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import Form, form_of
from cobasin.symmetry.spec import Spec
from cobasin.symmetry.state import squared_size

BY_ORDER = "residual stream matched by permutation only"
UNTIED = "the output head is untied from the embedding"
_ROUNDING = 1e-5  # of a reader that has become longer, relative to what it was


def forms_of(
    typed: Sequence[Typed], choice: Choice, anchors: list[int], why_not: str
) -> tuple[list[Form], list[Typed], list[int], list[str]]:
    """The canonical form of every model, and the anchors and notes that go with it.

    Folding the norms in front of a tied head unties it.

    Args:
        typed, choice: the models, and what is free.
        anchors: the models in whose gauge others may be written; none where nothing is written.
        why_not: why norms are not folded, though they could be; empty where they may be.
    """
    plain = [_form(model.spec, choice) for model in typed]
    if not choice.folded or not typed[0].spec.norms:
        return plain, list(typed), anchors, []
    if why_not:
        return plain, list(typed), anchors, [f"{BY_ORDER}: {why_not}"]
    unties = any(model.spec.unties for model in typed)
    ends = [model.untied() for model in typed] if unties else list(typed)
    forms = [_form(end.spec, choice, folded=True) for end in ends]
    gains = [gains_of(form, end) for form, end in zip(forms, ends, strict=True)]

    def unfit(smallest: float) -> dict[int, str]:
        found = {
            anchor: [
                line
                for form, own in zip(forms, gains, strict=True)
                for line in obstacles(form, own, gains[anchor], smallest)
            ]
            for anchor in anchors
        }
        return {anchor: "; ".join(dict.fromkeys(lines)) for anchor, lines in found.items() if lines}

    reasons = unfit(SMALLEST_OFFSET)
    if anchors and len(reasons) == len(anchors):  # what is written then shows whether it is too long (`too_long`)
        reasons = unfit(IMPOSSIBLE_OFFSET)
        if len(reasons) == len(anchors):
            return plain, list(typed), anchors, [f"{BY_ORDER}: {reasons[anchors[0]]}"]
    notes = [f"{typed[anchor].checkpoint.label} cannot be the reference: {why}" for anchor, why in reasons.items()]
    if unties:
        notes.append(UNTIED)
    return forms, ends, [anchor for anchor in anchors if anchor not in reasons], notes


def too_long(element: Element, source: Typed) -> str | None:
    """Why a match should leave the norms as they are: what carries an offset in the anchor's gauge takes digits.

    None where it does not: where the two are near each other, or the anchor's offset is large enough.
    """
    form, anchor = element.form, element.target or {}
    doubtful = [norm for norm in form.norms if norm.bias and not carries(anchor[norm.weight], anchor[norm.bias])]
    moved = element.apply(source) if doubtful else {}
    for norm in doubtful:
        for reader in filter(form.carries_offset, norm.readers):
            before, after = (math.sqrt(squared_size(state[reader])) for state in (source, moved))
            if after > before * max(1 / SMALLEST_OFFSET, _ROUNDING / source.checkpoint.rounding):
                return (
                    f"{norm.bias} of the anchor sums to next to nothing over its gains, and to carry what {reader} "
                    f"reads, which has no bias, would make it {after / before:.0f} times as large"
                )
    return None


def _form(spec: Spec, choice: Choice, folded: bool = False) -> Form:
    return form_of(
        spec,
        folded=folded,
        free_biases=not choice.paper,
        balanced=choice.general,
        parts=choice.parts,
        layers=choice.layers,
    )


def possible_forms(spec: Spec, choice: Choice) -> list[Form]:
    """The forms of models of a type, of which their gains decide: norms folded, or not."""
    return [_form(spec, choice), *([_form(spec, choice, folded=True)] if choice.folded and spec.norms else [])]


def check_free(forms: Sequence[Form], choice: Choice, symmetry: str, excluded: Sequence[str] = ()) -> None:
    """Refuse a symmetry that leaves nothing free in any of these forms."""
    if not any(free_groups(form, choice, excluded) for form in forms):
        why = "" if choice.layers is None else " with these layers (the residual stream runs through all of them)"
        if choice.parts == {"scale"}:
            why = " by itself; name what has scales, too, like ffn,scale or attention,scale"
        raise InputError(f"symmetry {symmetry!r} leaves nothing free in {forms[0].spec.architecture}{why}")
