"""The exact solvers: no element of a group comes closer to the target than the one `project` returns."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cobasin.symmetry.groups import Gram, Orthogonal, Permutation, Rotation2, assignment
from cobasin.symmetry.groups.assignment import assign
from cobasin.symmetry.groups.scale import aligning_scale, best_scale, gain
from group_cases import GROUPS, distance, gram_of, moved, normal, related, sample, sides, size_of

quick = settings(deadline=None, max_examples=15, derandomize=True)
seeds = st.integers(0, 10**6)
every_group = pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
permutations = pytest.mark.parametrize(
    "group", [g for g in GROUPS.values() if isinstance(g, Permutation)], ids=lambda g: g.describe(4)[0]
)
scaled_isometries = pytest.mark.parametrize(
    "group",
    [Orthogonal(scaled=True), Orthogonal(scaled=True, fix_ones=True), Rotation2(scaled=True)],
    ids=["orthogonal", "orthogonal fixing 1", "rotation"],
)


@every_group
@pytest.mark.parametrize("joint", [True, False])
@quick
@given(st.sampled_from([(), (3,), (2, 2)]), seeds)
def test_planted_element(group, joint, batch, seed):
    """A planted element is found to rounding, whatever its scale."""
    n = size_of(group)
    source, planted = sides(batch, n, seed), sample(group, batch, n, seed, spread=1e3)
    target = moved(group, planted, source)
    found = group.project(gram_of(source, target), joint)
    assert group.deviation(found) < 1e-12
    for charge, x in moved(group, found, source).items():
        error = (x - target[charge]).norm(dim=-2) / target[charge].norm(dim=-2).clamp_min(1e-9)
        assert error.max() < (1e-6 if group.scaled else 1e-12)  # rounding moves an optimal scale by its root


@every_group
@quick
@given(seeds)
def test_nothing_comes_closer(group, seed):
    """Neither random elements nor small changes of the best one."""
    n = size_of(group)
    source, target = related(group, (3,), n, seed)
    best = group.project(gram_of(source, target))
    least = distance(group, best, source, target)
    for k in range(20):
        other = sample(group, (3,), n, seed + k + 1)
        assert (distance(group, other, source, target) >= least * (1 - 1e-12)).all()
        near = group.compose(best, small(group, n, seed + k))
        assert (distance(group, near, source, target) >= least * (1 - 1e-12)).all()


def small(group, n, seed):
    """An element next to the identity; of a finite group, an exchange of two entries or a sign."""
    value, noise = group.identity((3,), n), normal(3, n, n, seed=seed)
    if "perm" in value and seed % 2:
        i, j = noise[0, 0].argsort()[:2].tolist()
        value["perm"][:, [i, j]] = value["perm"][:, [j, i]]
    if "matrix" in value:
        centre = torch.eye(n, dtype=torch.float64) - (1 / n if group.fix_ones else 0)
        value["matrix"] = torch.linalg.matrix_exp(0.01 * (centre @ (noise - noise.mT) @ centre))
    if "angle" in value:
        value["angle"] = 0.01 * noise[:, 0, 0]
    if group.scaled:
        value["scale"] = (0.01 * noise[:, 0, : n if "perm" in value else 1]).exp().reshape(value["scale"].shape)
    if getattr(group, "signed", False) and seed % 3 == 0:
        value["scale"][:, 0] *= -1
    return value


@permutations
@quick
@given(st.integers(1, 5), seeds)
def test_permutations_against_all_of_them(group, n, seed):
    """Every permutation, each entry with its best sign and scale."""
    source, target = related(group, (), n, seed, noise=0.5 if group.scaled else 5.0)
    gram = gram_of(source, target)
    direct, inverse = gram.total(1), gram.total(-1)
    norms = [gram.norms(charge)[0][:, None].expand(n, n) for charge in (1, -1)]
    table = direct + inverse
    if group.scaled:
        table = gain(best_scale(direct, inverse, *norms, signed=group.signed), direct, inverse, *norms)
    elif group.signed:
        table = table.abs()
    table = table + gram.total(0)
    best = max(float(table[list(perm), range(n)].sum()) for perm in itertools.permutations(range(n)))
    found = group.project(gram)
    unmoved = [source[0]] if group.scaled else source.values()  # whose norm is not in the gain
    norm = sum(float(x.square().sum()) for x in (*target.values(), *unmoved))
    assert float(distance(group, found, source, target)) <= (norm - 2 * best) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_rotations_against_a_grid(seed):
    angle = torch.linspace(0, math.tau, 3601, dtype=torch.float64)
    x, y = normal(9, 2, seed=seed + 50), normal(9, 2, seed=seed + 90)
    found = Rotation2().project(Gram({1: x.T @ y}))
    rows = torch.stack([torch.stack([angle.cos(), angle.sin()], -1), torch.stack([-angle.sin(), angle.cos()], -1)], -2)
    loss = (x @ rows - y).square().sum((-2, -1))
    assert float((Rotation2().act(found, x) - y).square().sum()) <= float(loss.min()) * (1 + 1e-12)
    assert abs(math.remainder(float(found["angle"] - angle[loss.argmin()]), math.tau)) < 2e-3


def test_a_rotation_is_never_a_reflection():
    """Not even where a reflection would fit perfectly."""
    x = normal(50, 7, 2, seed=0)
    value = Rotation2().project(Gram({1: x.mT @ (x * torch.tensor([1.0, -1.0]))}))
    basis = Rotation2().act(value, torch.eye(2, dtype=torch.float64).expand(50, 2, 2))
    torch.testing.assert_close(torch.linalg.det(basis), torch.ones(50, dtype=torch.float64))
    q = Orthogonal().project(Gram({1: x.mT @ (x * torch.tensor([1.0, -1.0]))}))["matrix"]
    torch.testing.assert_close(torch.linalg.det(q), -torch.ones(50, dtype=torch.float64))  # O(2) takes it


@quick
@given(seeds, st.sampled_from([1.0, 1e2, 1e4]), st.booleans())
def test_best_scale_against_a_scan(seed, gauge, signed):
    """Over scales from 1e-6 to 1e6, refined around the best; ``gauge``: how unequal the two norms are."""
    p, m, norm, inverse_norm = normal(4, 40, seed=seed)
    norm, inverse_norm = norm.square() * gauge + 1e-3, inverse_norm.square() / gauge + 1e-3
    p, m = p * norm.sqrt(), m * inverse_norm.sqrt()
    found = best_scale(p, m, norm, inverse_norm, signed)
    assert signed or (found > 0).all()
    value = gain(found, p, m, norm, inverse_norm)
    for sign in (1, -1) if signed else (1,):
        centre, width = torch.zeros(1, 40), 6.0
        for _ in range(4):  # the whole range, then around the best of it
            powers = centre + width * torch.linspace(-1, 1, 2001, dtype=torch.float64)[:, None]
            scan = gain(sign * 10**powers, p, m, norm, inverse_norm)
            centre, width = powers.gather(0, scan.argmax(0)[None]), width / 1000
            assert (value >= scan.amax(0) - 1e-9 * (scan.amax(0).abs() + 1)).all()


def test_best_scale_is_negative_where_that_is_allowed_and_better():
    one = torch.ones(2, dtype=torch.float64)
    p = torch.tensor([-4.0, 4.0], dtype=torch.float64)
    assert (best_scale(p, p, one, one, signed=True) * p > 0).all()
    assert (best_scale(p, p, one, one, signed=False) > 0).all()


@pytest.mark.parametrize("zero", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("signed", [True, False])
def test_scale_of_zero_tensors_is_one(zero, signed):
    norms = torch.ones(2, 3, dtype=torch.float64)
    norms[list(zero)] = 0
    products = normal(2, 3, seed=0) * norms
    assert torch.equal(best_scale(*products, *norms, signed), torch.ones(3, dtype=torch.float64))
    gram = Gram({1: torch.eye(3), -1: torch.eye(3)}, *[{1: norms[0], -1: norms[1]}] * 2)
    assert torch.equal(aligning_scale(gram, per_column=False), torch.ones((), dtype=torch.float64))
    assert torch.equal(aligning_scale(gram, per_column=True), torch.ones(3, 3, dtype=torch.float64))


def unequal(group, count, spread, likeness, seed):
    """Sources, and targets that are more or less like them; each of the four sides has a size of its own."""
    n = size_of(group, 6)
    sizes = spread ** (2 * torch.rand(4, count, 1, 1, generator=torch.Generator().manual_seed(seed)) - 1).double()
    source = {1: normal(count, 12, n, seed=seed), -1: normal(count, 12, n, seed=seed + 1)}
    target = moved(group, sample(group, (count,), n, seed), source)
    target = {c: likeness * x + (1 - likeness) * normal(*x.shape, seed=seed + 4 + c) for c, x in target.items()}
    return (
        {charge: x * sizes[k] for k, (charge, x) in enumerate(source.items())},
        {charge: x * sizes[2 + k] for k, (charge, x) in enumerate(target.items())},
    )


def scan_jointly(group, source, target):
    """Least of ``F(a) = a²|Q|² + |K|²/a² - 2‖a M_Q + M_K/a‖_*`` over a scan of log a, plus the target's norm."""
    gram = gram_of(source, target)
    norm, inverse_norm = (gram.norms(charge)[0].sum(-1) for charge in (1, -1))
    constant = sum(x.square().sum((-2, -1)) for x in target.values())

    def loss(log_a):
        a = log_a.exp()
        m = a[..., None, None] * gram.total(1) + gram.total(-1) / a[..., None, None]
        return constant + a**2 * norm + inverse_norm / a**2 - 2 * bare(group).support(Gram({0: m}))

    grid = torch.linspace(math.log(1e-5), math.log(1e5), 801, dtype=torch.float64)
    best = loss(grid[:, None].expand(-1, len(norm))).min(0)
    low, high = grid[(best.indices - 1).clamp_min(0)], grid[(best.indices + 1).clamp_max(800)]
    for _ in range(40):
        thirds = low + (high - low) / 3, high - (high - low) / 3
        left = loss(thirds[0]) < loss(thirds[1])
        low, high = torch.where(left, low, thirds[0]), torch.where(left, thirds[1], high)
    return torch.minimum(best.values, loss(low))


def bare(group):
    return Rotation2() if isinstance(group, Rotation2) else Orthogonal(fix_ones=group.fix_ones)


@scaled_isometries
@pytest.mark.parametrize("spread", [1.0, 1e2])
def test_joint_rotation_and_scale_against_a_scan(group, spread):
    """Related tensors reach the global optimum; the paper's order never comes closer, and often less close."""
    source, target = unequal(group, 100, spread, 0.5, seed=3)
    gram = gram_of(source, target)
    joint, paper = (distance(group, group.project(gram, j), source, target) for j in (True, False))
    assert (joint <= scan_jointly(group, source, target) * (1 + 1e-9)).all()
    assert (paper >= joint * (1 - 1e-12)).all()
    assert (paper > joint * (1 + 1e-9)).any()


@scaled_isometries
def test_joint_optimum_of_badly_scaled_and_unlike_tensors(group):
    """There can be several basins; hardly ever is the best one missed."""
    source, target = unequal(group, 300, 1e2, 0.1, seed=3)
    found = distance(group, group.project(gram_of(source, target)), source, target)
    missed = found > scan_jointly(group, source, target) * (1 + 1e-6)
    assert missed.double().mean() < 0.01


@quick
@given(st.integers(1, 6), seeds, st.sampled_from([torch.float32, torch.float64]))
def test_assignment_is_optimal(n, seed, dtype):
    gain_ = normal(2, n, n, seed=seed).to(dtype)
    perm = assign(gain_)
    for table, found in zip(gain_, perm, strict=True):
        assert sorted(found.tolist()) == list(range(n))
        best = max(sum(table[p[i], i].item() for i in range(n)) for p in itertools.permutations(range(n)))
        assert table[found, torch.arange(n)].sum().item() == pytest.approx(best, abs=1e-5)


def test_no_solver_is_called_where_the_best_sources_are_a_permutation(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("called")

    monkeypatch.setattr(assignment, "linear_sum_assignment", refuse)
    planted = torch.stack([torch.randperm(7, generator=torch.Generator().manual_seed(k)) for k in range(4)])
    gain_ = normal(4, 7, 7, seed=0)
    gain_[torch.arange(4)[:, None], planted, torch.arange(7)] += 100
    assert torch.equal(assign(gain_), planted)
    gain_[1, :, 2] = gain_[1, :, 3]  # the control: two targets want one source
    with pytest.raises(AssertionError, match="called"):
        assign(gain_)
