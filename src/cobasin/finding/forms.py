"""The canonical forms that models can be brought to, and the anchors in whose gauge they can be written."""

from __future__ import annotations

from collections.abc import Sequence

from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.matching.choice import Choice
from cobasin.matching.state import free_groups
from cobasin.symmetry.canonical import gains_of, obstacles
from cobasin.symmetry.form import Form, form_of
from cobasin.symmetry.spec import Spec

UNTIED = "the output head is untied from the embedding"
AVERAGED = "cobasin merge averages models whose head was untied; other tools do so only with an untied anchor"


def forms_of(
    typed: Sequence[Typed], choice: Choice, anchors: list[int]
) -> tuple[list[Form], list[Typed], list[int], list[str]]:
    """The canonical form of every model, and the anchors and notes that go with it.

    Folding the norms in front of a tied head unties it.
    """
    plain = [_form(model.spec, choice) for model in typed]
    if not choice.folded or not typed[0].spec.norms:
        return plain, list(typed), anchors, []
    unties = any(model.spec.unties for model in typed)
    ends = [model.untied() for model in typed] if unties else list(typed)
    forms = [_form(end.spec, choice, folded=True) for end in ends]
    gains = [gains_of(form, end) for form, end in zip(forms, ends, strict=True)]
    found = {
        anchor: [line for form, own in zip(forms, gains, strict=True) for line in obstacles(form, own, gains[anchor])]
        for anchor in anchors
    }
    reasons = {anchor: "; ".join(dict.fromkeys(lines)) for anchor, lines in found.items() if lines}
    if len(reasons) == len(anchors):
        return plain, list(typed), anchors, [f"residual stream matched by permutation only: {reasons[anchors[0]]}"]
    notes = [f"{typed[anchor].checkpoint.label} cannot be the reference: {why}" for anchor, why in reasons.items()]
    if unties:
        notes += [UNTIED, AVERAGED]
    return forms, ends, [anchor for anchor in anchors if anchor not in reasons], notes


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
        raise InputError(
            f"symmetry {symmetry!r} leaves nothing free in {forms[0].spec.architecture}"
            + ("" if choice.layers is None else " with these layers (the residual stream runs through all of them)")
        )
