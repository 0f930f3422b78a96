"""The best scale of a pair, against a scan over all scales."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cobasin.symmetry.groups import Gram
from cobasin.symmetry.groups.scale import aligning_scale, best_scale, gain
from group_cases import normal

SCALE_PROBLEMS = {  # P and M in units of the balancing scale
    "ordinary": lambda x: 3 * x,
    "huge and tiny": lambda x: x * 10 ** (5 * x.roll(1)),
    "next to the triple root": lambda x: x[0].sign() * (2 + x * 10 ** (3 * x.roll(1) - 4)),
    "equal": lambda x: x[:1].expand(2, -1) * 3,
}


@pytest.mark.parametrize("problem", SCALE_PROBLEMS.values(), ids=SCALE_PROBLEMS)
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(deadline=None, max_examples=4, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from([1.0, 1e3]))
def test_best_scale_against_a_scan(problem, signed, dtype, seed, gauge):
    """Over all scales, refined around the best; ``gauge``: how unequal the two norms are."""
    norms = (gauge ** normal(2, 100, seed=seed)).to(dtype)
    units = balanced_units(*norms)
    p, m = problem(normal(2, 100, seed=seed + 1)).to(dtype) * units[:2]
    found = best_scale(p, m, *norms, signed)
    assert found.dtype == dtype
    assert signed or (found > 0).all()
    # judged in these units, in double precision
    units = balanced_units(*norms.double())
    scaled = (p / units[0], m / units[1], *torch.ones(2, 100, dtype=torch.float64))
    t = found / units[2]
    value, rounding = gain(t, *scaled), 1e-12 if dtype == torch.float64 else 1e-6
    allowed = rounding * (t.square() + t**-2 + (t * scaled[0]).abs() + (scaled[1] / t).abs())
    for sign in (1, -1) if signed else (1,):
        centre, width = torch.zeros(1, 100, dtype=torch.float64), 30.0
        for _ in range(5):  # the whole range, then around the best of it
            powers = centre + width * torch.linspace(-1, 1, 1001, dtype=torch.float64)[:, None]
            scan = gain(sign * 10**powers, *scaled)
            centre, width = powers.gather(0, scan.argmax(0)[None]), width / 200
            assert (value >= scan.amax(0) - allowed).all()


def balanced_units(norm, inverse_norm):
    """Of p, m and the scale, in which both norms are 1."""
    size, inverse_size = norm.sqrt(), inverse_norm.sqrt()
    mean = (size * inverse_size).sqrt()
    return torch.stack([size * mean, inverse_size * mean, (inverse_size / size).sqrt()])


def test_best_scale_is_negative_where_that_is_allowed_and_better():
    one = torch.ones(2, dtype=torch.float64)
    p = torch.tensor([-4.0, 4.0], dtype=torch.float64)
    assert (best_scale(p, p, one, one, signed=True) * p > 0).all()
    assert (best_scale(p, p, one, one, signed=False) > 0).all()


@pytest.mark.parametrize("zero", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("signed", [True, False])
def test_scale_of_zero_tensors(zero, signed):
    """What the other side says, within bounds: where it does not agree it asks for nothing."""
    norms = torch.ones(2, 6, dtype=torch.float64)
    norms[list(zero)] = 0
    products = torch.tensor([3.0, 0.25, -2.0, 1e-5, 1e5, 0.0], dtype=torch.float64) * norms
    expected = torch.tensor([3.0, 0.25, -2.0 if signed else 1e-4, 1e-4, 1e4, 1e-4], dtype=torch.float64)
    found = best_scale(*products, *norms, signed)
    both = torch.ones(6, dtype=torch.float64)
    torch.testing.assert_close(found, both if len(zero) == 2 else expected if zero == (1,) else 1 / expected)
    gram = Gram({1: torch.eye(6), -1: torch.eye(6)}, *[{1: norms[0], -1: norms[1]}] * 2)
    assert torch.equal(aligning_scale(gram), torch.ones((), dtype=torch.float64))
