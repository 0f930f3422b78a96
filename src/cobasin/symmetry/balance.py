"""The balanced basis: GL(d) made O(d).

Where one side of a product is multiplied by a map and the other by its contragredient (queries and keys without
rotary embedding, values and output projections), any invertible map M keeps the function: P → P M, K → K M⁻ᵀ. In the
basis where both sides have the same Gram, (PM)ᵀ(PM) = (KM⁻ᵀ)ᵀ(KM⁻ᵀ), what is left is orthogonal, so that matching
there by Procrustes is closed form (Zhang et al. 2025 leave general invertible maps open, Appendix D). With
P = Q₁R₁, K = Q₂R₂ and R₁R₂ᵀ = UΣVᵀ, M = R₁⁻¹UΣ^½ balances them, up to an isometry: the symmetric positive one of
these maps is taken, which leaves a balanced model as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cobasin.symmetry.action import Action, Values, action_of, batch_positions, in_new_order, in_old_order, move, rows
from cobasin.symmetry.form import Form
from cobasin.symmetry.groups import General, Value
from cobasin.symmetry.keys import Key
from cobasin.symmetry.singular import singular_values, svd
from cobasin.symmetry.state import Lazy, State

GENERAL = General()
"""The group that frames are elements of."""
FRAME = ("matrix", "dual")
Frames = dict[Key, Value]
"""For every balanced key the map of charge +1 and that of charge -1, its contragredient: ``[*batch, d, d]``."""

LARGEST_CONDITION = 1e4  # of a frame; a head beyond it keeps its own basis, scaled


def balancing_frames(form: Form, state: State) -> Frames:
    """The frames that bring every balanced key of a model to the balanced basis.

    A head whose frame would have a condition number above `LARGEST_CONDITION`, or is not determined, keeps its own
    basis, scaled so that both sides have one norm.
    """
    return {key: _frame(*(_stacked(form, key, state, charge) for charge in (1, -1))) for key in form.balanced}


def in_frames(form: Form, state: State, frames: Frames) -> State:
    """The model with every key in ``frames`` moved to its frame."""
    action = frame_action(frames)
    return Lazy(state, lambda name: move(form.spec, action, name, state[name]))


def inverses(frames: Frames) -> Frames:
    """The way back from every frame."""
    return {key: GENERAL.inverse(frame) for key, frame in frames.items()}


def frame_action(frames: Frames) -> Callable[[Key], Action | None]:
    """How the frames act, for `cobasin.symmetry.action.move`."""
    return action_of(lambda _: GENERAL, frames)


def keep_bases(form: Form, values: Values, source: Frames, target: Frames) -> Frames:
    """``target`` with no more than a scale of frames that would move a head whose own basis the source keeps."""
    kept = {}
    for key, frame in target.items():
        own, size = source[key]["matrix"], frame["matrix"].shape[-1]
        without = (own == _multiples(own[..., 0, 0], size)).all(-1).all(-1)
        # a head with a side of zeros has no scale either: it keeps what it has, and comes back from there
        moves = in_new_order(form.spec, values, key, {"without": without, "scaled": own[..., 0, 0] != 1})
        scale = torch.linalg.slogdet(frame["matrix"]).logabsdet.div(size).exp()
        scale = torch.where(moves["scaled"], scale, 1.0)
        scales = {"matrix": _multiples(scale, size), "dual": _multiples(1 / scale, size)}
        without = moves["without"][..., None, None]
        kept[key] = {part: torch.where(without, scales[part], tensor) for part, tensor in frame.items()}
    return kept


def in_isometries(form: Form, values: Values, target: Frames) -> tuple[Values, Frames]:
    """Learned general maps as isometries, and the target's frames so that the same file is written.

    A map M that is followed by a frame F⁻¹ is, in polar form M F⁻¹ = R P, the isometry R followed by the frame P⁻¹. So
    the values of an element stay isometries: what stretches is a matter of the gauge that it writes.
    """
    values, target = dict(values), dict(target)
    for key in target.keys() & values.keys():
        if "dual" not in values[key]:
            continue
        back = _back(form, values, key, target[key])
        u, sizes, vh = svd(values[key]["matrix"] @ back["matrix"])
        frame = {"matrix": vh.mT / sizes[..., None, :] @ vh, "dual": vh.mT * sizes[..., None, :] @ vh}
        values[key] = {"matrix": u @ vh}
        target[key] = in_new_order(form.spec, values, key, frame)
    return values, target


def conditions(form: Form, values: Values, source: Frames, target: Frames) -> dict[Key, float]:
    """For every balanced key the largest condition number of the maps that act on the source's bases in all."""
    found = {}
    for key in form.balanced:
        back = _back(form, values, key, target[key])
        maps = source[key]["matrix"]
        if key in values:
            maps = maps @ values[key]["matrix"]
        sizes = singular_values(maps @ back["matrix"])
        found[key] = float((sizes[..., 0] / sizes[..., -1]).max())
    return found


def _back(form: Form, values: Values, key: Key, frame: Value) -> Value:
    """The way back from a frame of the target, listed as the source lists its heads."""
    return in_old_order(form.spec, values, key, GENERAL.inverse(frame))


def _stacked(form: Form, key: Key, state: State, charge: int) -> Tensor:
    """Everything that a key multiplies on one side, ``[*batch, rows, d]``."""
    sides = []
    for site in form.spec.sites[key]:
        block = form.spec.block_at(site)
        if block.axes[site.axis].charge == charge and site.tensor not in form.spec.tied:
            view = block.view(state[site.tensor]).double()
            sides.append(rows(view, batch_positions(form.spec, block.axes, key[0]), site.axis))
    return torch.cat(sides, -2)


def _frame(direct: Tensor, contragredient: Tensor) -> Value:
    """The balancing frame of two sides, ``[*batch, rows, d]`` each."""
    r1, r2 = (torch.linalg.qr(side, mode="r").R for side in (direct, contragredient))
    size, scale = direct.shape[-1], torch.linalg.matrix_norm(contragredient) / torch.linalg.matrix_norm(direct)
    scale = torch.where((scale > 0) & scale.isfinite(), scale, 1.0).sqrt()
    own = {"matrix": _multiples(scale, size), "dual": _multiples(1 / scale, size)}
    if min(r1.shape[-2], r2.shape[-2]) < size:  # fewer rows than directions: no frame is determined
        return own
    u, s, _ = svd(r1 @ r2.mT)
    matrix = torch.linalg.solve_triangular(r1, u * s.sqrt()[..., None, :], upper=True)
    left, sizes, _ = svd(matrix.nan_to_num(0.0, 0.0, 0.0))  # zero, and so not usable, where r1 is singular
    usable = (sizes[..., -1] > 0) & (sizes[..., 0] < LARGEST_CONDITION * sizes[..., -1])
    symmetric = (left * sizes[..., None, :]) @ left.mT
    dual = (left / sizes[..., None, :]) @ left.mT
    return {
        part: torch.where(usable[..., None, None], found, own[part])
        for part, found in (("matrix", symmetric), ("dual", dual))
    }


def _multiples(scale: Tensor, size: int) -> Tensor:
    """Multiples of the identity, ``[*batch, size, size]``."""
    return scale[..., None, None] * torch.eye(size).to(scale)
