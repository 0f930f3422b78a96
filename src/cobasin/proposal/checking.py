"""Is a declaration right? Random elements of its group act on a model, which must go on computing the same function.

Of a declaration that is wrong: which space or which folded norm changes the function, and which single change of a type
or a group would keep it. Of one that is right: the tensors whose entry makes no difference.
"""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.typed import VARIANCE, Typed
from cobasin.errors import InputError
from cobasin.proposal.repairs import repairs, subgroups
from cobasin.symmetry.canonical import Gauge, gauge_of
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import Form, form_of
from cobasin.symmetry.gauges import KeyBias
from cobasin.symmetry.spec import Spec
from cobasin.verification import FLOAT32_PARTS, NEAR, Rerun, computed, relative_change, rounding_noise

EXACT = 1e-9  # what is below was computed in float64 throughout
IDLE = 20  # a tensor makes no difference where leaving it out changes less than this many times what moving it does
BLURRED = 1e-3  # of rounding that changes so much a wrong declaration could not be told
DRAWS = 16  # of an element, in search of one without an identity in it
REPAIRED = 3_000_000  # parameters up to which repairs are tried: every one costs a run of the model


@dataclass(frozen=True)
class Check:
    """What was found out about a declaration; changes of the function are relative, max|y - y'| / max|y|.

    Attributes:
        architecture: the Transformers class.
        limit: changes up to this are rounding: 5e-6, or four times what float32 roundings of the tensors change, of
            some the most, as Transformers computes parts in float32 always.
        plain: the change under a random element of the declared groups.
        canonical: the same with the norms folded, the free biases moved and the bases balanced, all at random; None
            where the groups alone are wrong.
        pieces: where one of the two is broken, the change under each space, norm, bias or basis alone.
        repairs: where a space is broken, single changes of the declaration with which it keeps the function.
        idle: tensors (or their blocks) whose entry makes no difference, though no declared gauge says so.
    """

    architecture: str
    limit: float
    plain: float
    canonical: float | None = None
    pieces: dict[str, float] = field(default_factory=dict)
    repairs: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether the function is kept and every tensor makes a difference."""
        return self.canonical is not None and max(self.plain, self.canonical) <= self.limit and not self.idle

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; a change that is not finite is None."""

        def finite(change: float | None) -> float | None:
            return change if change is not None and math.isfinite(change) else None

        pieces = {name: finite(change) for name, change in self.pieces.items()}
        changes = {"plain": finite(self.plain), "canonical": finite(self.canonical), "pieces": pieces}
        return {**asdict(self), **changes, "sound": self.sound}


def check_declaration(model: Any) -> Check:
    """Check the declaration of a model's architecture on the model, in float64.

    Noise is added to every tensor first, so that no bias is zero and no gain is one: a tiny model with random
    weights will do. Every tensor costs a run of the model.

    Args:
        model: anything `load` takes.

    Raises:
        InputError: for a model that does not fit its declaration, with the tensors that are missing, unknown or of
            another shape; for a model that cannot run in float64, or puts out nothing there that could be compared, or
            nothing but rounding.
    """
    given = Typed.of(load(model))
    typed = generic(given, 1)
    reference = run(typed.checkpoint)
    if not (reference.numel() and reference.isfinite().all()):
        what = "outputs that are not finite" if reference.numel() else "no outputs"
        raise InputError(f"{given.checkpoint.label}: has {what} in float64, so its declaration cannot be checked")
    check = Check(
        typed.spec.architecture,
        _limit(typed.checkpoint, reference),
        change_by(sample(Form(typed.spec), 1), typed, reference),
    )
    if check.plain > check.limit:
        return _take_apart(check, typed, reference)
    check = _check_canonical(check, typed, generic(given, 2), reference)
    if check.pieces:
        return check
    limit = IDLE * max(EXACT, check.plain)
    found = sorted(idle(typed, reference, limit, first_names(typed.spec)) - cancelled(typed.spec))
    return replace(check, idle=[_block_text(typed.spec, *one) for one in found])


def _limit(model: Checkpoint, reference: Tensor) -> float:
    """Up to what a change is rounding; random noise makes models that amplify that of parts in float32."""
    steps = dict.fromkeys((name for name in model if model[name].is_floating_point()), torch.finfo(torch.float32).eps)
    rerun = Rerun(model, probe(model.config, model.architecture))
    noise = rounding_noise(rerun, model, steps, reference) or 0.0
    if noise > BLURRED / NEAR:
        raise InputError(
            f"{model.label}: float32 rounding, which parts of Transformers have, changes its outputs by {noise:.0e}; "
            "its declaration cannot be checked so; take another seed, fewer layers, or a larger epsilon of the norms"
        )
    return max(FLOAT32_PARTS, NEAR * noise)


def _take_apart(check: Check, typed: Typed, reference: Tensor) -> Check:
    """Which spaces are wrong, and what would mend them."""
    pieces = {space: change_by(one, typed, reference) for space, one in _spaces(Form(typed.spec))}
    broken = [space for space, size in pieces.items() if size > check.limit]
    found: list[str] = []

    def keeps(spec: Spec, space: str) -> bool:
        return _alone(replace(typed, spec=spec), space, reference) <= check.limit

    if typed.checkpoint.parameters <= REPAIRED:
        for space in broken:
            found += repairs(typed.spec, space, partial(keeps, space=space))
    return replace(check, pieces=pieces, repairs=list(dict.fromkeys(found)))


def _check_canonical(check: Check, typed: Typed, twin: Typed, reference: Tensor) -> Check:
    """The change with everything folded; where it is broken, under which norm, bias, basis or space."""
    (full, form), (other, _) = forms(typed)[-1], forms(twin)[-1]
    gauge = gauge_of(form, other)  # any gauge will do, so take one that is another model's
    check = replace(check, canonical=change_by(replace(sample(form, 2), target=gauge), full, reference))
    if check.canonical is None or check.canonical <= check.limit:
        return check
    pieces = {name: change_by(one, full, reference) for name, one in _gauges(full, form, gauge)}
    if max(pieces.values(), default=0) > check.limit:
        return replace(check, pieces=pieces)
    pieces = {space: change_by(one, full, reference) for space, one in _spaces(form)}
    found = []
    for space, declared in full.spec.spaces.items():
        for group in subgroups(declared.folded, declared.size) if pieces.get(space, 0) > check.limit else ():
            spec = replace(full.spec, spaces={**full.spec.spaces, space: replace(declared, folded=group)})
            if _alone(replace(full, spec=spec), space, reference, folded=True) <= check.limit:
                found.append(f"space {space}: folded, the group {group}")
    return replace(check, pieces=pieces, repairs=found)


def generic(typed: Typed, seed: int) -> Typed:
    """The model in float64 with noise on every tensor."""

    def noisy(name: str) -> Tensor:
        tensor = typed[name].double()
        scale = 0.3 if tensor.ndim < 2 else (tensor.shape[0] / max(1, tensor.numel())) ** 0.5
        seed_ = zlib.crc32(f"{seed} {typed.spec.tied.get(name, name)}".encode())  # a tie and its twin stay equal
        noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed_), dtype=torch.float64)
        moved = tensor + scale * noise
        return moved.abs() if name.endswith(VARIANCE) else moved

    return Typed.of(typed.derived({name: noisy(name) for name in typed}, torch.float64))


def forms(typed: Typed) -> list[tuple[Typed, Form]]:
    """The plain form, and the one in which all is fixed that can be: norms folded, biases moved, bases balanced."""
    full = typed.untied() if typed.spec.unties else typed
    return [(typed, Form(typed.spec)), (full, form_of(full.spec, folded=True, free_biases=True, balanced=True))]


def sample(form: Form, seed: int) -> Element:
    """A random element of the full group; as few of its parts as can be are the identity, one of two orders of two."""
    drawn: list[Element] = []
    for again in range(DRAWS):
        drawn.append(Element.sample(form, seed + 1000 * again))
        if not _still(drawn[-1]):
            break
    return min(drawn, key=_still)


def _still(element: Element) -> int:
    """How many of the parts of an element are the identity."""
    found = 0
    for key, value in element.values.items():
        rest = element.form.identity(key)
        found += all(torch.equal(tensor, rest[part]) for part, tensor in value.items() if part in rest)
    return found


def run(given: Checkpoint) -> Tensor:
    """The outputs of a model on probe inputs, in float64."""
    return computed(given, probe(given.config, given.architecture))


def change(given: Checkpoint, reference: Tensor) -> float:
    """How far a model's outputs are from ``reference``, relatively; infinite where they are not finite."""
    relative = relative_change(reference, run(given))
    return relative if math.isfinite(relative) else math.inf


def change_by(element: Element, typed: Typed, reference: Tensor) -> float:
    """`change` of the model that an element makes, in float64."""
    return change(typed.derived(element.apply(typed), torch.float64), reference)


def idle(typed: Typed, reference: Tensor, limit: float, names: Iterable[str]) -> set[tuple[str, int]]:
    """Those of these tensors, with the number of a block, that a random element may as well leave alone.

    The function, with these ``reference`` outputs, then changes by less than ``limit``.
    """
    state = dict(sample(Form(typed.spec), 1).apply(typed))
    whole = typed.derived(state, torch.float64)
    rerun = Rerun(whole, probe(whole.config, whole.architecture))
    found = set()
    for name in names:
        for number, block in enumerate(typed.spec.entries[name].layout.blocks):
            left = state[name].clone()
            block.view(left).copy_(block.view(typed[name]))
            still = torch.allclose(left, state[name], rtol=0, atol=1e-12)  # a gain stored minus one has rounding
            if name in typed.spec.tied or still:
                continue
            tied = {twin: left for twin, owner in typed.spec.tied.items() if owner == name}  # a file may have them, too
            one = typed.derived({**state, name: left, **tied}, torch.float64)
            parts = {part for entry in (name, *tied) for part in typed.spec.entries[entry].stack or (entry,)}
            disk = {typed.disk_names[part] for part in parts & typed.disk_names.keys()}
            if relative_change(reference, rerun(one, disk)) < limit:
                found.add((name, number))
    return found


def cancelled(spec: Spec) -> set[tuple[str, int]]:
    """What is declared as cancelled by the softmax, in the form of `idle`."""
    keys = (bias for bias in spec.biases if isinstance(bias, KeyBias))
    found = {(name, key.block) for key in keys for name, _ in spec.expand(key.bias)}
    return {(name, number) for name, number in found if name in first_names(spec)}


def first_names(spec: Spec) -> list[str]:
    """The tensors of the first layer, which stands for all, and those outside of layers, where anything reads them."""
    read = [template for template in spec.templates if template not in spec.unread]
    return [name for template in read for name, _ in itertools.islice(spec.expand(template), 1)]


def _spaces(form: Form) -> Iterator[tuple[str, Element]]:
    """For every space that a group acts on, a random element that moves it alone."""
    element = sample(form, 1)
    for space in dict.fromkeys(key[0] for key in element.values):
        yield space, replace(element, values={key: v for key, v in element.values.items() if key[0] == space})


def _gauges(typed: Typed, form: Form, other: Gauge) -> Iterator[tuple[str, Element]]:
    """For every norm, layer scale, bias and basis, an element that writes it as another model has it."""
    own = gauge_of(form, typed)
    stems = {name: re.sub(r"\b\d+\b", "*", name.split(":")[0]) for name in own}
    for stem in dict.fromkeys(stems.values()):
        chosen = {name: other[name] for name in own if stems[name] == stem}
        yield stem, Element(form, {}, target={**own, **chosen})


def _alone(typed: Typed, space: str, reference: Tensor, folded: bool = False) -> float:
    """The change under a random element of one space; infinite where nothing acts on it."""
    element = dict(_spaces(form_of(typed.spec, folded=folded))).get(space)
    return math.inf if element is None else change_by(element, typed, reference)


def _block_text(spec: Spec, name: str, number: int) -> str:
    layout = spec.entries[name].layout
    if len(layout.blocks) == 1:
        return name
    return f"{name}, block {number} of {layout.text!r}"
