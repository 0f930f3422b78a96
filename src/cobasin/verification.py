"""Do two checkpoints compute the same function? Both are run on probe inputs in float64 and compared.

A finite set of probes can show that two functions differ; that they are the same it shows as far as the probes reach:
positions beyond the 32nd are not seen. Of the vocabulary all rows are, those that no token of a probe names as a part
of others (`cobasin.checkpoints.probes.mixed_vocabulary`), by which a row counts the less the more there are; and of a
mixture all experts, those that no token of a probe is sent to by sending it to all (`all_experts`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.inputs import input_sizes
from cobasin.checkpoints.limits import positions, segments
from cobasin.checkpoints.pairs import other_settings
from cobasin.checkpoints.probes import BESIDE_IDS, all_experts, changed, mixed_vocabulary, probe
from cobasin.checkpoints.running import build, cast_floats, instantiate, outputs
from cobasin.checkpoints.sentence_transformers import differing_modules
from cobasin.checkpoints.typed import Typed, check_finite
from cobasin.errors import InputError, NotProbed, finite, listed, one_line, shown

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# transformers computes RMSNorm, rotary angles and parts of the softmax in float32 even in a float64 model.
FLOAT32_PARTS = 5e-6
CERTAINLY_DIFFERENT = 1e-4
# Differences up to the first multiple of the rounding noise are rounding, beyond the second they are not.
NEAR, FAR = 4, 20
# Rounding alone moves the outputs by more than this: they say nothing about the function.
TOO_NOISY = 0.03
NOISE_DRAWS = 4
# Above, the two float64 models that are built would be the largest thing in memory by far: not checked unasked.
VERIFIED_PARAMETERS = 100_000_000


@dataclass(frozen=True)
class Verdict:
    """The comparison of two models on probe inputs.

    Differences are relative, max|y_a - y_b| / max|y_a|; what was not measured, or is not finite, is None.

    Attributes:
        same: None where the outputs cannot tell.
        reason: why the verdict is what it is.
        relative_float64: the difference of the outputs in float64.
        absolute_float64: the same in the unit of the outputs.
        relative_native: the difference in the arithmetic of the stored dtypes.
        noise_float64: the change that one rounding of the stored tensors makes.
        tolerance: the limit that the difference in float64 was held against.
    """

    same: bool | None
    reason: str
    relative_float64: float | None = None
    absolute_float64: float | None = None
    relative_native: float | None = None
    noise_float64: float | None = None
    tolerance: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def verify(a: Any, b: Any, tolerance: float | None = None) -> Verdict:
    """Compare the functions of two models, given as anything `load` takes, on the same probe inputs.

    With a ``tolerance`` the relative difference in float64 is held strictly against it. Without one it is held against
    the change that rounding the stored tensors once makes, which is measured on ``a``: the same up to four times that
    (or 5e-6, if that is more), different beyond twenty times (and 1e-4), undecided between. One float64 model is in
    memory at a time.

    Raises:
        InputError: a tolerance below zero or not finite, a model that cannot be loaded, NaN or infinite values in a
            tensor, a class that transformers does not have, tensors that do not fill it, an input of unknown kind, a
            model that does not run on them.
    """
    if tolerance is not None and not (finite(tolerance) and tolerance >= 0):
        raise InputError(f"tolerance {shown(tolerance)}: expected a finite number that is not negative")
    a, b = load(a), load(b)
    for checkpoint in (a, b):
        for name, header in checkpoint.headers.items():
            if header.dtype.is_floating_point:  # where no probe reads it, it would pass
                tensor = checkpoint[name]
                check_finite(checkpoint.label, name, tensor.float() if tensor.itemsize == 1 else tensor)
    domains = [_domain(c) for c in (a, b)]
    if domains[0] != domains[1]:
        return Verdict(False, f"the models take different inputs: {domains[0]} against {domains[1]}")
    shorter = min(a, b, key=lambda c: positions(c.config))
    inputs = probe(shorter.config, shorter.architecture)
    right, rerun = computed(b, inputs), Rerun(a, inputs)
    left = rerun(a, ())
    if left.shape != right.shape:
        sizes = f"{left.numel()} against {right.numel()}"
        return Verdict(False, f"the models return different numbers of values for the same inputs: {sizes}")
    if reason := _saying_nothing(a, left) or _saying_nothing(b, right):
        return Verdict(None, reason)
    relative = relative_change(left, right)
    if tolerance is None:
        noise = rounding_noise(rerun, a, _steps(a, b), left)
        same, limit, reason = judge(relative, noise)
    else:
        noise, limit, same = None, float(tolerance), bool(relative <= tolerance)
        reason = f"relative difference {relative:.1e}, {'within' if same else 'above'} {tolerance:.1e}"
    del rerun  # one model at a time
    return Verdict(
        same=same,
        reason=reason + _not_compared(a, b) + (_not_seen(a, b) if same else ""),
        relative_float64=relative,
        absolute_float64=(left - right).abs().max().item(),
        relative_native=_native_difference(a, b, inputs, relative),
        noise_float64=noise,
        tolerance=limit,
    )


def _not_compared(a: Checkpoint, b: Checkpoint) -> str:
    """What stands behind the models in folders of Sentence Transformers, where it differs."""
    differing = differing_modules(a.folder, b.folder) if a.folder and b.folder else []
    return f"; not compared, but other files: {', '.join(differing)}" if differing else ""


def _not_seen(a: Checkpoint, b: Checkpoint) -> str:
    """Settings that change a function, and did not on the probes: a window may be longer than these."""
    try:
        differing = other_settings(Typed.of(a), Typed.of(b), same_class=a.architecture == b.architecture)
    except InputError:  # what cannot be typed can run all the same
        return ""
    return f"; on inputs that are not probed they may differ: {listed(differing)}" if differing else ""


def _saying_nothing(checkpoint: Checkpoint, y: Tensor) -> str:
    """Why outputs tell nothing of a function; empty where they do."""
    if not y.numel():
        return f"{checkpoint.label} puts out no values, so there is nothing to compare"
    if not y.isfinite().all():
        return f"the outputs of {checkpoint.label} are not finite"
    if not y.any() or (y.numel() > 1 and y.max() == y.min()):
        return f"the outputs of {checkpoint.label} are all {y[0].item():g}"
    return ""


def change(a: Checkpoint, b: Checkpoint) -> float:
    """The relative difference in float64 of two models of one config, as `verify` measures it; no verdict."""
    inputs = probe(a.config, a.architecture)
    return relative_change(*(computed(c, inputs) for c in (a, b)))


def computed(checkpoint: Checkpoint, inputs: Mapping[str, Tensor]) -> Tensor:
    """What a model puts out in float64, as it is and once more with its vocabulary mixed and all of its experts.

    Raises:
        NotProbed: it does not run on these inputs.
    """
    return _run(instantiate(checkpoint, torch.float64), checkpoint, inputs)


def _run(model: PreTrainedModel, of: Checkpoint, inputs: Mapping[str, Tensor]) -> Tensor:
    try:
        return _outputs(model, inputs)
    except (ArithmeticError, AttributeError, RuntimeError, LookupError, TypeError, ValueError) as error:  # of any class
        where = f"{of.label}: {of.architecture}"
        raise NotProbed(f"{where} does not run on made-up inputs in float64: {one_line(error)}") from error


def _outputs(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    found = outputs(model, inputs)
    if not (more := [*mixed_vocabulary(model), *all_experts(model)]):
        return found
    with changed(more):
        return torch.cat([found, outputs(model, inputs)])


class Rerun:
    """The outputs of a model, as `computed` has them, with other values of some of its tensors; it is built once.

    Where Transformers joins or converts a tensor as it loads it, the model is built anew.
    """

    def __init__(self, checkpoint: Checkpoint, inputs: Mapping[str, Tensor]):
        self._checkpoint, self._inputs = checkpoint, inputs
        self._state = {name: cast_floats(checkpoint[name], torch.float64) for name in checkpoint}
        self._model = build(checkpoint, dict(self._state), torch.float64)
        self._undo_copies()
        held = {(x.data_ptr(), x.numel()) for x in (*self._model.parameters(), *self._model.buffers())}
        self._held = {name for name, x in self._state.items() if (x.data_ptr(), x.numel()) in held}

    def __call__(self, other: Checkpoint, names: Collection[str]) -> Tensor:
        """The outputs of ``other``, which is the same model but for the tensors of these names in its file."""
        if not self._held.issuperset(names):
            return computed(other, self._inputs)
        self._fill(other, names)
        try:
            return _run(self._model, other, self._inputs)
        finally:
            self._fill(self._checkpoint, names)

    def _undo_copies(self) -> None:
        """Have the model read our tensor where Transformers has made one copy of it: the bias of a tied head."""
        parameters = dict(self._model.named_parameters())
        for name in self._state.keys() & parameters.keys():
            ours, own = self._state[name], parameters[name]
            if own.data_ptr() != ours.data_ptr():
                likes = [x for x in parameters.values() if (x.dtype, x.shape) == (ours.dtype, ours.shape)]
                if [x is own for x in likes if x.equal(ours)] == [True]:
                    own.data = ours

    def _fill(self, given: Checkpoint, names: Collection[str]) -> None:
        for name in names:
            self._state[name].copy_(given[name])


def judge(relative: float, noise: float | None) -> tuple[bool | None, float, str]:
    """The verdict from the relative difference and the rounding noise, the limit of "the same", and the sentence."""
    if noise is None:
        limit, found = FLOAT32_PARTS, "rounding of the stored tensors makes outputs that are not finite"
    else:
        limit, found = max(NEAR * noise, FLOAT32_PARTS), f"rounding of the stored tensors alone makes {noise:.1e}"
    reason = f"relative difference {relative:.1e}; {found}"
    if relative <= FLOAT32_PARTS:
        return True, limit, reason
    if noise is None or noise > TOO_NOISY:
        return None, limit, f"{reason}, too much to tell functions apart"
    if relative <= limit:
        return True, limit, reason
    if relative > max(FAR * noise, CERTAINLY_DIFFERENT):
        return False, limit, reason
    return None, limit, f"{reason}: too far for rounding, too near for another function"


def _steps(a: Checkpoint, b: Checkpoint) -> dict[str, float]:
    """The relative steps in which the tensors of `a` are stored, or those of `b`, if they are coarser.

    Files may have other names for one tensor: what `b` has not under that of `a` counts as its coarsest.
    """
    own, others = (
        {name: torch.finfo(one.dtype).eps for name, one in c.headers.items() if one.dtype.is_floating_point}
        for c in (a, b)
    )
    return {name: max(step, others.get(name, b.rounding)) for name, step in own.items()}


def rounding_noise(rerun: Rerun, model: Checkpoint, steps: Mapping[str, float], reference: Tensor) -> float | None:
    """The largest relative change of a model's float64 outputs under one random rounding of its tensors.

    ``steps`` are the relative steps of the tensors that are rounded. None where the change is not finite.
    """
    changes = []
    for draw in range(NOISE_DRAWS):
        generator = torch.Generator().manual_seed(1 + draw)

        def rounded(name: str, generator: torch.Generator = generator) -> Tensor:
            tensor = cast_floats(model[name], torch.float64)
            if name not in steps:
                return tensor
            u = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) - 0.5
            return tensor * (1 + steps[name] * u)

        changes.append(relative_change(reference, rerun(replace(model, read=rounded), steps)))
    return max(changes) if all(map(math.isfinite, changes)) else None


def relative_change(reference: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return ((reference - other).abs().max() / reference.abs().max()).item()


def _native_difference(a: Checkpoint, b: Checkpoint, inputs: Mapping[str, Tensor], in_float64: float) -> float | None:
    """The relative difference in the stored dtypes' arithmetic; None if not finite, or if it cannot run."""
    native = [(c, _native_dtype(c)) for c in (a, b)]
    if all(dtype == torch.float64 for _, dtype in native):
        return in_float64
    if any(dtype.itemsize == 1 for _, dtype in native):  # in which nothing computes
        return None
    try:
        relative = relative_change(*(_outputs(instantiate(c, dtype), inputs).double() for c, dtype in native))
    except (RuntimeError, TypeError):
        # A few classes have float32 written into their code, a few operations no kernel for short floats.
        return None
    return relative if math.isfinite(relative) else None


def _native_dtype(checkpoint: Checkpoint) -> torch.dtype:
    """The floating dtype in which most of the checkpoint's values are stored."""
    sizes: Counter[torch.dtype] = Counter()
    for header in checkpoint.headers.values():
        if header.dtype.is_floating_point:
            sizes[header.dtype] += math.prod(header.shape)
    return sizes.most_common(1)[0][0]


def _domain(checkpoint: Checkpoint) -> str:
    """What the model can be applied to."""
    inputs = input_sizes(checkpoint.config, checkpoint.architecture)
    if "decoder_input_ids" in inputs and checkpoint.architecture.endswith("ForSequenceClassification"):
        inputs["decoder_input_ids"]["eos_token_id"] = checkpoint.config.eos_token_id  # the token that is classified
    if "input_ids" in inputs and (count := segments(checkpoint.config)) > 1:
        inputs["token_type_ids"] = {"type_vocab_size": count}
    if "input_ids" in inputs:
        inputs["input_ids"] |= {key: size for key in BESIDE_IDS if (size := getattr(checkpoint.config, key, 0))}
    texts = (", ".join(f"{key} {size}" for key, size in sizes.items()) for sizes in inputs.values())
    return "; ".join(f"{name} with {text}" for name, text in zip(inputs, texts, strict=True))
