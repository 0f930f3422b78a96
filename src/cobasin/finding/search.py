"""How an element is found: by weights, with activations, or learned.

Each method starts where the one before it ends. ``activations`` matches what both models compute on the same inputs
together with their weights; ``learned`` goes on with the loss of the interpolated model. The inputs are made up unless
data is given. Where the weights alone agree the other two have nothing to add, and a planted element stays exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from cobasin.checkpoints.typed import Typed
from cobasin.data import Batches, DataConfig, batches, task_of
from cobasin.data.synthetic import check_synthetic, synthetic_inputs
from cobasin.errors import InputError
from cobasin.evaluation.running import input_sizes, instantiate
from cobasin.matching.activations import Activations, with_activations
from cobasin.matching.learned import HELD_OUT, Inputs, Line, learn, movable
from cobasin.matching.state import Match
from cobasin.matching.weights import ascend
from cobasin.statistics.joint import joint_activations
from cobasin.statistics.modules import holders_of, input_axis, linear_maps, parameter_names
from cobasin.statistics.rows import Rows

Method = Literal["weights", "activations", "learned"]
Progress = Callable[[int, float], None]
Improve = Callable[[Match, tuple[Typed, Typed], Progress | None], dict[str, Any]]
"""Goes on from the ascent by weights: the match holds the result, what is returned belongs in the report."""

SAMPLES = 1024  # rows of data, or images made up
TEXTS = 128  # made up
COMPARED = 256  # inputs on which activations are compared, at most
STEPS = 200
LANGUAGE = ("causal_lm", "masked_lm", "seq2seq_lm")
AGREED = 1e-8  # squared distance of the matched weights, over their squared norm


@dataclass(frozen=True)
class Search:
    """What is asked for.

    Attributes:
        method: ``weights``, ``activations`` or ``learned``.
        data: the inputs, as `cobasin.data.batches` takes them; made up where None.
        samples: how many inputs; by default `SAMPLES`, or `TEXTS` that are made up.
        seed: of the inputs, and of what is random in learning.
        steps: of learning, at most.

    Raises:
        InputError: for an unknown method, data for one that takes none, numbers out of range.
    """

    method: str = "weights"
    data: DataConfig | Sequence[Mapping[str, Any]] | None = None
    samples: int | None = None
    seed: int = 0
    steps: int = STEPS

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise InputError(f"method {self.method!r} is unknown; expected one of {', '.join(get_args(Method))}")
        if self.method == "weights" and self.data is not None:
            raise InputError("method weights reads no data; leave it out, or take method activations or learned")
        if min(self.steps, self.seed + 1, 1 if self.samples is None else self.samples) < 1:
            raise InputError(
                f"samples {self.samples}, steps {self.steps}, seed {self.seed}: expected whole numbers from 1 on, a "
                "seed from 0"
            )

    def prepared(self, typed: Sequence[Typed]) -> Improve | None:
        """What goes on from the ascent by weights, None where nothing does; all checks that need no tensor are done.

        Raises:
            InputError: inputs that cannot be made up, data that do not fit, models that cannot be learned from.
        """
        if self.method == "weights":
            return None
        first = typed[0].checkpoint
        if self.data is None:
            check_synthetic(first)
        task = task_of(first)
        if self.method == "learned":
            _check_learnable(typed, task)
        texts = self.data is None and "input_ids" in input_sizes(first.config, first.architecture)
        count = self.samples or (TEXTS if texts else SAMPLES)
        size = max(1, min(8 if task in LANGUAGE else 32, count // HELD_OUT))
        found = None
        if self.data is not None:
            found = batches(first, self.data, samples=count, batch_size=size, seed=self.seed)
            count = found.rows
        if self.method == "learned" and count <= size:
            raise InputError(
                f"learning holds some inputs out: {count} are too few, it needs more than {size}; give more, or take "
                "method activations"
            )
        return partial(_improve, self, task, count, size, found)


def _check_learnable(typed: Sequence[Typed], task: str) -> None:
    first = typed[0]
    label, architecture = first.checkpoint.label, first.checkpoint.architecture
    if task == "features":
        raise InputError(f"{label}: a {architecture} has no answers to learn from; take method activations")
    if any(model.labels != first.labels for model in typed):
        raise InputError("the task heads have different labels: no common answers to learn; take method activations")
    if any(entry.stack for entry in first.spec.entries.values()):
        raise InputError(f"{label}: its experts are joined in memory, and cannot learn; take method activations")


def _improve(
    search: Search,
    task: str,
    count: int,
    size: int,
    data: Batches | None,
    match: Match,
    pair: tuple[Typed, Typed],
    progress: Progress | None,
) -> dict[str, Any]:
    """See `Improve`."""
    if match.total <= AGREED * sum(float(match.anchor[name].double().norm()) ** 2 for name in match.tensors):
        return {"method": search.method, "notes": [f"the weights agree: nothing was left for method {search.method}"]}
    if search.method == "learned" and not movable(match.values):
        raise InputError("nothing here can be learned but orders, which are not; free attention or residual, too")
    states = match.source, match.anchor
    models = [
        instantiate(typed.derived(state, torch.float32), torch.float32).requires_grad_(False)
        for typed, state in zip(pair, states, strict=True)
    ]
    inputs: list[Inputs]
    if data is None:
        inputs = _split(synthetic_inputs(models, count, search.seed), size)
    else:
        inputs = [batch.inputs for batch in data]
    report: dict[str, Any] = {
        "method": search.method,
        "inputs": {"count": count, "digest": data.digest if data else None, "seed": search.seed},
    }
    by_weights = dict(match.values)
    joint = _with_activations(match, pair, models, inputs[: -(-COMPARED // size)])
    ascend(joint, progress)
    match.set(joint.values)
    kind = "inputs that were made up" if data is None else "rows of data"
    if search.method == "activations":
        return report | {"notes": [f"matched by weights and by activations on {min(count, COMPARED)} {kind}"]}
    line = _line(match, pair[1], models, task)
    moved = partial(_moved, match, progress) if progress else None
    found = learn(line, [by_weights, joint.values], inputs, search.steps, search.seed, moved)
    match.set(found.values)
    note = (
        f"learned on {count} {kind}: loss of the midpoint on those held out {found.losses[0]:.4g} before, "
        f"{min(found.losses):.4g} after"
    )
    return report | {"learning": {"held_out": found.losses}, "notes": [note]}


def _split(inputs: Inputs, size: int) -> list[Inputs]:
    parts = (x.split(size) for x in inputs.values())
    return [dict(zip(inputs, batch, strict=True)) for batch in zip(*parts, strict=True)]


def _with_activations(
    match: Match, pair: tuple[Typed, Typed], models: Sequence[Any], inputs: Sequence[Inputs]
) -> Match:
    maps = [linear_maps(holders_of(model, typed)) for model, typed in zip(models, pair, strict=True)]
    maps = [{name: module for name, module in own.items() if name in match.tensors} for own in maps]
    found = {}
    for name, sides in joint_activations(models, maps, inputs).items():
        weight, side = name.rsplit(":", 1)
        into = input_axis(maps[0][weight])
        found[name] = Activations(into if side == "in" else 1 - into, side == "in", sides)
    return with_activations(match, found)


def _line(match: Match, anchor: Typed, models: Sequence[Any], task: str) -> Line:
    """The line between the two.

    Raises:
        InputError: where Transformers holds parameters in memory in other tensors than in the file.
    """
    names, spec = parameter_names(models[1], anchor), anchor.spec
    if missing := spec.entries.keys() - names.keys() - spec.tied.keys() - set(spec.unread):
        raise InputError(
            f"{anchor.checkpoint.label}: {min(missing)} is part of another tensor in memory, and cannot learn; take "
            "method activations"
        )
    ends = [{name: state[name].float() for name in names} for state in (match.source, match.anchor)]
    return Line(match.form, (ends[0], ends[1]), models, names, task, _counted)


def _counted(inputs: Inputs, logits: Tensor) -> Tensor:
    return Rows(inputs).counted(logits)


def _moved(match: Match, progress: Progress, step: int, values: Any) -> None:
    match.set(values)
    progress(step, match.total)
