"""Task arithmetic, TIES and DARE against the definitions, entry by entry."""

import itertools
import math

import numpy as np
import pytest
import torch

from cobasin.fusion import arithmetic
from cobasin.fusion.spherical import slerp
from cobasin.fusion.task_vectors import dare_linear, dare_ties, task_arithmetic, ties

WEIGHTS = [(1.0, 1.0, 1.0), (0.5, 0.3, 0.7), (1.0, -0.4, 0.5), (1.0, -1.0, 0.0)]
DENSITIES = [(1.0, 1.0, 1.0), (0.5, 0.2, 0.8), (0.01, 0.34, 0.99)]


def models(shape=(5, 4), count=3):
    generator = torch.Generator().manual_seed(0)
    base, *others = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(count + 1))
    return base, others


def seeded(seed=0):
    return np.random.default_rng(seed)


def close(x, y, tolerance=1e-12):
    return float((x - y).abs().max()) < tolerance


def trimmed(delta, density):
    entries = [float(one) for one in delta.flatten()]
    ranked = sorted(range(len(entries)), key=lambda i: -abs(entries[i]))
    kept = set(ranked[: max(1, int(density * len(entries)))])
    return [one if i in kept else 0.0 for i, one in enumerate(entries)]


def consensus(columns, weight, normalize):
    """The TIES merge of the entries of all models, one after the other."""
    merged = []
    for column in zip(*columns, strict=True):
        weighted = [w * x for w, x in zip(weight, column, strict=True)]
        positive = sum(weighted) >= 0
        counted = [i for i, x in enumerate(weighted) if x != 0 and (x > 0) == positive]
        value, share = sum(weighted[i] for i in counted), sum(weight[i] for i in counted)
        merged.append(value / share if normalize and abs(share) > 1e-8 else value)
    return merged


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("normalize", [False, True])
def test_task_arithmetic(weight, normalize):
    base, others = models()
    share = sum(weight) if normalize and sum(weight) else 1.0
    expected = base + 0.7 * sum(w * (x - base) for w, x in zip(weight, others, strict=True)) / share
    result = task_arithmetic(base, others, weight=weight, normalize=normalize, lambda_=0.7)
    assert close(result, expected)
    assert not close(result, task_arithmetic(base, others, weight=weight, normalize=normalize), 0.1)


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


def test_task_arithmetic_divides_by_small_weights_but_not_by_weights_that_cancel():
    base, others = torch.zeros(1), [torch.tensor([2.0]), torch.tensor([2.0])]
    given = {"normalize": True, "lambda_": 1.0}
    assert float(task_arithmetic(base, others, weight=(1e-9, 1e-9), **given)) == pytest.approx(2.0)
    others.append(torch.tensor([0.0]))
    assert float(task_arithmetic(base, others, weight=(0.1, 0.2, -0.3 + 1e-8), **given)) == pytest.approx(0.6)


def test_ties_divides_by_a_small_weight_that_counts_alone():
    base, others = torch.zeros(1), [torch.tensor([0.0]), torch.tensor([2.0])]
    assert float(ties(base, others, weight=(1.0, 1e-9), density=(1.0, 1.0), normalize=True)) == pytest.approx(2.0)


@pytest.mark.parametrize("function", [dare_linear, dare_ties])
def test_dare_depends_on_its_generator_only(function):
    base, others = models((40, 30))
    given = {"weight": (1.0, 0.5, 1.0), "density": (0.5, 0.3, 0.9)}
    torch.manual_seed(1)
    first = function(base, others, seeded(7), **given)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert torch.equal(function(base, others, seeded(7), **given), first)
    assert torch.equal(torch.get_rng_state(), state)
    assert not close(function(base, others, seeded(8), **given), first, 0.1)
    # float32 models lose the same entries
    assert close(function(base.float(), [x.float() for x in others], seeded(7), **given).double(), first, 1e-4)


@pytest.mark.parametrize(("density", "bits"), [(0.3, 16), (0.003, 32)])
@pytest.mark.parametrize("rescale", [True, False])
def test_dare_drops_and_rescales(rescale, density, bits):
    base, (other, *_) = models((1000, 80))
    result = dare_linear(base, [other], seeded(), weight=(1.0,), density=(density,), rescale=rescale)
    change, delta = result - base, other - base
    kept = change != 0
    assert float(kept.double().mean()) == pytest.approx(density, rel=0.2 if bits == 32 else 0.02)
    share = math.ceil(density * 2**bits) / 2**bits  # what it is kept with
    assert close(change[kept], delta[kept] / share if rescale else delta[kept])
    assert not close(change[kept], delta[kept] if rescale else delta[kept] / density, 0.1)


def test_dare_models_lose_different_entries():
    base, (other, *_) = models((100, 80))
    result = dare_linear(base, [other, other], seeded(), weight=(1.0, 1.0), density=(0.5, 0.5), rescale=False)
    times = ((result - base) / (other - base)).round().flatten()
    assert (torch.bincount(times.long()) / times.numel()).tolist() == pytest.approx([0.25, 0.5, 0.25], abs=0.03)


def test_dare_keeps_the_expectation():
    base, others = models((3, 3))
    given = {"weight": (0.5, 0.8, 0.7), "density": (0.5, 0.6, 0.7)}
    mean = sum(dare_linear(base, others, seeded(i), **given) for i in range(4000)) / 4000
    expected = task_arithmetic(base, others, weight=given["weight"])
    assert close(mean, expected, 0.15)
    shrunk = sum(dare_linear(base, others, seeded(i), **given, rescale=False) for i in range(4000)) / 4000
    assert not close(shrunk, expected, 0.3)


@pytest.mark.parametrize("normalize", [False, True])
def test_dare_without_drops(normalize):
    base, others = models()
    given = {"weight": (0.5, 0.3, 0.7), "normalize": normalize, "lambda_": 0.7}
    whole = (1.0, 1.0, 1.0)
    linear, agreed = task_arithmetic(base, others, **given), ties(base, others, density=whole, **given)
    assert close(dare_linear(base, others, seeded(), density=whole, **given), linear)
    assert close(dare_ties(base, others, seeded(), density=whole, **given), agreed)
    assert not close(linear, agreed, 0.1)


def test_dare_ties_elects_signs_among_what_is_left():
    base = torch.zeros(2000)
    others = [torch.full((2000,), 3.0), torch.full((2000,), -1.0)]
    given = {"weight": (1.0, 1.0), "density": (0.5, 0.5), "rescale": False}
    assert set(dare_ties(base, others, seeded(), **given).tolist()) == {3.0, -1.0, 0.0}
    assert set(dare_linear(base, others, seeded(), **given).tolist()) == {3.0, 2.0, -1.0, 0.0}


def test_the_models_draw_in_turn():
    """Each model keeps the entries that its place says: leaving the last one out changes nothing for the others."""
    base, others = models((10, 10))
    given = {"density": (0.5, 0.5, 0.5)}
    results = [
        dare_linear(base, others, seeded(), weight=weight, **given) - base
        for weight in itertools.chain(torch.eye(3).tolist(), [(1.0, 1.0, 1.0)])
    ]
    assert close(results[0] + results[1] + results[2], results[3])
    two = dare_linear(base, others[:2], seeded(), weight=(1.0, 1.0), density=(0.5, 0.5)) - base
    assert close(results[0] + results[1], two)
    assert not close(results[3], two, 0.1)


@pytest.mark.parametrize("size", [3, 7, 1000])
@pytest.mark.parametrize("method", [ties, task_arithmetic, lambda base, tensors, **_: slerp(base, tensors[:1], t=0.3)])
def test_slices_change_nothing(monkeypatch, method, size):
    base, others = models((40, 30))
    others = [(other * 4).round() / 4 for other in others]  # of few magnitudes: many are equal
    given = {"weight": (1.0, 0.5, 1.0)} | ({"density": (0.5, 0.03, 0.9)} if method is ties else {})
    base = (base * 4).round() / 4
    expected = method(base, others, **given)
    monkeypatch.setattr(arithmetic, "SLICE", size)
    assert close(method(base, others, **given), expected)
