"""Task arithmetic against its definition; methods that are computed slice by slice are the same whatever the slices."""

import pytest
import torch

from cobasin.fusion import arithmetic
from cobasin.fusion.sce import sce
from cobasin.fusion.spherical import slerp
from cobasin.fusion.task_vectors import task_arithmetic
from cobasin.fusion.trimming import breadcrumbs, ties
from task_vector_cases import WEIGHTS, close, models


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("normalize", [False, True])
def test_task_arithmetic(weight, normalize):
    base, others = models()
    share = sum(weight) if normalize and sum(weight) else 1.0
    expected = base + 0.7 * sum(w * (x - base) for w, x in zip(weight, others, strict=True)) / share
    result = task_arithmetic(base, others, weight=weight, normalize=normalize, lambda_=0.7)
    assert close(result, expected)
    assert not close(result, task_arithmetic(base, others, weight=weight, normalize=normalize), 0.1)


def test_task_arithmetic_divides_by_small_weights_but_not_by_weights_that_cancel():
    base, others = torch.zeros(1), [torch.tensor([2.0]), torch.tensor([2.0])]
    given = {"normalize": True, "lambda_": 1.0}
    assert float(task_arithmetic(base, others, weight=(1e-9, 1e-9), **given)) == pytest.approx(2.0)
    others.append(torch.tensor([0.0]))
    assert float(task_arithmetic(base, others, weight=(0.1, 0.2, -0.3 + 1e-8), **given)) == pytest.approx(0.6)


def slerped(base, tensors, **_):
    return slerp(base, tensors[:1], t=0.3)


def selected(base, tensors, **_):
    return sce(base, tensors, select_topk=0.3)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("size", [3, 7, 1000])
@pytest.mark.parametrize("method", [ties, breadcrumbs, task_arithmetic, slerped, selected])
def test_slices_change_nothing(monkeypatch, method, size):
    base, others = models((40, 30))
    others = [(other * 4).round() / 4 for other in others]  # of few magnitudes: many are equal
    given = {"weight": (1.0, 0.5, 1.0)} | ({"density": (0.5, 0.03, 0.9)} if method in (ties, breadcrumbs) else {})
    given |= {"gamma": (0.1, 0.2, 0.05)} if method is breadcrumbs else {}
    base = (base * 4).round() / 4
    expected = method(base, others, **given)
    monkeypatch.setattr(arithmetic, "SLICE", size)
    assert close(method(base, others, **given), expected)
