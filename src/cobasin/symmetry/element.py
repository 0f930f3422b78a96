"""A point of the symmetry group of an architecture: what matching finds and what is saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from cobasin.errors import InputError, nearest, shown, whole_number
from cobasin.modes import usual_modes
from cobasin.paths import expanded
from cobasin.symmetry.action import Values, act, in_new_order, in_old_order
from cobasin.symmetry.balance import GENERAL
from cobasin.symmetry.canonical import (
    IMPOSSIBLE_OFFSET,
    Gauge,
    canonical,
    frames_of,
    gains_of,
    gauge_of,
    gauge_shapes,
    in_gauge,
    obstacles,
)
from cobasin.symmetry.form import Form
from cobasin.symmetry.groups import Value
from cobasin.symmetry.keys import Key, key_of, key_text, worst_by_space
from cobasin.symmetry.serial import dump, parse
from cobasin.symmetry.spec import Spec
from cobasin.symmetry.state import Lazy, State
from cobasin.whole_files import DAMAGED, read_tensors, write_tensors

FILE = "cobasin.safetensors"  # in the folder of a matched model
FORMAT = "1"  # of the file
LARGEST_DEVIATION = 1e-6


@dataclass(frozen=True)
class Element:
    """A function-preserving transformation of a model.

    It brings a model into canonical form (see `cobasin.symmetry.canonical`), acts there with one group element
    per space, and writes the result in the target's gauge.

    Attributes:
        form: the architecture's spec and the gauge freedoms that are fixed.
        values: the group elements; a key that is missing acts as the identity.
        source, target: the gauges of the two ends. None: the gauge of whatever model it is applied to.
        report: what matching measured.
    """

    form: Form
    values: Values
    source: Gauge | None = None
    target: Gauge | None = None
    report: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.form.folded and self.spec.unties:
            raise ValueError(
                f"the norm that {', '.join(self.spec.tied)} reads is folded, which unties it: take the form of the "
                "untied model (`Typed.untied`), or one that is not folded"
            )

    def __repr__(self) -> str:
        spaces = ", ".join(dict.fromkeys(key[0] for key in self.values))
        return f"<Element of {self.spec.architecture}: {len(self.values)} maps, of {spaces or 'no space'}>"

    @property
    def spec(self) -> Spec:
        """The type of the models it acts on."""
        return self.form.spec

    @usual_modes()
    def apply(self, state: State, as_source: bool = False) -> State:
        """The transformed model, tensor by tensor as they are asked for.

        What is multiplied or added to is in float32 or better, all else (orders, signs) in its own dtype.

        Args:
            state: a model's tensors by their names in the spec; tied tensors may be absent.
            as_source: move its bases as those of the source, not to balance its own: the difference of two models, both
                moved so, is moved like a weight. What both compute is kept either way.

        Raises:
            InputError: where a tensor is missing; where the model cannot be written in the target's norms.
        """
        how = (
            "an element acts on tensors by their names in the spec; on a model, take cobasin.transform(element, model)"
        )
        if not isinstance(state, Mapping):
            raise InputError(f"{type(state).__name__}: {how}")
        if missing := [name for name in self.spec.entries if name not in state and name not in self.spec.tied]:
            raise InputError(f"{missing[0]} is not among the tensors: {how}")
        form, frames = self.form, frames_of(self.form, self.source) if as_source and self.source else None
        start = canonical(form, state, frames)
        gauge, whose = (gauge_of(form, state), "the model") if self.target is None else (self.target, "the anchor")
        if found := obstacles(form, gains_of(form, state), gauge, IMPOSSIBLE_OFFSET, whose):
            raise InputError("the element cannot be applied to this model: " + "; ".join(found))
        moved = Lazy(state, lambda name: act(self.spec, self.values, form.group, name, start[name]))
        return in_gauge(form, moved, gauge)

    @usual_modes()
    def inverse(self) -> Element:
        """The element that undoes this one; where the source has gains of zero, it can be applied to no model."""
        values = {}
        for key, value in self.values.items():
            inverse = self.form.group(key).inverse(value)
            # this one found the fibre before it moved its base; the inverse meets it where the base has put it
            values[key] = in_new_order(self.spec, self.values, key, inverse)
        return replace(self, values=values, source=self.target, target=self.source, report={})

    @usual_modes()
    def compose(self, then: Element) -> Element:
        """The element that acts like this one and then like ``then``.

        Raises:
            InputError: for elements of different architectures or different forms, and what is no element.
        """
        if self.form != check_element(then).form:
            raise InputError(
                f"cannot compose an element of {self.spec.architecture} with one of {then.spec.architecture}: "
                "both must be of one architecture, one configuration and one kind of match"
            )
        values = dict(self.values)
        for key, value in then.values.items():
            value = in_old_order(self.spec, self.values, key, value)  # `then` meets it where our base has put it
            values[key] = self.form.group(key).compose(values[key], value) if key in values else value
        # one without a gauge of its own leaves the model in that of the other
        source = then.source if self.source is None else self.source
        return Element(self.form, values, source, self.target if then.target is None else then.target)

    @usual_modes()
    def deviation(self) -> dict[str, float]:
        """For every space, how far its elements are from the group: rounding, if the function is kept."""
        figures = [(key, self.form.group(key).deviation(value)) for key, value in self.values.items()]
        for gauge in (self.source, self.target):
            frames = frames_of(self.form, gauge) if gauge else {}
            figures += [(key, GENERAL.deviation(frame)) for key, frame in frames.items()]
        return worst_by_space(figures)

    def save(self, path: str | Path) -> None:
        """Write the element as safetensors, with the spec it belongs to in the metadata, to a file or into a folder.

        Raises:
            InputError: for what is no path, and a file in a folder that is not there.
        """
        path = _file(path)
        if not path.parent.is_dir():
            raise InputError(f"{path}: there is no folder {path.parent}; make it first")
        tensors = {f"value/{key_text(key)}/{part}": t for key, v in self.values.items() for part, t in v.items()}
        for side, gauge in (("source", self.source), ("target", self.target)):
            tensors |= {f"{side}/{name}": tensor for name, tensor in (gauge or {}).items()}
        metadata = {
            "cobasin": FORMAT,
            "architecture": self.spec.architecture,
            "spec_version": str(self.spec.version),
            "form": dump(self.form),
            "report": json.dumps(self.report),
        }
        write_tensors(path, {name: tensor.clone() for name, tensor in tensors.items()}, metadata)

    @classmethod
    def load(cls, path: str | Path) -> Element:
        """Read an element back, from its file or the folder of a matched model.

        Raises:
            InputError: where the file cannot be read or is not an element.
        """
        path = _file(path)
        if not path.exists():
            made = sorted(one.name for one in path.parent.glob("cobasin-*.safetensors"))  # of a merge
            hint = f", such as {', '.join(made)} there" if made else ""
            raise InputError(
                f"{path}: is not there; expected a folder that cobasin match has written, or an element file{hint}"
            )
        try:
            metadata, tensors = read_tensors(path)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: not a readable element file ({error})") from None
        if metadata.get("cobasin") != FORMAT:
            raise InputError(f"{path}: not an element of cobasin's format {FORMAT}; elements are made by cobasin match")
        values: Values = {}
        gauges: dict[str, Gauge] = {"source": {}, "target": {}}
        try:
            form = parse(metadata["form"])
            report = json.loads(metadata["report"])
            for name, tensor in tensors.items():
                kind, rest = name.split("/", 1)
                if kind == "value":
                    key, part = rest.rsplit("/", 1)
                    values.setdefault(key_of(key), {})[part] = tensor
                else:
                    gauges[kind][rest] = tensor
            for key, value in values.items():
                _check_value(form, key, value)
            for gauge in filter(None, gauges.values()):
                _check_gauge(form, gauge)
            element = cls(form, values, gauges["source"] or None, gauges["target"] or None, report)
        except DAMAGED as error:
            raise InputError(f"{path}: a damaged element file ({error!r})") from None
        if wrong := [space for space, deviation in element.deviation().items() if not deviation < LARGEST_DEVIATION]:
            raise InputError(f"{path}: a damaged element file ({', '.join(wrong)} is outside its group)")
        return element

    @classmethod
    @usual_modes()
    def sample(cls, form: Form, seed: int = 0, part: str | None = None) -> Element:
        """A random element of the full group (of one ``part``, if named), in the gauge of the model it meets.

        Raises:
            InputError: for what is no form or no seed, and a part that the form does not have.
        """
        if not isinstance(form, Form):
            raise InputError(f"{shown(form)}: expected the form of a model, from cobasin.symmetry.form.form_of")
        parts = {space.part for space in form.spec.spaces.values() if space.part}
        if not (part is None or (isinstance(part, str) and part in parts)):
            raise InputError(f"part {shown(part)} is none of the model's{nearest(str(part), parts)}")
        generator = torch.Generator().manual_seed(whole_number("seed", seed, 0))
        values = {}
        for key in form.spec.sites:
            space = form.spec.spaces[key[0]]
            if part in (None, space.part):
                values[key] = form.group(key).sample(form.spec.batch(key[0]), space.size, generator)
        return cls(form, values)


def check_element(given: Any) -> Element:
    """What Python was given for an element.

    Raises:
        InputError: it is none.
    """
    if not isinstance(given, Element):
        raise InputError(f"{shown(given)}: expected an Element, from cobasin.match or cobasin.Element.load")
    return given


def _file(path: str | Path) -> Path:
    """The file of an element: the path itself, or its usual name in the folder that it is."""
    path = expanded(path, "element")
    return path / FILE if path.is_dir() else path


def _check_value(form: Form, key: Key, value: Value) -> None:
    """Raise ValueError unless ``value`` has the parts and shapes of an element for ``key``."""
    if key not in form.spec.sites:
        raise ValueError(f"{key_text(key)} does not act on {form.spec.architecture}")
    whole = form.identity(key)
    if not whole.keys() - {"scale"} <= value.keys() <= whole.keys():
        raise ValueError(f"{key_text(key)} has the parts {sorted(value)}, expected {sorted(whole)}")
    for part, tensor in value.items():
        if tensor.shape != whole[part].shape or tensor.dtype != whole[part].dtype:
            raise ValueError(f"{key_text(key)}/{part} is {tensor.dtype} {tuple(tensor.shape)}")


def _check_gauge(form: Form, gauge: Gauge) -> None:
    """Raise ValueError unless all that a gauge must hold is there, in its shape and finite."""
    for name, shape in gauge_shapes(form).items():
        if name not in gauge:
            raise ValueError(f"the gauge lacks {name}")
        if gauge[name].shape != shape or not gauge[name].is_floating_point():
            raise ValueError(f"the gauge has {name} as {gauge[name].dtype} {tuple(gauge[name].shape)}")
        if not gauge[name].isfinite().all():
            raise ValueError(f"the gauge has NaN or infinite values in {name}")
