"""Costs and couplings: against their definitions, and where floating point ends."""

import pytest
import torch
from scipy.optimize import linear_sum_assignment

from cobasin.coupling import couplings
from cobasin.coupling.couplings import Likeness, hard, soft, standardised

N = 40


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cost(source: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
    likeness = Likeness(tuple(source.shape[:-1]))
    likeness.add(source, anchor)
    return likeness.cost()


@pytest.fixture
def random_cost():
    return cost(rows(N, 7), rows(N, 7, seed=1))


def test_the_cost_is_the_distance_of_unit_rows_over_its_largest(monkeypatch):
    x, y = rows(2, N, 9), rows(2, N, 9, seed=1)
    direct = torch.cdist(torch.nn.functional.normalize(x, dim=-1), torch.nn.functional.normalize(y, dim=-1))
    direct /= direct.amax((-2, -1), keepdim=True)
    assert torch.allclose(cost(x, y), direct, atol=1e-12)
    monkeypatch.setattr(couplings, "_FEATURES", 4)
    assert torch.allclose(cost(x, y), direct, atol=1e-12)  # features taken in parts


def test_features_of_several_tensors_are_one_long_row():
    x, y = rows(N, 9), rows(N, 9, seed=1)
    likeness = Likeness((N,))
    likeness.add(x[:, :4], y[:, :4])
    likeness.add(x[:, 4:], y[:, 4:])
    assert torch.allclose(likeness.cost(), cost(x, y), atol=1e-12)
    assert not torch.allclose(cost(x[:, :4], y[:, :4]), cost(x, y), atol=0.1)


def test_costs_of_activations_follow_the_correlation():
    x, y = rows(N, 200), rows(N, 200, seed=1) + 5
    correlation = torch.corrcoef(torch.cat([x, y]))[:N, N:]
    distance = (2 - 2 * correlation).sqrt()
    assert torch.allclose(cost(standardised(x), standardised(y)), distance / distance.max(), atol=1e-12)


def test_neurons_without_features_cost_nothing_among_each_other():
    x = torch.cat([torch.zeros(2, 5), rows(3, 5)])
    found = cost(x, x)
    assert found[:2, :2].eq(0).all()
    assert found[:2, 2:].gt(0.4).all()
    assert cost(torch.zeros(3, 5), torch.zeros(3, 5)).eq(0).all()
    constant = torch.full((3, 50), 0.1, dtype=torch.float32)
    assert standardised(constant).eq(0).all()


def test_hard_couplings_are_the_best_assignment(random_cost):
    coupling = hard(random_cost)
    source, anchor = linear_sum_assignment(random_cost)
    assert torch.equal(coupling.nonzero(), torch.tensor([*zip(source, anchor, strict=True)]))
    assert coupling.unique().tolist() == [0, 1]


@pytest.mark.parametrize("regularization", [1e-5, 1e-3, 9e-3, 0.01, 0.08, 1.0, 1e6])
def test_soft_couplings_have_uniform_marginals(random_cost, regularization):
    coupling = soft(random_cost, regularization)
    ones = torch.ones(N, dtype=torch.float64)
    assert coupling.min() >= 0
    assert torch.allclose(coupling.sum(0), ones, atol=1e-12)
    assert torch.allclose(coupling.sum(1), ones, atol=5e-3)


def test_soft_couplings_go_from_the_best_assignment_to_the_uniform_one(random_cost):
    price = [float((soft(random_cost, r) * random_cost).sum()) for r in (1e-3, 0.02, 0.1, 1e6)]
    assert price == sorted(price)
    assert price[0] == pytest.approx(float((hard(random_cost) * random_cost).sum()), rel=1e-3)
    assert torch.allclose(soft(random_cost, 1e6), torch.full((N, N), 1 / N, dtype=torch.float64), atol=1e-6)


def test_the_logarithm_takes_over_without_a_jump(random_cost, monkeypatch):
    in_log = soft(random_cost, 0.0099)
    monkeypatch.setattr(couplings, "_LOG_DOMAIN", 0.0)
    assert torch.allclose(in_log, soft(random_cost, 0.0099), atol=2e-3)
    with pytest.warns(UserWarning, match=r"[Nn]umerical"):
        soft(random_cost, 1e-4)  # the control: out of the logarithm this is no coupling
