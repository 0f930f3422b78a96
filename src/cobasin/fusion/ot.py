"""Fusion by optimal transport: couple the neurons of every model to those of the anchor, then average.

Imfeld, Graldi, Giordano, Hofmann, Anagnostidis, Singh, Transformer Fusion with Optimal Transport, ICLR 2024; after
Singh and Jaggi, Model Fusion via Optimal Transport, NeurIPS 2020. A soft coupling mixes neurons, so that the coupled
model computes another function than before; only a hard one that is the same on both sides of every layer keeps it.
Couplings know no signs, rotations or scales: where the symmetry of a model has these, match first.

Defaults are those of the paper's published configuration: costs from unit-length features, regularisation 0.06 on
weights and 0.08 on activations, residual streams averaged, outputs of the last layer left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Annotated, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from cobasin.checkpoints.typed import Typed
from cobasin.coupling.couplings import Likeness, Solver, hard, soft, standardised
from cobasin.coupling.flow import Flow, Stage, flow_of
from cobasin.coupling.uses import Use
from cobasin.errors import InputError
from cobasin.fusion.average import linear
from cobasin.fusion.registry import method
from cobasin.progress import Count, silent
from cobasin.symmetry.state import Lazy, State, wide

Activations = Mapping[str, Tensor]
"""Outputs ``[rows, outputs]`` of a model's modules, by the spec names of their weights."""

Policy = Literal["averaging", "weighted_scalar", "weighted_matrix"]
"""How a residual stream flows on: the coupling of the skip connection and that of the branch in equal shares, in
proportion to their mean sizes, or to the mean sizes of every neuron."""

Regularization = Annotated[float, Gt(0)]
_REFERENCE = "Imfeld et al., Transformer Fusion with Optimal Transport, ICLR 2024"


def couple(
    anchor: Typed,
    states: Sequence[State],
    position: int,
    activations: Sequence[Activations] | None,
    solver: Solver,
    residual: Policy,
    progress: Count,
) -> list[State]:
    """Couple every model to the one at ``position``.

    Args:
        anchor: the type of the models, and the model that is run to find the order of its modules.
        states: the models' tensors, those at ``position`` the anchor's.
        position: of the anchor; its tensors stay as they are.
        activations: of every model, on the same inputs; None for costs from weights.
        solver: from a cost to a coupling.
        residual: what flows on where a branch joins a residual stream.
        progress: called with the number of couplings solved, and of all.

    Returns:
        For every model its coupled tensors, computed as they are asked for, in float32 or better.

    Raises:
        InputError: as `flow_of`; for activations that are not of the same inputs.
    """
    flow = flow_of(anchor)
    result = list(states)
    number, total = count(1), len(flow.order) * (len(states) - 1)

    def solved() -> None:
        progress(next(number), total)

    for i, state in enumerate(states):
        if i != position:
            pair = None if activations is None else (activations[i], activations[position])
            result[i] = Coupled(anchor, flow, state, states[position], pair, solver, residual, solved).state
    return result


class Coupled:
    """A model and its couplings to the anchor, solved in the order of execution.

    Attributes:
        writing: for every stage of the flow, the coupling ``[batch, n, n]`` on the tensors that write it.
        reading: the coupling on the tensors that read it: another one in a residual stream.
    """

    def __init__(
        self,
        typed: Typed,
        flow: Flow,
        source: State,
        anchor: State,
        activations: tuple[Activations, Activations] | None,
        solver: Solver,
        residual: Policy,
        solved: Callable[[], None] = lambda: None,
    ):
        self.typed, self.flow, self.source, self.anchor, self.activations = typed, flow, source, anchor, activations
        self.writing: dict[int, Tensor] = {}
        self.reading: dict[int, Tensor] = {}
        for i in flow.order:
            stage = flow.stages[i]
            own = torch.stack([solver(cost) for cost in self._likeness(stage).cost()]).float()
            before = None if stage.before is None else self.reading[stage.before]
            self.writing[i] = own
            self.reading[i] = own if before is None else _joined(stage, before, own, residual)
            solved()

    @property
    def state(self) -> State:
        """The coupled tensors."""
        return Lazy(self.source, self.tensor)

    def tensor(self, name: str, written: bool = True) -> Tensor:
        """A tensor, coupled on the axes that its module reads, and if ``written`` on those that it writes."""
        result, blocks = wide(self.source[name]), self._blocks(name)
        acting = [one for one in self.flow.acting.get(name, ()) if written or not one.writes]
        if acting:
            result = result.clone(memory_format=torch.contiguous_format)
        for one in acting:
            view = blocks[one.use.block].view(result)
            view.copy_(one.use.carry(view, (self.writing if one.writes else self.reading)[one.stage]))
        return result

    def _blocks(self, name: str):
        return self.typed.spec.entries[name].layout.blocks

    def _likeness(self, stage: Stage) -> Likeness:
        """How alike the neurons of a stage are, in all that writes them."""
        likeness = None
        for name, use in stage.writers:
            source, anchor = self._features(name, use)
            likeness = likeness or Likeness(tuple(source.shape[:2]))
            likeness.add(source, anchor)
        assert likeness is not None
        return likeness

    def _features(self, name: str, use: Use) -> tuple[Tensor, Tensor]:
        """What tells the neurons of a stage apart ``[batch, n, features]``, in the source and in the anchor."""
        if self.activations and all(name in own for own in self.activations):
            source, anchor = (own[name] for own in self.activations)
            if source.shape != anchor.shape:
                raise InputError(
                    f"activations of {name} are {tuple(source.shape)} in one model and {tuple(anchor.shape)} in the "
                    "anchor; optimal transport compares models on the same inputs"
                )
            return standardised(use.output_rows(source)).flatten(2), standardised(use.output_rows(anchor)).flatten(2)
        view = self._blocks(name)[use.block].view
        weights = use.rows(view(self.tensor(name, written=False))), use.rows(view(wide(self.anchor[name])))
        if self.activations:  # a constant of the model, such as its positions: they are its outputs
            return standardised(weights[0]), standardised(weights[1])
        return weights


def _joined(stage: Stage, skip: Tensor, own: Tensor, residual: Policy) -> Tensor:
    """The coupling of a residual stream behind a branch; sizes are those of the anchor's neurons, the columns."""
    share: Tensor | float = 0.5
    if residual != "averaging" and stage.skip is not None and stage.branch is not None:
        sizes = (
            (stage.skip, stage.branch) if residual == "weighted_matrix" else (stage.skip.mean(), stage.branch.mean())
        )
        share = (sizes[0] / (sizes[0] + sizes[1])).nan_to_num(0.5)
    return share * skip + (1 - share) * own


def by_weights(
    anchor: Typed,
    states: Sequence[State],
    position: int,
    activations: None = None,
    progress: Count = silent,
    *,
    regularization: Regularization = 0.06,
    residual: Policy = "averaging",
) -> list[State]:
    """OT fusion on weights: average of models whose neurons are softly coupled by their incoming weights."""
    return couple(anchor, states, position, None, partial(soft, regularization=regularization), residual, progress)


def by_activations(
    anchor: Typed,
    states: Sequence[State],
    position: int,
    activations: Sequence[Activations],
    progress: Count = silent,
    *,
    regularization: Regularization = 0.08,
    residual: Policy = "averaging",
) -> list[State]:
    """OT fusion on activations: average of models whose neurons are softly coupled by their outputs."""
    solver = partial(soft, regularization=regularization)
    return couple(anchor, states, position, activations, solver, residual, progress)


def hard_by_activations(
    anchor: Typed,
    states: Sequence[State],
    position: int,
    activations: Sequence[Activations],
    progress: Count = silent,
    *,
    residual: Policy = "averaging",
) -> list[State]:
    """OT fusion on activations, hard: average of models whose neurons are assigned to each other by their outputs."""
    return couple(anchor, states, position, activations, hard, residual, progress)


@method("ot_wts", reference=_REFERENCE, couple=by_weights)
@method("ot_acts", reference=_REFERENCE, statistics="activations", couple=by_activations)
@method("ot_acts_emd", reference=_REFERENCE, statistics="activations", couple=hard_by_activations)
def average(tensors: Sequence[Tensor], *, weight: tuple[float, ...] = (1.0,)) -> Tensor:
    """The average of coupled models.

    Args:
        tensors: of the coupled models.
        weight: one a model; they are divided by their sum.

    Raises:
        InputError: the weights add up to nothing.
    """
    return linear(tensors, weight=weight)
