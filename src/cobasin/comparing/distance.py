"""How far apart two models are, from their tensors as they are."""

from __future__ import annotations

from typing import Any, NamedTuple

from cobasin.checkpoints.alike import alike
from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.pairs import check_pair
from cobasin.checkpoints.typed import Typed
from cobasin.matching.state import compared
from cobasin.symmetry.canonical import canonical
from cobasin.symmetry.form import form_of
from cobasin.symmetry.state import apart


class Distance(NamedTuple):
    """Euclidean distances of two models.

    Attributes:
        files: of their tensors, those left out that repeat another one.
        canonical: in one canonical form: norms folded, free biases moved or dropped, gauge left out. It is what is left
            of the first once all has gone that no matching is needed for.
    """

    files: float
    canonical: float


def distance(a: Any, b: Any) -> Distance:
    """The distance of two models as they are; nothing is matched (`cobasin.compare` does).

    Args:
        a, b: anything `cobasin.load` takes; of one architecture, configuration and vocabulary.

    Raises:
        InputError: for models that do not fit each other or the architecture; for NaN or infinite values.
    """
    files = alike([Typed.of(load(model)) for model in (a, b)])
    check_pair(*files)
    left_out = {*files[0].spec.tied, *(files[0].heads if files[0].labels != files[1].labels else ())}
    ends = [model.untied() if model.spec.unties else model for model in files]
    form = form_of(ends[0].spec, folded=bool(ends[0].spec.norms), free_biases=True)
    x, y = (canonical(form, end) for end in ends)
    return Distance(
        apart(files[0], files[1], [name for name in files[0] if name not in left_out]),
        apart(x, y, [name for name in compared(form) if name not in left_out]),
    )
