"""The groups: axioms, action, membership. Their solvers are tested in test_solvers.py."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cobasin.symmetry.groups import Diagonal, Orthogonal, Permutation, Rotation2
from group_cases import CHARGES, GROUPS, distance, gram_of, moved, normal, related, sample, sides, size_of

ROUNDING = {"rtol": 1e-12, "atol": 1e-12}
every_group = pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
quick = settings(deadline=None, max_examples=15, derandomize=True)
batches = st.sampled_from([(), (3,), (2, 3)])
seeds = st.integers(0, 10**6)


@every_group
@quick
@given(batches, seeds)
def test_identity_does_nothing(group, batch, seed):
    n = size_of(group)
    identity = group.identity(batch, n)
    for charge, x in sides(batch, n, seed).items():
        torch.testing.assert_close(group.act(identity, x, charge), x, **ROUNDING)
    assert group.deviation(identity) < 1e-12
    first = sample(group, batch, n, seed)
    for composed in (group.compose(first, identity), group.compose(identity, first)):
        assert composed.keys() == first.keys()
        for part, tensor in first.items():
            torch.testing.assert_close(composed[part], tensor, **ROUNDING)


@every_group
def test_the_identity_is_exact(group):
    n = size_of(group)
    x = torch.eye(n, dtype=torch.float64)
    for charge in CHARGES:
        assert torch.equal(group.act(group.identity((), n), x, charge), x)


@pytest.mark.parametrize("name", ["permutation", "signs", "scales"])
def test_what_stays_in_its_place_is_not_computed(name):
    """In the dtype of its file; a gradient arrives all the same."""
    group = GROUPS[name]
    n = size_of(group)
    x, identity = torch.randn(2, 3, n).bfloat16(), group.identity((), n)
    assert group.act(identity, x, 1) is x
    if "scale" in identity:
        scale = identity["scale"].requires_grad_()
        (group.act({**identity, "scale": scale}, x, 1).sum()).backward()
        torch.testing.assert_close(scale.grad, x.double().sum((0, 1)), rtol=1e-5, atol=1e-5)


def test_signs_alone_need_no_wider_dtype():
    group = GROUPS["signs"]
    x, value = torch.randn(2, 3, size_of(group)).bfloat16(), sample(group, (2,), size_of(group), 0)
    for charge in CHARGES:
        moved = group.act(value, x, charge)
        assert moved.dtype == torch.bfloat16
        assert torch.equal(moved.double(), x.double() * value["scale"][:, None, :] ** charge)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_scales_leave_what_they_act_on_as_it_is(dtype):
    group = GROUPS["scales"]
    x, value = torch.randn(2, 3, size_of(group)).to(dtype), sample(group, (2,), size_of(group), 0)
    value["scale"][:, 0] = -1  # a sign, among what is none
    before = x.clone()
    for charge in CHARGES:
        moved = group.act(value, x, charge)
        assert moved.dtype == torch.promote_types(dtype, torch.float32) or not charge
        expected = x.double() * value["scale"][:, None, :] ** charge
        torch.testing.assert_close(moved.double(), expected, rtol=1e-6, atol=1e-6)
        assert torch.equal(x, before)


def test_without_signs_and_scales_nothing_is_left():
    """Of a diagonal group, that is: the trivial one takes part in a match like any other."""
    trivial = Diagonal()
    source, target = related(GROUPS["scales"], (3,), 5, seed=0)
    assert trivial.identity((3,), 5) == trivial.sample((3,), 5, torch.Generator()) == {}
    assert trivial.project(gram_of(source, target)) == trivial.inverse({}) == trivial.compose({}, {}) == {}
    norm = sum(x.square().sum((-2, -1)) for side in (source, target) for x in side.values())
    torch.testing.assert_close(
        trivial.support(gram_of(source, target)), (norm - distance(trivial, {}, source, target)) / 2
    )
    assert trivial.deviation({}) == 0
    assert trivial.describe(5) == ("identity", 0)


def test_a_diagonal_group_sees_rounding_only_with_scales():
    assert [GROUPS[name].continuous for name in ("signs", "positive scales", "scales")] == [False, True, True]


@every_group
@quick
@given(batches, seeds)
def test_inverse(group, batch, seed):
    n = size_of(group)
    value = sample(group, batch, n, seed)
    inverse = group.inverse(value)
    assert group.deviation(inverse) < 1e-12
    for charge, x in sides(batch, n, seed).items():
        torch.testing.assert_close(group.act(inverse, group.act(value, x, charge), charge), x, **ROUNDING)
        torch.testing.assert_close(group.act(value, group.act(inverse, x, charge), charge), x, **ROUNDING)
        acts = charge or not isinstance(group, Diagonal)
        acts = acts and any(not part.equal(group.identity(batch, n)[name]) for name, part in value.items())
        assert torch.allclose(group.act(value, x, charge), x, atol=1e-3) != acts  # the control: it did something


@every_group
@quick
@given(batches, seeds)
def test_composition(group, batch, seed):
    """It acts like first the one and then the other, and is associative."""
    n = size_of(group)
    f, g, h = (sample(group, batch, n, seed + k) for k in range(3))
    source = sides(batch, n, seed)
    both, in_turn = moved(group, group.compose(f, g), source), moved(group, g, moved(group, f, source))
    left, right = group.compose(group.compose(f, g), h), group.compose(f, group.compose(g, h))
    for charge in CHARGES:
        torch.testing.assert_close(both[charge], in_turn[charge], **ROUNDING)
    for part in left:
        torch.testing.assert_close(left[part], right[part], **ROUNDING)


@every_group
@quick
@given(batches, seeds)
def test_charges(group, batch, seed):
    """Products of opposite charges are invariant, and charge 0 sees neither scale nor sign."""
    n = size_of(group)
    value, source = sample(group, batch, n, seed), sides(batch, n, seed)
    acted = moved(group, value, source)
    torch.testing.assert_close(acted[1] @ acted[-1].mT, source[1] @ source[-1].mT, **ROUNDING)
    bare = {part: tensor for part, tensor in value.items() if part != "scale"}
    for charge in CHARGES:
        torch.testing.assert_close(group.act(bare, source[charge], charge), group.act(value, source[charge], 0))
    if group.charged:
        assert not torch.allclose(acted[1] @ acted[1].mT, source[1] @ source[1].mT, atol=1e-3) or not group.scaled
        assert torch.allclose(acted[1], group.act(value, source[1], 0), atol=1e-3) == value["scale"].eq(1).all()


@pytest.mark.parametrize("batch", [(), (4,)])
def test_entries_of_a_permutation(batch):
    """Entry i of the result is ``scale[i] * x[perm[i]]``."""
    group = GROUPS["signed and scaled"]
    value, x = sample(group, batch, 6, 0), normal(*batch, 2, 6, seed=1)
    result = group.act(value, x)
    for b in range(4) if batch else [...]:
        for i in range(6):
            assert torch.equal(result[b][:, i], value["scale"][b][i] * x[b][:, value["perm"][b][i]])


@every_group
def test_acts_in_the_dtype_of_the_tensor(group):
    n = size_of(group)
    value, x = sample(group, (3,), n, 0), sides((3,), n, 0)[1]
    single = group.act(value, x.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), group.act(value, x), rtol=1e-5, atol=1e-5)


@every_group
@quick
@given(batches, seeds)
def test_samples_are_elements(group, batch, seed):
    value = sample(group, batch, size_of(group), seed)
    assert group.deviation(value) < 1e-12
    if group.scaled:
        assert ((value["scale"].abs() >= 0.5) & (value["scale"].abs() <= 2)).all()


@every_group
def test_samples_are_of_every_part_of_the_group(group):
    value = sample(group, (200,), size_of(group), 0)
    if isinstance(group, Permutation):
        assert len(value["perm"].unique(dim=0)) > 50
    elif isinstance(group, Rotation2):
        assert value["angle"].max() - value["angle"].min() > math.tau * 0.9
    elif isinstance(group, Orthogonal):
        reflections = (torch.linalg.det(value["matrix"]) < 0).double().mean()
        assert 0.3 < reflections < 0.7
    if group.scaled:
        assert value["scale"].abs().max() > 1.9
        assert value["scale"].abs().min() < 0.55
    negative = (value["scale"] < 0).double().mean() if "scale" in value else 0
    assert (0.4 < negative < 0.6) if getattr(group, "signed", False) else negative == 0


def broken_values():
    """Values that are no elements, each with its name."""
    for name, group in GROUPS.items():
        value = sample(group, (2,), size_of(group), 0)

        def change(part, to, value=value):
            tensor = value[part].clone()
            tensor.view(-1)[-1] = to
            return value | {part: tensor}

        if "perm" in value:
            yield f"{name}: an entry twice", group, change("perm", value["perm"][-1, 0])
            yield f"{name}: an entry too far", group, change("perm", 5)
        if "matrix" in value:
            yield f"{name}: an entry moved", group, change("matrix", value["matrix"][-1, -1, -1] + 0.1)
            yield f"{name}: not a number", group, change("matrix", math.nan)
        if "angle" in value:
            yield f"{name}: no angle", group, change("angle", math.inf)
        if "scale" in value:
            yield f"{name}: scale 0", group, change("scale", 0.0)
            yield f"{name}: scale not a number", group, change("scale", math.nan)
            if not getattr(group, "signed", False):
                yield f"{name}: scale negative", group, change("scale", -1.0)
        if getattr(group, "fix_ones", False):
            yield f"{name}: moves 1", group, value | {"matrix": sample(Orthogonal(), (2,), 5, 0)["matrix"]}
    yield "signed: a scale of two", GROUPS["signed"], {"perm": torch.arange(2), "scale": torch.tensor([1.0, 2.0])}
    yield "signs: a scale of two", GROUPS["signs"], {"scale": torch.tensor([1.0, 2.0])}


BROKEN = {name: (group, value) for name, group, value in broken_values()}


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN)
def test_what_is_no_element_deviates(case):
    group, value = case
    assert not group.deviation(value) < 0.05  # large, infinite or NaN


@every_group
@quick
@given(batches, seeds)
def test_refining_never_hurts(group, batch, seed):
    n = size_of(group)
    source, target = related(group, batch, n, seed)
    value = sample(group, batch, n, seed + 1)
    refined = group.refine(value, gram_of(source, target))
    before, after = distance(group, value, source, target), distance(group, refined, source, target)
    assert (after <= before * (1 + 1e-12)).all()
    assert group.deviation(refined) < 1e-12


@every_group
@quick
@given(batches, seeds)
def test_support(group, batch, seed):
    """The value of the best element: half of what it takes off the squared distance; of a scaled isometry, a bound."""
    n = size_of(group)
    source, target = related(group, batch, n, seed)
    gram = gram_of(source, target)
    best = distance(group, group.project(gram), source, target)
    if isinstance(group, Orthogonal | Rotation2):
        assert (group.least_distance(gram) <= best + 1e-9).all()
        assert (best <= group.distance(gram) + 1e-9).all()
    norms = [sum(x.square().sum((-2, -1)) for x in side.values()) for side in (source, target)]
    if not group.scaled:
        torch.testing.assert_close(group.support(gram), (norms[0] + norms[1] - best) / 2)
        return
    constant = norms[1] + source[0].square().sum((-2, -1))  # the scale moves what is charged, and its norm with it
    if not isinstance(group, Orthogonal | Rotation2):
        torch.testing.assert_close(group.support(gram), (constant - best) / 2)
        return
    assert (group.support(gram) <= (constant - best) / 2 + 1e-9).all()
    exact = moved(group, sample(group, batch, n, seed), source)
    norm = sum(x.square().sum((-2, -1)) for x in exact.values())
    expected = (norm + source[0].square().sum((-2, -1))) / 2
    torch.testing.assert_close(group.support(gram_of(source, exact)), expected)  # and exact where the target is


@pytest.mark.parametrize(
    ("name", "n", "dimension"),
    [
        ("permutation", 5, 0),
        ("signed", 5, 0),
        ("scaled", 5, 5),
        ("signed and scaled", 5, 5),
        ("orthogonal", 5, 10),
        ("orthogonal, scaled", 5, 11),
        ("orthogonal fixing 1", 5, 6),
        ("orthogonal fixing 1, scaled", 5, 7),
        ("signs", 5, 0),
        ("positive scales", 5, 5),
        ("scales", 5, 5),
        ("rotation", 2, 1),
        ("rotation, scaled", 2, 2),
    ],
)
def test_dimension(name, n, dimension):
    described, found = GROUPS[name].describe(n)
    assert found == dimension
    assert ("scale" in described) == GROUPS[name].scaled
