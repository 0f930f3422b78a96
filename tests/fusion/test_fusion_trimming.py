"""TIES and Model Breadcrumbs against the definitions, entry by entry."""

import pytest
import torch

from cobasin.fusion.task_vectors import task_arithmetic
from cobasin.fusion.trimming import breadcrumbs, breadcrumbs_ties, ties
from task_vector_cases import DENSITIES, WEIGHTS, close, consensus, models, trimmed


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("normalize", [False, True])
def test_ties(weight, density, normalize):
    base, others = models()
    columns = [trimmed(x - base, part) for x, part in zip(others, density, strict=True)]
    expected = base + 0.7 * torch.tensor(consensus(columns, weight, normalize), dtype=torch.float64).view_as(base)
    result = ties(base, others, weight=weight, density=density, normalize=normalize, lambda_=0.7)
    assert close(result, expected)
    whole = task_arithmetic(base, others, weight=weight, normalize=normalize, lambda_=0.7)
    assert not close(result, whole, 0.1)


@pytest.mark.parametrize(("density", "kept"), [(0.01, 1), (0.34, 6), (0.5, 10), (0.99, 19), (1.0, 20)])
def test_ties_keeps_the_largest(density, kept):
    base, (other, *_) = models()
    change = (ties(base, [other], weight=(1.0,), density=(density,)) - base).flatten()
    delta = (other - base).flatten()
    largest = delta.abs().topk(kept).indices
    assert set(change.nonzero().flatten().tolist()) == set(largest.tolist())
    assert close(change[largest], delta[largest])


def test_ties_keeps_as_many_of_equal_magnitudes():
    base = torch.zeros(4, 3)
    other = torch.ones(4, 3)
    other[0, 0] = 2.0
    change = ties(base, [other], weight=(1.0,), density=(0.5,))
    assert int((change != 0).sum()) == 6
    assert torch.equal(change, ties(base, [other], weight=(1.0,), density=(0.5,)))
    assert float(change[0, 0]) == 2.0


def test_ties_a_tensor_of_one_entry_is_kept():
    result = ties(torch.tensor([1.0]), [torch.tensor([3.0])], weight=(1.0,), density=(0.1,))
    assert float(result) == 3.0


def test_ties_counts_a_tie_of_the_signs_as_positive():
    base = torch.zeros(2)
    result = ties(base, [torch.tensor([2.0, 2.0]), torch.tensor([-2.0, -3.0])], weight=(1.0, 1.0), density=(1.0, 1.0))
    assert result.tolist() == [2.0, -3.0]


@pytest.mark.parametrize("weight", [(0.01, 0.15, -0.16), (12.3, 45.6, -57.9)])
def test_ties_is_not_divided_by_what_rounding_leaves_of_weights_that_cancel(weight):
    base, others = torch.zeros(1), list(torch.tensor([[1.0], [1.0], [-1.0]]))  # all count: their products are positive
    result = ties(base, others, weight=weight, density=(1.0,) * 3, normalize=True)
    assert float(result) == pytest.approx(sum(map(abs, weight)))


def test_ties_divides_by_a_small_weight_that_counts_alone():
    base, others = torch.zeros(1), [torch.tensor([0.0]), torch.tensor([2.0])]
    assert float(ties(base, others, weight=(1.0, 1e-9), density=(1.0, 1.0), normalize=True)) == pytest.approx(2.0)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("gamma", [(0.0, 0.0, 0.0), (0.1, 0.3, 0.05), (0.2, 0.0, 0.9)])
@pytest.mark.parametrize("normalize", [False, True])
def test_breadcrumbs(weight, density, gamma, normalize):
    base, others = models()
    columns = [trimmed(x - base, part, above) for x, part, above in zip(others, density, gamma, strict=True)]
    given = {"weight": weight, "density": density, "normalize": normalize, "lambda_": 0.7}
    share = sum(weight) if normalize and sum(weight) else 1.0
    summed = [sum(w * x for w, x in zip(weight, column, strict=True)) / share for column in zip(*columns, strict=True)]
    agreed = consensus(columns, weight, normalize)
    for function, expected in ((breadcrumbs, summed), (breadcrumbs_ties, agreed)):
        result = function(base, others, gamma=gamma, **given)
        assert close(result, base + 0.7 * torch.tensor(expected, dtype=torch.float64).view_as(base))
    if density != (1.0, 1.0, 1.0):  # where all is kept none is too large
        assert not close(result, breadcrumbs_ties(base, others, gamma=(0.2, 0.2, 0.2), **given), 0.01)


@pytest.mark.parametrize(
    ("density", "gamma", "kept"),
    [
        (0.5, 0.2, range(4, 14)),  # of 20, the largest first
        (0.5, 0.5, range(10, 20)),
        (0.7, 0.5, range(6, 20)),  # fewer of the largest are dropped, for as many to be left
        (0.01, 0.99, range(19, 20)),
        (1.0, 0.4, range(20)),
        (0.5, 0.0, range(10)),
    ],
)
def test_breadcrumbs_keeps_those_between(density, gamma, kept):
    base, (other, *_) = models()
    change = (breadcrumbs(base, [other], weight=(1.0,), density=(density,), gamma=(gamma,)) - base).flatten()
    delta = (other - base).flatten()
    ranked = delta.abs().argsort(descending=True)[list(kept)]
    assert set(change.nonzero().flatten().tolist()) == set(ranked.tolist())
    assert close(change[ranked], delta[ranked])
