"""Large assignments by auction."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from cobasin.errors import InputError
from cobasin.symmetry.groups import assignment
from cobasin.symmetry.groups.assignment import assign, assign_rows
from cobasin.symmetry.groups.auction import SLACK, auction
from group_cases import normal

quick = settings(deadline=None, max_examples=30, derandomize=True)


def total(table, perm):
    """What an assignment comes to."""
    assert sorted(perm.tolist()) == list(range(len(table)))
    return table[perm, torch.arange(len(perm))].double().sum().item()


def least(cost):
    return float(cost.double().numpy()[linear_sum_assignment(cost.double().numpy())].sum())


@quick
@given(
    st.integers(2, 60),
    st.integers(0, 10**6),
    st.floats(0, 2),
    st.sampled_from([1e-6, 1.0, 1e6]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_a_total_is_within_the_slack(n, seed, spread, unit, dtype):
    """Of costs of any size, also where some sources and targets have far larger ones than others."""
    sizes = (spread * normal(2, n, 1, seed=seed + 1)).exp()
    cost = (unit * sizes[0] * normal(n, n, seed=seed) * sizes[1].T).to(dtype)
    found = auction(cost)
    assert found is not None
    slack = SLACK * (cost.mean(1) - cost.amin(1)).double().sum().item()
    assert total(cost, found) <= least(cost) + 1.01 * slack


def test_it_is_no_list_of_best_partners():
    """The control: taking the best of what is left, one after the other, is not within the slack."""
    cost = normal(40, 40, seed=0)
    left, greedy = cost.clone(), torch.empty(40, dtype=torch.int64)
    for source in range(40):
        greedy[left[source].argmin()] = source
        left[:, left[source].argmin()] = torch.inf
    assert total(cost, greedy) > least(cost) + 100 * SLACK * (cost.mean(1) - cost.amin(1)).sum().item()


def test_what_is_planted_is_found():
    """Among sources that each have a best partner which another one wants, too."""
    noise, planted = normal(300, 300, seed=0), torch.randperm(300, generator=torch.Generator().manual_seed(1))
    noise[planted, torch.arange(300)] -= 6
    noise[0] = noise[1] - 0.5
    assert torch.equal(auction(noise.float()), torch.as_tensor(linear_sum_assignment(noise.T.numpy())[1]))


def test_many_that_are_alike_are_left_to_the_exact_solver(monkeypatch):
    monkeypatch.setattr(assignment, "EXACT", 8)
    gain = normal(120, 120, seed=0)
    gain[:60], gain[:, 40:] = 0, 0
    assert auction(-gain) is None
    assert total(gain, assign(gain)) == pytest.approx(-least(-gain), rel=1e-12)


def test_equal_bids_go_to_the_first():
    gain = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.5, 0.0]])
    assert auction(-gain).tolist() == auction(-gain.double()).tolist() == [0, 2, 1]


def test_large_tables_are_held_in_the_dtype_of_their_gains(monkeypatch):
    gain, seen = normal(30, 30, seed=0).float(), []

    def spy(cost):
        seen.append(cost.dtype)
        return auction(cost)

    monkeypatch.setattr(assignment, "auction", spy)
    exact = assign_rows(lambda rows: gain[rows], gain.shape)
    assert seen == []
    monkeypatch.setattr(assignment, "EXACT", 8)
    for dtype in (torch.float32, torch.float64):
        near = assign_rows(lambda rows, dtype=dtype: gain[rows].to(dtype), gain.shape, 7)
        assert total(gain, near) == pytest.approx(total(gain, exact), rel=SLACK)
    assert seen == [torch.float32, torch.float64]


@pytest.mark.parametrize("entry", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_is_refused(monkeypatch, entry):
    monkeypatch.setattr(assignment, "EXACT", 8)
    gain = torch.ones(12, 12)
    gain[3] = entry
    with pytest.raises(InputError, match="beyond float32; a model has diverged"):
        assign(gain)
