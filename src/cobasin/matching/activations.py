"""Activations as typed tensors, which a match compares beside the weights.

What a linear map reads and what it writes have the types of the two sides of its weight, so the activations of two
models on the same inputs are a pair of tensors with one more axis, the tokens. Nothing else is needed: the groups act
on them, and their cross-Gram joins that of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

from torch import Tensor
from torch.nn.functional import pad

from cobasin.matching.state import Match
from cobasin.symmetry.dual import dual
from cobasin.symmetry.spec import Space
from cobasin.symmetry.state import Lazy, State
from cobasin.symmetry.types import parse, unparse

SHARE = 0.3  # squared norm of the activations on either side of a linear map, over that of its weight


@dataclass(frozen=True)
class ActivationPair:
    """The activations of a linear map in two models, source first.

    Attributes:
        axis: the axis of the weight that is summed over (``in``), or the other one (``out``).
        reads: whether they are what the map reads.
        pair: ``[rows, n]`` of each.
    """

    axis: int
    reads: bool
    pair: tuple[Tensor, Tensor]


def with_activations(match: Match, found: Mapping[str, ActivationPair]) -> Match:
    """The same match, starting from the identity, with the activations of linear maps compared beside the weights.

    Args:
        match: of weights.
        found: activations by ``weight:side``, the weight by its name in the spec; they count with `SHARE`.
    """
    spec = match.spec
    template_of = {name: template for template in spec.templates for name, _ in spec.expand(template)}
    types, spaces = dict(spec.templates), dict(spec.spaces)
    states: tuple[dict[str, Tensor], ...] = ({}, {})
    typed: dict[str, tuple[str, list[str]]] = {}
    for name, one in found.items():
        weight, side = name.rsplit(":", 1)
        nodes = parse(spec.templates[template_of[weight]])
        norms = [float(x.double().norm()) for x in one.pair]
        size = float(match.source[weight].double().norm()) * float(match.anchor[weight].double().norm())
        if len(nodes) != 2 or min(*norms, size) == 0:
            continue
        for state, x in zip(states, one.pair, strict=True):
            state[name] = x * (SHARE * size / (norms[0] * norms[1])) ** 0.5
        node = dual(nodes[one.axis]) if one.reads else nodes[one.axis]
        typed.setdefault(f"{template_of[weight]}:{side}", (unparse((node,)), []))[1].append(name)
    for number, (template, (node, names)) in enumerate(typed.items()):
        # a template has one type: rows of zeros, which change no inner product, where some say less than others
        rows = max(len(states[0][name]) for name in names)
        spaces[f"row{number}"] = Space(rows)
        types[template] = f"row{number} {node}"
        for state, name in product(states, names):
            state[name] = pad(state[name], (0, 0, 0, rows - len(state[name])))
    more = replace(spec, spaces=spaces, templates=types)
    absent = tuple(  # of a layer whose activations say nothing
        name.replace(".", r"\.")
        for template in types.keys() - spec.templates.keys()
        for name, _ in more.expand(template)
        if name not in states[0]
    )
    form = replace(match.form, spec=replace(more, absent=(*spec.absent, *absent)))
    source, anchor = (
        _joined(own, own_more) for own, own_more in zip((match.source, match.anchor), states, strict=True)
    )
    return Match(form, match.choice, source, anchor, spec.entries.keys() - set(match.tensors), device=match.device)


def _joined(own: State, more: State) -> State:
    return Lazy([*own, *more], lambda name: more[name] if name in more else own[name])
