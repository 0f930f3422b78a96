"""Model stock against the formula."""

import itertools

import pytest
import torch

from cobasin.fusion.model_stock import model_stock


def models(count, shape=(5, 4), seed=0):
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(shape, dtype=torch.float64, generator=generator)
    shift = torch.randn(shape, dtype=torch.float64, generator=generator)
    others = [base + shift + torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(count)]
    return base, others


def ratio(offsets):
    """``N cos θ / (1 + (N - 1) cos θ)`` of flat offsets, from all ordered pairs."""
    n = len(offsets)
    cosines = [float(a @ b / (a.norm() * b.norm())) for a, b in itertools.permutations(offsets, 2)]
    cosine = sum(cosines) / len(cosines)
    return n * cosine / (1 + (n - 1) * cosine)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_formula(count):
    base, others = models(count)
    t = ratio([(x - base).flatten() for x in others])
    mean = sum(others) / count
    result = model_stock(base, others)
    torch.testing.assert_close(result, t * mean + (1 - t) * base, rtol=0, atol=1e-12)
    assert 0 < t < 1
    assert float((result - mean).abs().max()) > 0.01


@pytest.mark.parametrize("shape", [(5, 4), (3, 2, 4)])
def test_filter_wise(shape):
    base, others = models(3, shape)
    result = model_stock(base, others, filter_wise=True)
    for i in range(shape[0]):
        t = ratio([(x[i] - base[i]).flatten() for x in others])
        expected = t * sum(x[i] for x in others) / 3 + (1 - t) * base[i]
        torch.testing.assert_close(result[i], expected, rtol=0, atol=1e-12)
    assert float((result - model_stock(base, others)).abs().max()) > 0.01


def test_a_vector_is_one_row():
    base, others = models(3, (7,))
    assert torch.equal(model_stock(base, others, filter_wise=True), model_stock(base, others))


def test_independent_models_say_nothing_in_common():
    base = torch.zeros(4)
    result = model_stock(base + 1, [base + 1 + torch.eye(4)[i] for i in range(3)])
    assert torch.equal(result, base + 1)
    assert not torch.equal(model_stock(base + 1, [base + 2, base + 3]), base + 1)


def test_opposite_models_leave_the_base():
    """Two offsets that cancel: the denominator is 0."""
    base, (x, _) = models(2)
    torch.testing.assert_close(model_stock(base, [x, 2 * base - x]), base, rtol=0, atol=1e-12)


def test_a_model_that_is_the_base():
    base, (x, y) = models(2)
    assert torch.equal(model_stock(base, [x, base]), base)
    mixed = model_stock(base, [x, y, base])
    cosine = float((x - base).flatten() @ (y - base).flatten() / ((x - base).norm() * (y - base).norm())) / 3
    t = 3 * cosine / (1 + 2 * cosine)
    torch.testing.assert_close(mixed, t * (x + y + base) / 3 + (1 - t) * base, rtol=0, atol=1e-12)
