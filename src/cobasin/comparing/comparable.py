"""Two models as they can be compared: of one class, with the tokens that both have."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cobasin.checkpoints.alike import alike
from cobasin.checkpoints.headed import headed_as, of_another_class
from cobasin.checkpoints.typed import Typed
from cobasin.data.vocabulary import in_common, told_apart


@dataclass(frozen=True)
class Comparable:
    """Two models, and what of them is not compared.

    Attributes:
        models: with the same tensors, of the same shapes.
        apart: tensors that only one of them has.
        left: what else is not compared, in words.
        notes: the same, for a reader of the result.
    """

    models: list[Typed]
    apart: list[str]
    left: list[str]
    notes: list[str]


def comparable(models: list[Typed]) -> Comparable:
    """Make two models comparable as far as classes and vocabularies go; the rest is checked as they are matched.

    Raises:
        InputError: classes or vocabularies differ, and one cannot be brought to the other.
    """
    models, _, tokens = in_common(models) if told_apart(models) else (models, [], [])
    models, apart, heads = _of_one_class(models)
    first, second = models = alike(models)
    left = ["the heads"] if heads or first.labels != second.labels else []
    return Comparable(models, apart, left + ["tokens that only one has"] * bool(tokens), heads + tokens)


def _of_one_class(models: list[Typed]) -> tuple[list[Typed], list[str], list[str]]:
    """The models as of one class, what only one of them has, and a note on it.

    Of two classes with the same layers it is the one in which more is free: a bare model's outputs are not.
    """
    if not of_another_class(*models):
        return models, [], []
    first, second = (model.checkpoint for model in models)
    freer = max(models, key=lambda model: len(model.spec.sites))
    made = [model if model is freer else headed_as(model, freer) for model in models]
    apart = sorted({freer.spec.file_entries[part][0] for model in made for part in model.lacking})
    note = f"{first.label} is a {first.architecture}, {second.label} is a {second.architecture}: heads are not compared"
    return [replace(model, lacking=()) for model in made], apart, [note]
