"""DARE and DELLA: which entries are lost, how often, and what makes up for them."""

import itertools
import math

import pytest
import torch

from cobasin.errors import InputError
from cobasin.fusion import dropping
from cobasin.fusion.dropping import dare_linear, dare_ties, della, della_linear
from cobasin.fusion.registry import find
from cobasin.fusion.task_vectors import task_arithmetic
from cobasin.fusion.trimming import ties
from task_vector_cases import close, models, seeded


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


def changes(function, base, others, draws, **given):
    """How far each of as many copies of a matrix is moved: what a row loses is drawn for it alone."""
    base, *others = (one.repeat(draws, 1) for one in (base, *others))
    return (function(base, others, seeded(), **given) - base).unflatten(0, (draws, -1))


@pytest.mark.parametrize("rescale", [True, False])
def test_della_drops_by_rank_in_a_row(rescale):
    """Of five entries a row, the smallest is kept with 0.2, the largest with 0.8."""
    base, (other, *_) = models((6, 5))
    given = {"weight": (1.0,), "density": (0.5,), "epsilon": (0.3,), "rescale": rescale}
    found = changes(della_linear, base, [other], 4000, **given)
    delta = other - base
    ranks = delta.abs().argsort(dim=1).argsort(dim=1)
    kept = (found != 0).double().mean(0)
    chance = 0.2 + 0.15 * ranks
    assert float((kept - chance).abs().max()) < 0.04
    assert float((kept - 0.5).abs().max()) > 0.25
    whole = torch.where(found != 0, delta / chance if rescale else delta, 0.0)
    assert close(found, whole, 1e-6)  # probabilities are float32
    assert not close(found, torch.where(found != 0, delta if rescale else delta / chance, 0.0), 0.1)


@pytest.mark.parametrize(("shape", "rows"), [((), 1), ((4,), 1), ((3, 4), 3), ((3, 2, 2), 3), ((4, 1), 4)])
def test_della_ranks_within_the_first_axis(shape, rows):
    """Where rows have one size the largest are kept always, and rows of one entry in ``density`` of all cases."""
    base = torch.zeros(shape, dtype=torch.float64)
    other = torch.arange(1.0, base.numel() + 1, dtype=torch.float64).view(shape)
    given = {"weight": (1.0,), "density": (0.6,), "epsilon": (0.4,), "rescale": False}
    found = torch.stack([della_linear(base, [other], seeded(i), **given) for i in range(1000)])
    kept = (found != 0).double().mean(0).view(rows, -1)
    assert kept.shape[1] > 1 or float((kept - 0.6).abs().max()) < 0.07
    assert kept.shape[1] == 1 or float(kept[:, -1].min()) == 1
    assert kept.shape[1] == 1 or float((kept[:, 0] - 0.2).abs().max()) < 0.07


def test_della_keeps_the_expectation():
    base, others = models((3, 3))
    given = {"weight": (0.5, 0.8, 0.7), "density": (0.5, 0.6, 0.7), "epsilon": (0.2, 0.1, 0.3)}
    expected = task_arithmetic(base, others, weight=given["weight"]) - base
    assert close(changes(della_linear, base, others, 4000, **given).mean(0), expected, 0.15)
    assert not close(changes(della_linear, base, others, 4000, **given, rescale=False).mean(0), expected, 0.3)


def test_della_elects_signs_among_what_is_left():
    base = torch.zeros(2000)
    others = [torch.full((2000,), 3.0), torch.full((2000,), -1.0)]
    given = {"weight": (1.0, 1.0), "density": (0.5, 0.5), "epsilon": (0.3, 0.3), "rescale": False}
    assert set(della(base, others, seeded(), normalize=False, **given).tolist()) == {3.0, -1.0, 0.0}
    assert set(della_linear(base, others, seeded(), **given).tolist()) == {3.0, 2.0, -1.0, 0.0}


def test_della_without_drops():
    base, others = models()
    given, whole = {"weight": (0.5, 0.3, 0.7), "lambda_": 0.7}, (1.0, 1.0, 1.0)
    drop = {"density": whole, "epsilon": (0.15,) * 3}
    assert close(della_linear(base, others, seeded(), **drop, **given), task_arithmetic(base, others, **given))
    agreed = ties(base, others, density=whole, **given)
    assert close(della(base, others, seeded(), **drop, **given), agreed)


def test_della_takes_rows_in_parts(monkeypatch):
    """However many rows are ranked at a time."""
    base, others = models((40, 30))
    given = {"weight": (1.0,) * 3, "density": (0.5,) * 3, "epsilon": (0.2,) * 3}
    expected = della(base, others, seeded(), **given)
    for size in (7, 95):
        monkeypatch.setattr(dropping, "SLICE", size)
        assert torch.equal(della(base, others, seeded(), **given), expected)


def test_della_of_convolutions_that_lie_otherwise_in_memory():
    base, others = models((3, 4, 5))
    given = {"weight": (1.0,) * 3, "density": (0.5,) * 3, "epsilon": (0.2,) * 3}
    turned = [one.mT.contiguous().mT for one in (base, *others)]
    with pytest.raises(RuntimeError, match="view"):
        (turned[1] - turned[0]).view(3, -1)  # control
    assert close(della(turned[0], turned[1:], seeded(), **given), della(base, others, seeded(), **given))


@pytest.mark.parametrize("name", ["della", "della_linear"])
def test_della_refuses_what_is_no_probability(name):
    check = find(name).check
    assert check is not None
    for density, epsilon in ((0.9, 0.2), (0.1, 0.1), (0.1, 0.2)):
        with pytest.raises(InputError, match="expected more than 0 and at most 1"):
            check({"density": (0.5, density), "epsilon": (0.2, epsilon)})
    for density, epsilon in ((0.9, 0.1), (0.66, 0.34), (0.1, 0.09), (1.0, 0.3), (0.2, 0.0)):
        check({"density": (0.5, density), "epsilon": (0.2, epsilon)})
