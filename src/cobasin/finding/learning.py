"""Learning the elements of any number of models jointly, from where matching by weights has ended."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from blake3 import blake3

from cobasin.checkpoints.fingerprint import fingerprint, tensor_hash
from cobasin.errors import InputError
from cobasin.finding.activations import Runnable, by_activations
from cobasin.finding.common_form import CommonForm, Found, agree
from cobasin.finding.search import Prepared, Search
from cobasin.learning.descent import Data, Descent, hold_out
from cobasin.learning.in_memory import InMemory
from cobasin.matching.choice import Choice
from cobasin.matching.learned import Mixture, learn
from cobasin.matching.learned_orders import neurons, pairs
from cobasin.matching.moves import Moves
from cobasin.matching.sharpened import signs, streams
from cobasin.matching.state import free_groups, identity
from cobasin.progress import Progress, rounds
from cobasin.statistics.rows import row_count
from cobasin.symmetry.action import Values
from cobasin.symmetry.form import Form
from cobasin.symmetry.groups import Value
from cobasin.symmetry.keys import Key, key_text

_AGAINST = {"parents": "to answer as the models do on average", "labels": "on its labels"}


def check_movable(
    forms: Sequence[Form], choice: Choice, symmetry: str, asked: Search, excluded: Sequence[str] = ()
) -> None:
    """Refuse, before a tensor is read, a symmetry that in none of these forms has a part that learning moves.

    Raises:
        InputError: says which part of the symmetry would have one.
    """
    free = [(form, groups) for form in forms if (groups := free_groups(form, choice, excluded))]
    starts = [(form, groups, identity(form, groups)) for form, groups in free]
    ordered = asked.orders and any(neurons(form, groups) for form, groups in free)
    if free and not ordered and not any(Moves(*start).parameters for start in starts):
        raise InputError(
            f"symmetry {symmetry!r} frees only orders here, and learning moves bases of heads, scales and the "
            "residual stream; add attention or residual to --symmetry"
        )
    if free and asked.move == "all" and not any(Moves(*start, turns=False).parameters for start in starts):
        raise InputError(
            f"move all (--anchor-out): with symmetry {symmetry!r} no part of the anchor can move: "
            f"{forms[0].spec.architecture} has neither scales nor general maps there; take symmetry full or gl, or let "
            "the anchor stay"
        )


def learned(
    common: CommonForm,
    order: Sequence[int],
    reference: int,
    found: Mapping[int, Found],
    progress: Progress,
) -> dict[int, Found]:
    """Go on from what was found by weights: one joint learning of all elements.

    Args:
        common: the models.
        order: of the models; the result depends on it in nothing but rounding where they are given in another one.
        reference: the model that stays, but for what ``move`` says.
        found: for every other model what weights have found.
        progress: see `Progress`.

    Returns:
        The same for the learned elements; the reference is among them where it moves.
    """
    search, started = common.search, time.perf_counter()
    assert search is not None
    models, moves_all = common.models, search.asked.move == "all"
    matches = {i: models.match(i, models.states[reference], found[i][0]) for i in order if i != reference}
    stays: Values = {}
    if moves_all:
        form = models.forms[reference]
        stays = identity(form, free_groups(form, models.choice, models.excluded))
    report, values = search.report, {i: matches[i].values if i in matches else stays for i in order}
    if agree(*matches.values()):
        report = {"method": "learned", "notes": ["the weights agree: nothing was left for method learned"]}
    else:
        values, descent, held = _learn(common, search, order, reference, values, progress)
        losses = descent.losses
        note = (
            f"learned on {search.inputs.count - held} {search.inputs.kind}, {_AGAINST[search.asked.loss]}: loss of "
            f"the mean of the models on {held} more {losses[0]:.4g} before, {min(losses):.4g} after"
        )
        learning = {"loss": search.asked.loss, "move": search.asked.move, "taken": descent.steps, "held_out": losses}
        report |= {"learning": learning, "notes": [note, *([f"learning {descent.end}"] if descent.end else [])]}
    result: dict[int, Found] = {}
    for i in order if moves_all else matches:
        before = dict(found[i][1]) if i in found else {"rounds": 0, "seconds": 0.0}
        before.pop("objective", None)  # that of the match by weights, on the way to here
        seconds = before["seconds"] + time.perf_counter() - started
        result[i] = values[i], before | report | {"seconds": seconds}
    return result


def _learn(
    common: CommonForm,
    search: Prepared,
    order: Sequence[int],
    reference: int,
    values: Mapping[int, Values],
    progress: Progress,
) -> tuple[dict[int, Values], Descent, int]:
    """The learned elements, how that went, and how many inputs were held out."""
    run = {i: common.runnable(i) for i in order}
    batches = search.inputs.batches([run[i].model for i in order], progress)
    held, seen = hold_out(batches)
    starts = [values, _with_activations(common, search, run, reference, values, seen, progress)]
    del run  # what learns runs a model of its own
    mixture, asked = _mixture(common, search, order), search.asked
    at = order.index(reference)

    def looked(step: int, loss: float) -> None:
        progress(f"learning: held-out loss {loss:.4g}", step, asked.steps)

    def orders_at(position: int, values: Values) -> dict[Key, Value]:
        moving = streams(mixture.forms[position], mixture.groups[position])
        if not asked.orders and not any(group.signed for group in moving.values()):
            return {}  # where the models stand need not be looked at
        match = common.models.match(order[position], common.models.states[reference], values)
        return signs(match) | (pairs(match) if asked.orders else {})

    done = learn(
        mixture,
        [[start[i] for i in order] for start in starts],
        [True if i != reference else False if asked.move == "all" else None for i in order],
        held,
        seen,
        steps=asked.steps,
        seed=asked.seed,
        state=asked.state,
        of=None if asked.state is None else _identity(common, search, order, at, starts),
        orders=orders_at,
        report=looked,
    )
    return dict(zip(order, done.values, strict=True)), done.descent, sum(row_count(batch.inputs) for batch in held)


def _with_activations(
    common: CommonForm,
    search: Prepared,
    run: Mapping[int, Runnable],
    reference: int,
    values: Mapping[int, Values],
    seen: Data,
    progress: Progress,
) -> dict[int, Values]:
    """The elements that match weights and activations to the reference, on inputs that are not held out."""
    report, found = rounds(progress, "matching activations"), dict(values)
    for i in run:
        if i != reference:
            match = common.models.match(i, common.models.states[reference])
            found[i] = by_activations(match, (run[i], run[reference]), search.compared(seen), report)
    return found


def _mixture(common: CommonForm, search: Prepared, order: Sequence[int]) -> Mixture:
    # what one file ties another may not: the mixture has all tensors of either
    typed = min((common.typed[i] for i in order), key=lambda one: len(one.spec.tied))
    run = InMemory(typed, search.device)
    states = [
        {name: common.models.states[i][name].to(search.device, torch.float32) for name in run.names} for i in order
    ]
    forms = [common.models.forms[i] for i in order]
    groups = [free_groups(form, common.models.choice, common.models.excluded) for form in forms]
    return Mixture(forms, groups, states, run, search.inputs.task, search.asked.loss == "labels")


def _identity(
    common: CommonForm, search: Prepared, order: Sequence[int], reference: int, starts: Sequence[Mapping[int, Values]]
) -> dict[str, Any]:
    """What a search is of, so that no other goes on from its state."""
    asked, choice = search.asked, common.models.choice
    return {
        "models": [fingerprint(common.typed[i].checkpoint) for i in order],
        "data": search.report["inputs"],
        "starts": [_digest(start[i] for i in order) for start in starts],
        "settings": {
            "symmetry": common.symmetry,
            "layers": None if choice.layers is None else sorted(choice.layers),
            **{key: getattr(asked, key) for key in ("steps", "loss", "move", "orders")},
            "reference": reference,
        },
    }


def _digest(values: Iterable[Values]) -> str:
    """A hash of elements."""
    found = blake3()
    for value in values:
        for key, parts in sorted(value.items(), key=lambda one: key_text(one[0])):
            for part, x in sorted(parts.items()):
                found.update(f"{key_text(key)}/{part}/{tensor_hash(x)};".encode())
    return found.hexdigest()
