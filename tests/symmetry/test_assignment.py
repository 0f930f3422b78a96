"""The assignment problem."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cobasin.errors import InputError
from cobasin.symmetry.groups.assignment import assign, assign_lazily, assign_rows
from group_cases import normal

quick = settings(deadline=None, max_examples=15, derandomize=True)
seeds = st.integers(0, 10**6)


@quick
@given(st.integers(1, 6), seeds, st.sampled_from([torch.float32, torch.float64]), st.sampled_from([None, 2]))
def test_assignment_is_optimal(n, seed, dtype, step):
    """Also of gains that are asked for some rows at a time."""
    gain_ = normal(2, n, n, seed=seed).to(dtype)
    perm = assign_rows(lambda rows: gain_[:, rows], gain_.shape, step) if step else assign(gain_)
    for table, found in zip(gain_, perm, strict=True):
        assert sorted(found.tolist()) == list(range(n))
        best = max(sum(table[p[i], i].item() for i in range(n)) for p in itertools.permutations(range(n)))
        assert table[found, torch.arange(n)].sum().item() == pytest.approx(best, abs=1e-5)


def test_what_is_beyond_its_dtype_is_refused():
    gain = torch.ones(4, 4)
    gain[0, 1] = torch.nan
    with pytest.raises(InputError, match="beyond float32; a model has diverged"):
        assign(gain)


def test_no_solver_is_called_where_the_best_sources_are_a_permutation(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("called")

    monkeypatch.setattr("scipy.optimize.linear_sum_assignment", refuse)
    planted = torch.stack([torch.randperm(7, generator=torch.Generator().manual_seed(k)) for k in range(4)])
    gain_ = normal(4, 7, 7, seed=0)
    gain_[torch.arange(4)[:, None], planted, torch.arange(7)] += 100
    assert torch.equal(assign(gain_), planted)
    gain_[1, :, 2] = gain_[1, :, 3]  # the control: two targets want one source
    with pytest.raises(AssertionError, match="called"):
        assign(gain_)


@quick
@given(st.integers(1, 5), seeds, st.floats(0, 3))
def test_a_lazy_assignment_is_optimal(n, seed, slack):
    """Whatever the bounds; what no assignment needs is not asked for."""
    gain_ = normal(n, n, seed=seed)
    loose, tight = (slack * normal(n, n, seed=seed + i).abs() for i in (1, 2))
    asked = []

    def better(j, i):
        asked.append((j, i, "bound"))
        return (gain_ + tight)[j, i].item()

    def value(j, i):
        assert (j, i, "bound") in asked
        asked.append((j, i, "gain"))
        return gain_[j, i].item()

    perm = assign_lazily(gain_ + loose + tight, [better, value])
    best = assign(gain_)
    every = torch.arange(n)
    torch.testing.assert_close(gain_[perm, every].sum(), gain_[best, every].sum())
    assert len(asked) == len(set(asked))
    if slack == 0:
        assert len(asked) == 2 * n
