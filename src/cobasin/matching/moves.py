"""The neighbourhood of an element, differentiable: what learning moves, and how it stays in the group, or ends there.

Every part of an element is moved from where it starts by a free parameter, zero at the start:

* an isometry Q becomes ``Q · cayley(S - Sᵀ)``, with S projected on the complement of **1** where that is fixed
  (the Cayley map is ``(I + X/2)⁻¹(I - X/2)``, orthogonal for every skew X),
* a rotary angle is added to,
* a scale is multiplied by ``exp(s)``, and keeps its sign,
* a general map is moved in polar form, ``Q · cayley(S - Sᵀ) · exp(S + Sᵀ)``; its contragredient has the inverse of the
  last factor,
* the order of a residual stream is learned between the orders (`cobasin.matching.sharpened`),
* any other stays, or (`cobasin.matching.learned_orders`) is what the scores of all pairs assign, which are added to.

Logarithms of stretches are bounded smoothly, so that no map's condition passes a fixed number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cobasin.matching.learned_orders import assigned
from cobasin.matching.sharpened import SOFT, settled, softened, streams
from cobasin.symmetry.action import Values
from cobasin.symmetry.form import Form
from cobasin.symmetry.groups import General, Group, Orthogonal, Value
from cobasin.symmetry.keys import Key

LARGEST_STRETCH = 2.0
"""The logarithm of what a scale may change by, and of a general map's largest singular value over its start's."""


class Moves:
    """Parameters around an element.

    Attributes:
        parameters: float32 leaves on ``device``; all zero is the start.
        soft: share of the steps of learning in which the element is between orders; none, where none of a stream moves.
    """

    def __init__(
        self,
        form: Form,
        groups: Mapping[Key, Group],
        start: Values,
        turns: bool = True,
        device: torch.device | str = "cpu",
        orders: Mapping[Key, Value] | None = None,
    ):
        """Make the parameters.

        Args:
            form: the form that the element acts in.
            groups: in which every key moves, which may have less than the form's: no scale, where none is asked for.
            start: the element; what it lacks does not move.
            turns: whether isometries and orders move; without them only scales and stretches do, as those of a
                reference, whose isometries would turn all models alike.
            device: where the parameters lie.
            orders: of those of neurons that move what `cobasin.matching.learned_orders.pairs` says; of streams,
                which move in any case, `cobasin.matching.sharpened.signs`.
        """
        self.form, self.groups, self.start, self.orders = form, groups, start, dict(orders or {})
        found = {
            (key, part): torch.zeros_like(value[part], dtype=torch.float32, device=device)
            for key, value in start.items()
            for part in _parts(groups[key], value, turns)
        }
        found |= {
            (key, "order"): torch.zeros(2 * start[key]["perm"].shape, dtype=torch.float32, device=device)
            for key in (streams(form, {key: groups[key] for key in start}) if turns else ())
        }
        found |= {
            (key, "scores"): torch.zeros_like(value["scores"], dtype=torch.float32, device=device)
            for key, value in self.orders.items()
            if "scores" in value
        }
        self._turns, self._places = turns, list(found)
        moved = {part for _, part in found}
        # where nothing else moves, there is nothing to learn once orders stay
        self.soft = 0.0 if "order" not in moved else SOFT if len(moved) > 1 else 1.0
        self.parameters = [parameter.requires_grad_() for parameter in found.values()]

    def values(self, share: float = 1.0) -> Values:
        """The element at the parameters, in float32, differentiable.

        Args:
            share: of the steps of learning that are done; from `soft` on the element is in the group.
        """
        return self._at(self.parameters, share)

    @torch.no_grad()
    def exact(self, parameters: Sequence[Tensor]) -> Values:
        """The element at these values of the parameters, in float64 on the CPU."""
        values = self._at([parameter.detach().cpu().double() for parameter in parameters])
        for key in self.orders:
            values[key] = {part: values[key][part] for part in self.start[key]}
        return values

    def _at(self, parameters: Sequence[Tensor], share: float = 1.0) -> Values:
        moved = {key: dict(value) for key, value in self.start.items()}
        for (key, part), move in zip(self._places, parameters, strict=True):
            if part == "order":
                start, ratio = self.start[key], self.orders.get(key, {}).get("ratio")
                between = share < self.soft
                moved[key] |= (
                    softened(start, move, share / self.soft, ratio) if between else settled(start, move, ratio)
                )
            elif part == "scores":  # after all else: a neuron's scale depends on its partner
                moved[key] |= assigned(moved[key], self.orders[key], move)
            else:
                moved[key] |= _moved(self.groups[key], self.start[key], part, move, self._turns)
        return moved


def _parts(group: Group, value: Value, turns: bool) -> list[str]:
    parts = ["scale"] if group.scaled and "scale" in value else []
    if isinstance(group, General) or (turns and isinstance(group, Orthogonal)):
        parts.append("matrix")
    if turns and "angle" in value:
        parts.append("angle")
    return parts


def _moved(group: Group, value: Value, part: str, move: Tensor, turns: bool) -> Value:
    start = value[part].to(move)
    if part == "angle":
        return {part: start + move}
    if part == "scale":
        return {part: start * _bounded(move, move.abs()).exp()}
    assert isinstance(group, Orthogonal)
    turned = start @ _cayley(move - move.mT, group.fix_ones) if turns else start
    if not isinstance(group, General):
        return {part: turned}
    stretch = move + move.mT
    stretch = _bounded(stretch, torch.linalg.matrix_norm(stretch, keepdim=True))
    dual = value["dual"].to(move) if "dual" in value else start
    if turns:
        dual = dual @ _cayley(move - move.mT, group.fix_ones)
    return {part: turned @ torch.matrix_exp(stretch), "dual": dual @ torch.matrix_exp(-stretch)}


def _bounded(x: Tensor, size: Tensor) -> Tensor:
    """``x`` of a size below `LARGEST_STRETCH`, nearly unchanged where it is small."""
    return x / (1 + (size / LARGEST_STRETCH).square()).sqrt()


def _cayley(skew: Tensor, fix_ones: bool) -> Tensor:
    if fix_ones:  # centred on both sides
        skew = skew - skew.mean(-1, keepdim=True)
        skew = skew - skew.mean(-2, keepdim=True)
    one = torch.eye(skew.shape[-1], dtype=skew.dtype, device=skew.device)
    return torch.linalg.solve(one + skew / 2, one - skew / 2)
