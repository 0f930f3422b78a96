"""Weight matching: coordinate ascent over the spaces, each step solved exactly by its group.

Fixing all elements but one, the best value of that one maximises a linear functional of its cross-Gram. The
spaces of different layers do not touch once the residual stream is fixed: they are independent jobs. With a free
stream the two alternate. A step is taken only if it does not raise the distance, so the objective never rises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate
from typing import Any

from cobasin.execution.jobs import bfloat16_products, run_jobs
from cobasin.execution.memory import release_freed
from cobasin.execution.outcomes import Keep, owns
from cobasin.matching.compared import Compared
from cobasin.matching.experts import Experts
from cobasin.matching.neurons import Neurons, terms
from cobasin.matching.order import LARGE, inner_order, pairs_size, propose_order
from cobasin.matching.state import Match, identity
from cobasin.matching.streams import Streams
from cobasin.matching.units import Units
from cobasin.progress import Looks, silent
from cobasin.symmetry.action import in_new_order, in_old_order
from cobasin.symmetry.groups import Permutation, Value
from cobasin.symmetry.keys import Key
from cobasin.symmetry.state import on_cpu, squared_size

MAX_ROUNDS = 200
SETTLED = 1e-6  # relative fall of the squared distance in a round
LARGE_SETTLED = 1e-5  # the same of models above so many entries, whose rounds take from seconds to minutes
LARGE_MODEL = 100_000_000
NEAR = 0.1  # of the anchor's squared norm: nearer models agree as they are; unrelated ones are twice that norm apart
SMALL = 1 << 17  # entries of the tensors that a job moves; below, threads would mostly wait for the interpreter
EXACT = 1e-24  # of the squared distance at the start: nothing but rounding is left


@dataclass
class Ascent:
    """What the ascent did: squared distance in canonical form before and after every round."""

    history: list[float]

    @property
    def rounds(self) -> int:
        """Number of rounds run."""
        return len(self.history) - 1


@dataclass
class Sweep:
    """What a round changed.

    Attributes:
        orders_changed: whether an order did.
        streams_moved: whether a stream did.
        left: numbers of the families that may be changed once more, even if no stream moves.
    """

    orders_changed: bool
    streams_moved: bool
    left: list[int]


def ascend(
    match: Match,
    report: Looks = silent,
    warm: bool = False,
    keep: Keep | None = None,
) -> Ascent:
    """Run the coordinate ascent to a fixed point.

    Args:
        match: the state; its values and distances are updated.
        report: called after every round with the number of the round and the squared distance.
        warm: the values come from an earlier ascent: go on from there, and from no other start.
        keep: where to keep what is found on the way; from what it has the ascent goes on.
    """
    ascent, units, streams = Ascent([match.total]), Units(match, keep), Streams(match)
    least_fall = LARGE_SETTLED if _entries(match, list(match.groups)) > LARGE_MODEL else SETTLED
    families = _families(match, streams.keys)
    reorder = True
    if (kept := units.last_round()) is not None:
        ascent.history, reorder, match.hold_scales = kept["history"], kept["reorder"], kept["hold_scales"]
        sweep = Sweep(**kept["sweep"])
    else:
        one_start = warm or not streams.keys or within(match, NEAR)
        # A scale balances the norms of what does not agree yet. While a stream is still turning, that costs: the
        # scales wait until the rest has settled.
        match.hold_scales = "scale" in match.choice.parts and not one_start
        first = partial(_round, reorder=reorder, name="1") if one_start else _first_round
        sweep = first(units, streams, families)
        ascent.history.append(match.total)

    def moving() -> bool:
        return sweep.streams_moved or bool(sweep.left) or any(match.groups[key].scaled for key in streams.keys)

    while True:
        said = {"history": ascent.history, "reorder": reorder, "hold_scales": match.hold_scales}
        units.end_round(said | {"sweep": asdict(sweep)})
        report(ascent.rounds, match.total)
        before, after = ascent.history[-2:]
        settled = after >= before * (1 - least_fall) or after <= EXACT * ascent.history[0]
        if settled and reorder and not match.hold_scales:
            break
        last = ascent.rounds == MAX_ROUNDS - 1  # the round to come is the last that there may be
        settled |= not moving()  # whatever that round took off
        if match.hold_scales and ((settled and reorder) or last or not moving()):
            match.hold_scales = False
            scaled = (i for i, family in families.items() if any(match.groups[key].scaled for key in family))
            sweep.left = sorted({*sweep.left, *scaled})
        if ascent.rounds == MAX_ROUNDS or not moving():
            break
        # Nested assignments and joint optima are the dear part: only while they still change an order, and when
        # all has settled. In between every key takes one exact step, which the next round repeats anyway.
        reorder = sweep.orders_changed or settled or not streams.keys
        due = families if sweep.streams_moved else {i: families[i] for i in sweep.left}
        sweep = _round(units, streams, due, reorder, str(ascent.rounds + 1))
        ascent.history.append(match.total)
    for key, group in match.groups.items():
        if group.scaled and "scale" not in match.values[key]:  # it was held, and no step was a gain since
            match.values[key] = match.values[key] | {"scale": identity(match.form, {key: group})[key]["scale"]}
    units.end_round(said | {"sweep": asdict(sweep)}, last=True)
    return ascent


def within(match: Match, share: float) -> bool:
    """Whether the squared distance is below this share of the anchor's squared norm; told by a part of it, if so."""
    sizes = accumulate(squared_size(match.anchor[name]) for name in match.tensors)
    return any(match.total < share * size for size in sizes)


def _first_round(units: Units, streams: Streams, families: Mapping[int, list[Key]]) -> Sweep:
    """The first round from the better of two starts: the identity, and the streams as the model's ends say.

    Independent models need the second: from the identity they end in a bad optimum, although a stream turned
    towards its ends can at first be further away than before. Near copies need the first.
    """
    match = units.match
    starts = [match.snapshot()]
    if units.run("1-ends", 0, streams.keys, lambda: {"turned": streams.turn_to_ends()})["turned"]:
        starts.append(match.snapshot())
    outcomes = []
    for i, start in enumerate(starts):
        match.restore(start)
        sweep = _round(units, streams, families, reorder=True, name=f"1-{i}")
        outcomes.append((match.total, match.snapshot(), sweep))
    _, best, sweep = min(outcomes, key=lambda outcome: outcome[0])
    match.restore(best)
    return sweep


def _round(units: Units, streams: Streams, families: Mapping[int, list[Key]], reorder: bool, name: str) -> Sweep:
    """One sweep over these families, by number, then over the streams; ``name`` is that of its units."""
    match, said = units.match, dict[int, dict[str, Any]]()

    def update_family(i: int, family: list[Key]) -> None:
        beside = match.while_still(streams.keys, family)
        said[i] = units.run(f"{name}-family-{i}", i, family, partial(_update_family, beside, family, reorder))

    def update_stream(key: Key) -> dict[str, Any]:
        return {"moved": streams.update(key)}

    # together, what is multiplied alike, and of a size for that; one by one, what other parts do (for that this one
    # waits, which no signal would end in another thread)
    kinds: dict[tuple[bool, bool, bool], list[Callable[[], None]]] = {}
    for i, family in families.items():
        elsewhere = not owns(units.keep, i)
        threads = _entries(match, family) >= SMALL and _table(match, family) <= LARGE
        kind = elsewhere, _from_bfloat16(match, family), elsewhere or not threads
        kinds.setdefault(kind, []).append(partial(update_family, i, family))
    for (_, quick, alone), jobs in sorted(kinds.items(), key=lambda one: one[0]):
        with bfloat16_products() if quick else nullcontext():
            run_jobs(jobs, one_by_one=alone, device=match.device)
    moved = [
        units.run(f"{name}-stream-{i}", i, [key], partial(update_stream, key))["moved"]
        for i, key in enumerate(streams.keys)
    ]
    changed = any(one["orders_changed"] for one in said.values())
    return Sweep(changed, any(moved), sorted(i for i, one in said.items() if one["left"]))


def _update(match: Match, key: Key, exactly: bool) -> None:
    large = _table(match, [key]) > LARGE
    if large:
        release_freed()  # what other keys have left, before the tables
    value = on_cpu(_best(match, key, exactly))
    if large:
        release_freed()  # what the tables leave, before whole tensors are moved
    match.step({key: in_old_order(match.spec, match.values, key, value)})


def _best(match: Match, key: Key, exactly: bool) -> Value:
    """The value that the Gram asks for, which may be large, and is not held any longer than that takes."""
    group = match.groups[key]
    # a stream runs through too many tensors to hold them all while parts are made
    if isinstance(group, Permutation) and match.spec.spaces[key[0]].part == "ffn":
        return _best_neurons(Compared(match, key), group)
    gram = match.gram(key)
    if exactly:
        return group.project(gram, joint=not match.choice.paper)
    # the Gram lists heads as the current order has put them, an element as it finds them
    return group.refine(in_new_order(match.spec, match.values, key, match.values[key]), gram)


def _best_neurons(compared: Compared, group: Permutation) -> Value:
    if compared.spec.batch_axes(compared.key[0]):
        experts = Experts(compared)
        return experts.best((i, i) for i in range(experts.count))
    return Neurons(group, terms(compared), compared.gram).best


def _entries(match: Match, family: list[Key]) -> int:
    """How many entries the tensors have that these keys move."""
    return sum(math.prod(match.spec.entries[name].layout.shape) for name in match.tensors_of(family))


def _table(match: Match, family: list[Key]) -> int:
    """Bytes of the largest table of pairs that matching these keys needs: of neurons, or of all heads."""
    spec, ordered = match.spec, {fibre for base in family for fibre in match.fibres(base)}
    bases = {key[0] for key in ordered if spec.spaces[key[0]].part == "attention"}
    pairs = pairs_size(spec, bases) if bases else 0
    return max(pairs, *(4 * spec.sizes[key[0]] ** 2 for key in family))


def _from_bfloat16(match: Match, family: list[Key]) -> bool:
    """Whether all that is multiplied for a family are tensors of bfloat16 files as they are."""
    (first, *others) = family
    return not others and not match.groups[first].continuous and match.in_bfloat16(first)


def _update_family(match: Match, family: list[Key], reorder: bool) -> dict[str, Any]:
    """One sweep over keys that share tensors: orders with all that varies over them, then each on its own."""
    done, changed = set[Key](), False
    for base in family:
        fibres = match.fibres(base)
        # an order of each place of another one is found together with that one, and here refined alone
        if reorder and fibres and not match.spec.batch_axes(base[0]):
            old = match.values[base]["perm"]
            if match.step(propose_order(match, base)):
                # exact, but for an order within the order: there every key still takes a step of its own
                if inner_order(match, base) is None:
                    done |= {base, *fibres}
                changed |= not old.equal(match.values[base]["perm"])
    for key in family:
        if key not in done:
            _update(match, key, exactly=reorder)
    # what was found in one step, from what the family does not move, is found again
    alone = len(family) == 1 and (reorder or not match.groups[family[0]].scaled)
    together = any({base, *match.fibres(base)} == {*family} for base in done)
    return {"orders_changed": changed, "left": not (alone or together)}


def _families(match: Match, streams: list[Key]) -> dict[int, list[Key]]:
    """Keys other than the streams, grouped so that keys of different groups share no tensor; by number."""
    family_of: dict[str, list[Key]] = {}
    for key in match.groups:
        if key not in streams:
            met = {id(family): family for name in match.tensors_of([key]) if (family := family_of.get(name))}
            merged = [one for family in reversed(met.values()) for one in family] + [key]
            family_of |= dict.fromkeys(match.tensors_of(merged), merged)
    return dict(enumerate({id(family): family for family in family_of.values()}.values()))
