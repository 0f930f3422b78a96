"""SLERP and the Karcher mean."""

import math

import pytest
import torch

from cobasin.fusion.arithmetic import inner_products
from cobasin.fusion.spherical import karcher, multislerp, nuslerp, slerp
from task_vector_cases import close


def random(seed, *shape):
    return torch.randn(*(shape or (4, 3)), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def angle(x, y):
    """Of the flattened tensors, in radians; exact for small ones as well."""
    u, v = x / x.norm(), y / y.norm()
    return 2 * math.atan2(float((u - v).norm()), float((u + v).norm()))


def test_slerp_ends():
    x, y = random(0), 5 * random(1)
    assert close(slerp(x, [y], t=0), x)
    assert close(slerp(x, [y], t=1), y)
    assert not close(slerp(x, [y], t=0.5), (x + y) / 2, 0.1)


def test_slerp_turns_at_constant_speed():
    x, y = random(0), random(1)
    y *= x.norm() / y.norm()
    theta = angle(x, y)
    for t in (0.1, 0.25, 0.6, 0.9):
        point = slerp(x, [y], t=t)
        assert angle(x, point) == pytest.approx(t * theta, abs=1e-12)
        assert angle(point, y) == pytest.approx((1 - t) * theta, abs=1e-12)
        assert float(point.norm()) == pytest.approx(float(x.norm()), abs=1e-12)
        straight = (1 - t) * x + t * y
        assert float(straight.norm()) < 0.95 * float(x.norm())
    assert angle(x, 0.9 * x + 0.1 * y) != pytest.approx(0.1 * theta, abs=1e-2)


def test_slerp_combines_the_tensors_as_they_are():
    """The angle is that of the directions; the lengths are those given."""
    x, y = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 8.0])
    assert close(slerp(x, [y], t=1 / 3), torch.tensor([2 * math.sqrt(0.75), 8 * 0.5]), 1e-6)


@pytest.mark.parametrize("t", [0.25, 0.5])
def test_slerp_is_straight_where_there_is_no_arc(t):
    x = random(0)
    for y in (-x, 3 * x, torch.zeros_like(x), x + 1e-9 * random(1)):
        assert close(slerp(x, [y], t=t), (1 - t) * x + t * y)
        assert close(slerp(y, [x], t=t), (1 - t) * y + t * x)
    assert not close(slerp(x, [random(1)], t=t), (1 - t) * x + t * random(1), 0.01)


@pytest.mark.parametrize(("cosine", "straight"), [(0.9996, True), (0.9994, False), (-0.9996, True), (-0.9994, False)])
def test_slerp_threshold(cosine, straight):
    x, y = torch.tensor([1.0, 0.0]).double(), torch.tensor([cosine, math.sqrt(1 - cosine**2)]).double()
    assert close(slerp(x, [y], t=0.5), (x + y) / 2, 1e-6) is straight


def test_karcher_mean_of_two_is_halfway():
    x, y = random(0), 4 * random(1)
    unit = slerp(x / x.norm(), [y / y.norm()], t=0.5)
    assert close(karcher([x, y]), unit / unit.norm() * (x.norm() + y.norm()) / 2)
    assert not close(karcher([x, y]), (x + y) / 2, 0.1)


def logarithms(mean, tensors):
    """The vectors that lead from the direction of the mean to those of the tensors, from the definition."""
    m = (mean / mean.norm()).flatten()
    found = []
    for tensor in tensors:
        u = (tensor / tensor.norm()).flatten()
        across = u - (u @ m) * m
        found.append(angle(u, m) * across / across.norm())
    return torch.stack(found)


@pytest.mark.parametrize("count", [3, 5])
def test_karcher_mean_balances_the_logarithms(count):
    tensors = [random(i) + 0.5 for i in range(count)]
    mean = karcher(tensors, max_iter=100, tol=1e-13)
    assert float(logarithms(mean, tensors).mean(0).norm()) < 1e-12
    assert float(mean.norm()) == pytest.approx(sum(float(x.norm()) for x in tensors) / count)
    start = karcher(tensors, max_iter=0)
    units = torch.stack([x / x.norm() for x in tensors]).sum(0)
    assert close(start, units * (mean.norm() / units.norm()))
    assert float(logarithms(start, tensors).mean(0).norm()) > 1e-3


def test_karcher_stops_when_told():
    tensors = [random(i) + 0.5 for i in range(4)]
    start, end = karcher(tensors, max_iter=0), karcher(tensors, max_iter=50, tol=0)
    assert torch.equal(karcher(tensors, tol=10), start)
    assert not close(start, end, 1e-3)
    assert close(karcher(tensors), end, 1e-4)
    assert not close(karcher(tensors), end, 1e-14)


def test_karcher_zeros_count_for_the_norm_only():
    x, y, zero = random(0), random(1), torch.zeros(4, 3)
    assert close(karcher([x, zero, y]), karcher([x, y]) * 2 / 3)
    assert close(karcher([zero, zero]), zero)


def test_karcher_directions_that_cancel_are_averaged():
    x, y = random(0), random(1)
    assert close(karcher([x, -3 * x]), -x)
    assert close(karcher([x, -x, y, -y]), torch.zeros_like(x))
    corners = [torch.tensor([math.cos(a), math.sin(a)]) for a in (0, 2 * math.pi / 3, 4 * math.pi / 3)]
    assert close(karcher(corners), torch.zeros(2), 1e-6)
    assert float(karcher([x, -x, y]).norm()) > 1


def test_karcher_with_a_model_opposite_to_the_mean():
    for i in range(20):
        x = random(i, 30, 30).float()
        assert close(karcher([x, 0.3 * x, -0.7 * x]), x * 2 / 3, 1e-5)


def test_inner_products_of_many_float32_entries():
    """The norms of a large embedding decide its angle; a running float32 sum would lose digits."""
    x = torch.rand(20_000_000, generator=torch.Generator().manual_seed(0))
    exact = float((x.double() ** 2).sum())
    assert float(inner_products([x])) == pytest.approx(exact, rel=1e-6)
    assert float((x * x).numpy().cumsum()[-1]) != pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("weight", [(1.0, 1.0), (0.2, 0.6), (1.0, 0.0)])
def test_nuslerp_is_slerp_by_weights(weight):
    base, x, y = random(2), random(0), random(1)
    t = weight[1] / sum(weight)
    assert close(nuslerp(None, [x, y], weight=weight), slerp(x, [y], t=t))
    assert close(nuslerp(base, [x, y], weight=weight), base + slerp(x - base, [y - base], t=t))
    assert not close(nuslerp(base, [x, y], weight=weight), slerp(x, [y], t=t), 0.1) or weight[1] == 0
    assert not close(nuslerp(None, [x, y], weight=weight), slerp(x, [y], t=1 - t), 0.1) or t == 0.5


@pytest.mark.parametrize(("row_wise", "axis"), [(False, 0), (True, 1)])
def test_nuslerp_of_vectors(row_wise, axis):
    x, y = random(0), random(1)
    vectors = [slerp(a, [b], t=0.3) for a, b in zip(x.unbind(axis), y.unbind(axis), strict=True)]
    result = nuslerp(None, [x, y], weight=(0.7, 0.3), nuslerp_flatten=False, nuslerp_row_wise=row_wise)
    assert close(result, torch.stack(vectors, axis))
    assert not close(result, nuslerp(None, [x, y], weight=(0.7, 0.3), nuslerp_row_wise=row_wise), 0.01)


def test_nuslerp_bends_where_slerp_is_straight():
    """Task vectors aside, fine-tunes are so near each other that their arc is; lengths show the difference."""
    x, y = torch.tensor([1.0, 0.0], dtype=torch.float64), torch.tensor([math.cos(0.02), math.sin(0.02)]).double()
    bent, straight = (float(one.norm()) for one in (nuslerp(None, [x, y], weight=(1.0, 1.0)), slerp(x, [y], t=0.5)))
    assert abs(bent - 1) < 1e-7
    assert abs(straight - 1) > 4e-5


@pytest.mark.parametrize("weight", [(0.2, 0.5, 0.8), (1.0, 1.0, 1.0)])
def test_multislerp(weight):
    """By its definition, the step in the tangent plane included."""
    base, tensors = random(9), [(i + 1) * random(i) for i in range(3)]
    parts = [one / sum(weight) for one in weight]
    for start in (None, base):
        ends = tensors if start is None else [one - start for one in tensors]
        units = [one / one.norm() for one in ends]
        mean = sum(part * one for part, one in zip(parts, units, strict=True))
        mean = mean / mean.norm()
        step = sum(part * (one - (one * mean).sum() * mean) for part, one in zip(parts, units, strict=True))
        point = step.norm().cos() * mean + step
        expected = point * sum(part * one.norm() for part, one in zip(parts, ends, strict=True))
        result = multislerp(start, tensors, weight=weight)
        assert close(result, expected if start is None else start + expected)
        summed = multislerp(start, tensors, weight=weight, normalize_weights=False)
        assert close(summed, expected * sum(weight) + (0 if start is None else start))
        assert not close(result, sum(tensors) / 3, 0.05)
