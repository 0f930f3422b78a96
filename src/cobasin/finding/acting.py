"""An element and the models that it acts on: those of its type, and those of other classes with the same layers.

A class is a head on the layers of its base model. What moves the layers moves those of any class, and with them what
its head reads; what only that head has stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cobasin.architectures import known
from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.layouts import laid_out_as
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.symmetry.canonical import Gauge, gauge_of, gauge_shapes
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import Form, form_of
from cobasin.symmetry.keys import is_layer, key_text, layer_of
from cobasin.symmetry.spec import Spec

# what two specs must have in common, so that an element of one acts on the other as it is
_TYPE = ("architecture", "version", "sizes", "spaces", "templates", "absent", "norms", "scales", "biases", "plus_one")


def typed_for(element: Element, model: Any) -> Typed:
    """A model of the element's type, untied where the element is of an untied model.

    Raises:
        InputError: where the element is of another type of model.
    """
    typed = _typed(element, model)
    own, wanted = ({field: getattr(spec, field) for field in _TYPE} for spec in (typed.spec, element.spec))
    _check_same(typed, own, wanted)
    return typed


def acting_on(element: Element, model: Any) -> tuple[Element, Typed]:
    """The element as it acts on a model with the layers of its own, whatever their heads, and the model.

    Raises:
        InputError: where the element is of models with other layers, or moves what this one's outputs are.
    """
    typed = _typed(element, model)
    own, wanted = typed.spec, element.spec
    if all(getattr(own, field) == getattr(wanted, field) for field in _TYPE):
        return element, typed
    _check_same(typed, _layers(own, wanted), _layers(wanted, own))
    form = _form(element.form, own)
    for key in element.values:
        there = (site.tensor for site in wanted.sites[key] if site.tensor in own.entries)
        same = any(own.entries[name].layout.text == wanted.entries[name].layout.text for name in there)
        if same and (key not in own.sites or form.group(key) != element.form.group(key)):
            why = "another group moves" if key in own.sites else "something else is computed once an element moves"
            raise InputError(
                f"{typed.checkpoint.label} is a {own.architecture}, in which {why} {key_text(key)}; leave "
                f"{wanted.spaces[key[0]].part} out of --symmetry where you match"
            )
    values = {key: value for key, value in element.values.items() if key in own.sites}
    gauges = [gauge and _completed(gauge, form, typed) for gauge in (element.source, element.target)]
    return Element(form, values, *gauges, report=element.report), typed


def _typed(element: Element, model: Any) -> Typed:
    """The model, untied where the element is of an untied one, without what only this file of its class carries."""
    typed = Typed.of(load(model))
    if typed.spec.architecture == element.spec.architecture:
        typed = laid_out_as(typed.without({*typed.spec.unread_names} - {*element.spec.entries}), element.spec)
        typed = typed.copying({*typed.spec.entries} - {*element.spec.entries})
    both = typed.spec.tied.keys() & element.spec.entries.keys()
    if both - element.spec.tied.keys() or (element.form.folded and typed.spec.unties):
        return typed.untied()
    return typed


def _layers(spec: Spec, other: Spec) -> dict[str, Any]:
    """What a class's layers are, of what it shares with another one."""
    indices = {name: re.findall(r"\{(\w+)\}", name) for name in spec.templates}
    templates = {name: type_ for name, type_ in spec.templates.items() if any(map(is_layer, indices[name]))}
    layers = [entry.layout for entry in spec.entries.values() if layer_of(entry.index) is not None]
    axes = {axis.space for layout in layers for axis in layout.axes}
    shared = [name for name in spec.spaces if name in other.spaces and (name in axes or is_layer(name))]
    moved = [name for name in shared if spec.spaces[name].group is not None and other.spaces[name].group is not None]
    return {
        "architecture": known().get(spec.architecture),
        "version": spec.version,
        "sizes": {name: spec.sizes[name] for name in shared},
        "spaces": {name: spec.spaces[name] for name in moved},
        "templates": templates,
        **{field: getattr(spec, field) for field in ("absent", "scales", "biases", "plus_one")},
    }


def _check_same(typed: Typed, own: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse a model that differs in one of these from what the element acts on."""
    for field in own:
        if own[field] != wanted[field]:
            label, values = typed.checkpoint.label, ""
            here, there = own[field], wanted[field]
            if field == "sizes":
                here, there = _lacking(here, there), _lacking(there, here)
            if field in ("architecture", "sizes"):
                values = f" ({here} against {there})"
            raise InputError(
                f"{label} is not of the type that the element acts on: the {field} of the two differ{values}; expected "
                "the model that was matched, or a fine-tune of it"
            )


def _lacking(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """The entries of the first that the second lacks, or has with another size."""
    return {name: size for name, size in one.items() if other.get(name) != size}


def _form(of: Form, spec: Spec) -> Form:
    """The same freedoms fixed in a model of another class; of what only that has, but for norms and scales, none."""
    whole = form_of(spec, of.folded, bool(of.biases), bool(of.balanced))
    biases = tuple(bias for bias in whole.biases if bias in of.biases)
    return replace(whole, biases=biases, balanced=tuple(key for key in whole.balanced if key in of.balanced))


def _completed(gauge: Gauge, form: Form, typed: Typed) -> Gauge:
    """A gauge for a form; what it lacks is as the model has it."""
    shapes = gauge_shapes(form)
    given = {name: tensor for name, tensor in gauge.items() if shapes.get(name) == tensor.shape}
    return gauge_of(form, typed) | given if shapes.keys() - given.keys() else given
