"""What can be seen to be wrong in a declaration without any model."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cobasin.symmetry.gauges import FreeGauge, KeyBias, LayerScale, Norm, ValueBias
from cobasin.symmetry.groups import Rotation2
from cobasin.symmetry.spec import Space, Spec
from cobasin.symmetry.types import TypeSyntaxError, axes_of, layout, parse

PARTS = ("ffn", "experts", "heads", "attention", "residual")


def mistakes(spec: Spec) -> list[str]:
    """All that contradicts itself in a declaration, one line each: spaces, types, names of templates."""
    found = [line for name, space in spec.spaces.items() for line in _of_space(spec, name, space)]
    found += [f"{template}: {line}" for template, type_ in spec.templates.items() for line in _of_type(spec, type_)]
    for template in spec.templates:
        found += [f"{template}: no space {space!r}" for space in _indices(template) if space not in spec.spaces]
    if found:
        return found
    try:
        spec.sites  # noqa: B018 - where an element acts is worked out on first sight
    except TypeSyntaxError as error:
        return [str(error)]
    return [*_of_gauges(spec), *_of_ties(spec)]


def _of_space(spec: Spec, name: str, space: Space) -> Iterator[str]:
    if not isinstance(space.size, int) or space.size < 0:
        yield f"space {name!r} has size {space.size!r}, expected a number"
    for over in space.over:
        if over not in spec.spaces:
            yield f"space {name!r} varies over {over!r}, which is no space"
    if space.within and space.within not in spec.spaces:
        yield f"space {name!r} is within {space.within!r}, which is no space"
    if space.group is not None and space.part not in PARTS:
        yield f"space {name!r} has a group, but its part is {space.part!r}; expected one of {', '.join(PARTS)}"
    if space.group is not None and space.part == "ffn" and any(name in other.over for other in spec.spaces.values()):
        yield f"space {name!r} has spaces that vary over it, so it is no FFN's neurons; expected part experts or heads"
    if isinstance(space.group, Rotation2) and space.size != 2:
        yield f"space {name!r} has size {space.size}, but Rotation2 acts on pairs"


def _of_type(spec: Spec, type_: str) -> Iterator[str]:
    try:
        nodes = parse(type_)
    except TypeSyntaxError as error:
        yield str(error)
        return
    for axis in dict.fromkeys(axis.space for node in nodes for axis in axes_of(node)):
        if axis != "1" and axis not in spec.spaces:
            yield f"type {type_!r}: no space {axis!r}"


def _indices(template: str) -> list[str]:
    return [space for names in re.findall(r"\{([\w ]+)\}", template) for space in names.split()]


def _of_gauges(spec: Spec) -> Iterator[str]:
    for kind, gauges in (("norms", spec.norms), ("scales", spec.scales), ("biases", spec.biases)):
        for gauge in gauges:
            yield from (f"{kind}: {line}" for line in _of_gauge(spec, gauge))
    for norm in spec.norms:
        others = {reader for reader in norm.readers if reader.removesuffix("weight") + "bias" not in spec.templates}
        if norm.bias and not norm.centred and others - {*norm.keys}:
            yield f"norms: {min(others)} has no bias, and an RMSNorm's offset needs one in every reader"
    known = {"plus_one": spec.templates.keys(), "unread": spec.templates.keys() | spec.entries.keys()}
    for kind, names in (("plus_one", spec.plus_one), ("unread", spec.unread)):
        yield from (f"{kind}: no tensor {name!r}" for name in names if name not in known[kind])


def _of_gauge(spec: Spec, gauge: Norm | LayerScale | FreeGauge) -> Iterator[str]:
    """Names of tensors that are none, and tensors without the space that is spoken of."""
    fields = {field: value for field, value in vars(gauge).items() if field != "part"}
    space = fields.pop("stream", fields.pop("space", None))
    if space is not None and space not in spec.spaces:
        yield f"no space {space!r}"
        return
    names = [name for value in fields.values() for name in (value if isinstance(value, tuple) else (value,))]
    names = [name for name in names if isinstance(name, str)]
    if missing := [name for name in names if name not in spec.templates]:
        yield from (f"no tensor {name!r}" for name in missing)
        return
    if space is not None:
        # a gain that heads with bases of their own share has a space of its own
        own = (gauge.weight, gauge.bias) if isinstance(gauge, Norm) else ()
        fits = {name for name in names if layout(spec.templates[name], spec.sizes).shape == (spec.sizes[space],)}
        yield from (
            f"{name}: {spec.templates[name]!r} has no {space}"
            for name in names
            if space not in _spaces(spec, name) and not (name in own and name in fits)
        )
    if isinstance(gauge, (KeyBias, ValueBias)):
        blocks = layout(spec.templates[gauge.bias], spec.sizes).blocks
        if gauge.block >= len(blocks):
            yield f"{gauge.bias} has no block {gauge.block}, only {len(blocks)}"
        elif isinstance(gauge, ValueBias):
            for axis in blocks[gauge.block].axes:
                if axis.space not in _spaces(spec, gauge.weight):
                    yield f"{gauge.bias} has {axis.space}, which {gauge.weight} has not"


def _spaces(spec: Spec, template: str) -> set[str]:
    return {axis.space for node in parse(spec.templates[template]) for axis in axes_of(node)}


def _of_ties(spec: Spec) -> Iterator[str]:
    for name in dict.fromkeys((*spec.tied, *spec.tied.values())):
        if name not in spec.entries:
            yield f"tied: no tensor {name!r}"
