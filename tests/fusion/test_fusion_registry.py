"""The signature of a method is its schema."""

from typing import Annotated

import pytest
import torch
from annotated_types import Gt

from cobasin.errors import InputError
from cobasin.fusion.registry import REQUIRED, find, method, methods


def test_the_signature_is_the_schema():
    found = find("ties")
    assert (found.inputs, found.takes_base) == (("base", "tensors", "dtype"), True)
    assert list(found.parameters) == ["weight", "density", "normalize", "lambda"]
    assert [one.each for one in found.parameters.values()] == [True, True, False, False]
    assert [one.default for one in found.parameters.values()] == [1.0, 1.0, True, 1.0]
    assert found.parameters["density"].check("0.5") == 0.5
    assert find("slerp").parameters["t"].default is REQUIRED
    assert (find("slerp").fewest, find("slerp").most, find("linear").most) == (1, 1, None)


def test_lambda_is_written_as_in_recipes():
    given = {"base": torch.zeros(2), "tensors": [torch.ones(2)]}
    parameters = {"weight": (1.0,), "normalize": False, "lambda": 3.0}
    assert find("task_arithmetic").fuse(given, parameters).tolist() == [3.0, 3.0]


def test_an_unknown_method_is_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"'slrep' is unknown; did you mean 'slerp'\? \(known: arcee_fusion, "):
        find("slrep")
    with pytest.raises(InputError, match=r"'frankenstein' is unknown \(known: "):
        find("frankenstein")


def test_a_method_that_cannot_be_called_is_not_registered():
    def unknown_input(tensors, labels, *, weight: Annotated[float, Gt(0)] = 1.0):
        raise NotImplementedError

    with pytest.raises(ValueError, match="'labels' is none of tensors, base"):
        method("new", reference="none")(unknown_input)
    with pytest.raises(ValueError, match="'linear' is registered twice"):
        method("linear", reference="none")(find("linear").function)
    assert "new" not in methods()
