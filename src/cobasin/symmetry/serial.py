"""Declarations as text, so that an element's file says what it acts on."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from cobasin.symmetry.form import Form
from cobasin.symmetry.gauges import KeyBias, LayerScale, Norm, SoftmaxShift, ValueBias
from cobasin.symmetry.groups import Diagonal, Orthogonal, Permutation, Rotation2
from cobasin.symmetry.spec import Space, Spec

_GROUPS = (Permutation, Orthogonal, Rotation2, Diagonal)
_CLASSES = {c.__name__: c for c in (Form, Spec, Space, Norm, LayerScale, KeyBias, ValueBias, SoftmaxShift, *_GROUPS)}
_CLASS = "__class__"


def dump(form: Form) -> str:
    """JSON of a form and its spec; the inverse of `parse`."""
    return json.dumps(form, default=_encode)


def parse(text: str) -> Form:
    """A form from its JSON.

    Raises:
        KeyError, TypeError, ValueError: where the text is not a form.
    """
    form = json.loads(text, object_hook=_decode)
    if not isinstance(form, Form):
        raise TypeError("not a form")
    return form


def _encode(value: Any) -> dict:
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {_CLASS: type(value).__name__, **fields}


def _decode(content: dict) -> Any:
    content = {name: _tuples(value) for name, value in content.items()}
    return _CLASSES[content.pop(_CLASS)](**content) if _CLASS in content else content


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
