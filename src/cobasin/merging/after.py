"""After the merge, where it is asked for: repair, then heal, both reported apart from what the merge itself gives.

Some inputs are held out from both. On them the loss is measured of the merge as it is and after each of the two:
against what the parents answer on average, and against labels where the inputs have them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.execution.devices import device_of
from cobasin.finding.match import Matched
from cobasin.learning.answers import label_count
from cobasin.learning.descent import Data, hold_out
from cobasin.learning.inputs import SAMPLES, TEXTS, Inputs
from cobasin.merging.fused import Fusion
from cobasin.merging.heal import RATE, Judge, heal
from cobasin.merging.parameters import Parameters
from cobasin.merging.repair import norms_of, repair
from cobasin.merging.stacked import as_fused
from cobasin.progress import Progress
from cobasin.recipe import Recipe
from cobasin.recipe.after import After
from cobasin.statistics.modules import built, by_spec_name
from cobasin.statistics.rows import row_count
from cobasin.symmetry.form import Form
from cobasin.symmetry.state import Lazy, State


@dataclass(frozen=True)
class Afterwards:
    """What follows a merge, checked before it.

    Attributes:
        asked: what the recipe says.
        inputs: of both.
        parents: positions of the models that the merge lies between.
        teachers: positions of those among them whose answers are compared: they have the labels of the result.
        owner: position of the model that gives the result its other files, and its task head.
        own_head: whether that is not merged.
        device: where models run; where they are matched, too, if a device is named for that.
    """

    asked: After
    inputs: Inputs
    parents: list[int]
    teachers: list[int]
    owner: int
    own_head: bool
    device: torch.device

    @classmethod
    def of(cls, recipe: Recipe, typed: Sequence[Typed], owner: int) -> Afterwards | None:
        """What a recipe asks for; all is checked that needs no tensor.

        Args:
            recipe: of the merge.
            typed: its models.
            owner: see `Afterwards`.

        Raises:
            InputError: for inputs that do not fit or cannot be made up, labels that are missing, negative weights.
        """
        asked = recipe.after
        if asked is None:
            return None
        parents = [recipe.referenced.index(name) for name in recipe.between]
        teachers = [i for i in parents if typed[i].labels == typed[owner].labels]
        if asked.repair is not None:
            parameters = Parameters(recipe, as_fused(recipe, typed, typed)[0][0])
            kept = typed[owner].task_heads if recipe.head is not None else []
            for name, entry in parameters.spec.entries.items():
                if len(entry.layout.shape) == 1 and name.endswith("weight") and name not in kept:  # of a norm
                    shares_of(parameters, name)
        device = device_of(recipe.match.device)
        usual = (SAMPLES, TEXTS) if asked.heal is None else None
        inputs = Inputs.of(typed[owner].checkpoint, asked.data, asked.samples, asked.seed, usual)
        if inputs.count < 2:
            raise InputError("repair and heal hold some inputs out: 1 is too few; give more samples")
        if asked.heal is not None and asked.heal.loss == "labels" and not inputs.labelled:
            raise InputError(f"heal: loss labels, but {inputs.no_labels}; or take loss parents, which needs none")
        if asked.heal is not None and asked.heal.loss == "parents" and teachers != parents:
            raise InputError(
                "heal: the task heads of the models have different labels, so their answers have no mean; take loss "
                "labels, or leave heal out"
            )
        if not teachers and not inputs.labelled:
            raise InputError("repair and heal: no model has the labels of the result, and there are no labels in data")
        return cls(asked, inputs, parents, teachers, owner, recipe.head is not None, device)

    def run(self, fusion: Fusion, matched: Matched, state: State, progress: Progress) -> tuple[State, dict[str, Any]]:
        """Repair and heal.

        Args:
            fusion, matched: of the merge.
            state: its result.
            progress: see `Progress`.

        Returns:
            The tensors of the result, in float32 or better, and what the report says.

        Raises:
            InputError: as `repair` and `heal`.
        """
        typed = fusion.typed[self.owner]
        merged = _Running(typed, state, self.device)
        # one may be given twice
        parents = {i: _Running(matched.typed[i], matched.states[i], self.device) for i in self.parents}
        held, seen = hold_out(self.inputs.batches([parents[i].model for i in self.parents], progress))
        judge = Judge([parents[i].model for i in self.teachers], self.inputs.task)
        against = ["parents"] if self.teachers else []
        if self.inputs.labelled and (not against or any(label_count(self.inputs.task, batch) for batch in held)):
            against.append("labels")
        report: dict[str, Any] = {
            "inputs": self.inputs.report | {"held_out": sum(row_count(one.inputs) for one in held)},
            "losses": {},
        }

        def measure(stage: str) -> None:
            report["losses"][stage] = {word: judge.mean(merged.model, held, word) for word in against}
            if not all(map(math.isfinite, report["losses"][stage].values())):
                raise InputError(
                    f"after the {stage} the loss on held-out inputs is not finite: leave repair and heal out"
                )

        measure("merge")
        if self.asked.repair is not None:
            report["repair"] = {"norms": self._repair(fusion, merged, parents, seen, progress)}
            measure("repair")
        if (asked := self.asked.heal) is not None:
            rate = asked.rate or RATE
            descent = heal(
                merged.model,
                judge,
                held,
                seen,
                steps=asked.steps,
                against=asked.loss,
                rate=rate,
                seed=self.asked.seed,
                progress=lambda step, loss: progress(f"healing: held-out loss {loss:.4g}", step, asked.steps),
            )
            report["heal"] = {"steps": asked.steps, "loss": asked.loss, "rate": rate, "held_out": descent.losses}
            report["heal"] |= {"taken": descent.steps, "end": descent.end}
            measure("heal")
        found = by_spec_name(merged.model, typed)

        def tensor(name: str) -> torch.Tensor:
            own = typed.spec.tied.get(name, name)
            return found[own] if own in found else state[name]

        return Lazy(typed, tensor), report

    def _repair(
        self, fusion: Fusion, merged: _Running, parents: Mapping[int, _Running], seen: Data, progress: Progress
    ) -> int:
        """Repair the merged model; the number of its norms."""
        if fusion.method.couple is not None:  # its neurons are where it has put them
            parents = {i: _Running(fusion.typed[i], fusion.states[i], self.device) for i in self.parents}
        models = [merged, *(parents[i] for i in self.parents)]
        if self.asked.samples is None or self.inputs.data is None:  # every norm asks for a run on all of them
            seen = list(islice(iter(seen), -(-(self.asked.samples or SAMPLES) // self.inputs.size)))
        heads = fusion.typed[self.owner].task_heads if self.own_head else []
        done = repair(
            [one.model for one in models],
            [{name: modules for name, modules in one.norms.items() if name not in heads} for one in models],
            seen,
            lambda name: shares_of(fusion.parameters, name),
            Form(fusion.spec).plus_one,
            lambda done, total: progress("repairing norms", done, total),
        )
        return len(done)


def cautions(report: Mapping[str, Any]) -> list[str]:
    """Notes where repair did harm (healing cannot, by the loss that it lowers), and where healing overflowed."""
    losses, found = report["losses"], []
    if "repair" in losses:
        against = list(losses["merge"])[-1]
        before, after = losses["merge"][against], losses["repair"][against]
        if after > before:
            raised = f"raised the held-out loss against {against} by {after - before:.2g}, from {before:.4g}"
            found.append(f"repair {raised}: better without it")
    if (end := report.get("heal", {}).get("end")) is not None:
        found.append(f"healing {end}; a lower rate may bring it further")
    return found


class _Running:
    """A model in memory.

    Attributes:
        model: in float32 (float64 where it is that), on the device.
        norms: its norms by spec name.
    """

    def __init__(self, typed: Typed, state: State, device: torch.device):
        self.model, holders = built(typed, state, typed.checkpoint.running_dtype, device)
        self.norms = norms_of(holders)


def shares_of(parameters: Parameters, part: str) -> list[float]:
    """How much each of the parents counts in a tensor, one in all.

    Raises:
        InputError: where one counts less than nothing, or none counts.
    """
    own = parameters[part]
    if "t" in own:  # of slerp
        return [1 - own["t"], own["t"]]
    weights = own["weight"]
    if min(weights) < 0 or not any(weights):
        shown = ", ".join(f"{one:g}" for one in weights)
        raise InputError(f"repair: {parameters.on_disk(part)} has weights {shown}: expected none below 0, one above")
    return [one / sum(weights) for one in weights]
