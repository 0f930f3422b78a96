"""Declarations as text."""

import dataclasses
import json

import pytest

from cobasin.symmetry.form import Form
from cobasin.symmetry.serial import dump, parse
from random_states import CONFIGS, form_of, spec_of


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("family", CONFIGS)
def test_forms_come_back_equal(family, folded):
    form = form_of(family, folded)
    found = parse(dump(form))
    assert found == form
    assert dump(found) == dump(form)
    assert found.spec.sites == form.spec.sites  # what is derived is derived again


def test_different_forms_differ():
    forms = [form_of(family, folded) for family in CONFIGS for folded in (True, False)]
    different = {dump(form) for form in forms}
    assert len(different) == len(forms) - 1  # BERT has no norm to fold
    spec = spec_of("bert")
    assert parse(dump(Form(spec))) != parse(dump(Form(dataclasses.replace(spec, version=spec.version + 1))))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "null",
        '{"__class__": "Form"}',
        '{"__class__": "Path", "spec": 1}',
        '{"__class__": "Permutation", "signed": true}',
        '{"__class__": "Permutation", "colour": 1}',
    ],
)
def test_what_is_no_form_is_refused(text):
    with pytest.raises((KeyError, TypeError, ValueError)):
        parse(text)


def test_a_form_with_an_unknown_field_is_refused():
    content = json.loads(dump(form_of("gpt2")))
    content["spec"]["colour"] = 1
    with pytest.raises(TypeError):
        parse(json.dumps(content))
