"""RegMean against least squares on the inputs themselves."""

from dataclasses import replace

import pytest
import torch

from cobasin.errors import InputError
from cobasin.fusion.average import linear
from cobasin.fusion.registry import find
from cobasin.fusion.regmean import regmean
from cobasin.statistics.grams import InputGram

OUTPUTS, INPUTS, TOKENS = 4, 6, (50, 30, 80)
WEIGHT = (0.5, 2.0, 1.0)


def random(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def weights():
    return [random(OUTPUTS, INPUTS, seed=i) for i in range(3)]


def inputs(tokens=TOKENS):
    """Correlated, of different sizes, with a mean: [tokens, inputs] for each model."""
    return [random(n, INPUTS, seed=10 + i) @ random(INPUTS, INPUTS, seed=20 + i) + 0.5 for i, n in enumerate(tokens)]


def grams(data, axis=1):
    extended = [torch.cat([x, torch.ones(len(x), 1)], 1) for x in data]
    return [InputGram(x.mT @ x / len(x), axis) for x in extended]


def least_squares(maps, data, weight, alpha):
    """The minimiser of ``Σ w_i / n_i (α |X_i (W - W_i)ᵀ|² + (1 - α) Σ_jk X_i[k, j]² |(W - W_i)[:, j]|²)``."""
    rows, targets = [], []
    for one, x, w in zip(maps, data, weight, strict=True):
        own = x * (w * alpha / len(x)) ** 0.5
        ridge = torch.diag((w * (1 - alpha) / len(x) * (x * x).sum(0)).sqrt())
        rows += [own, ridge]
        targets += [own @ one.mT, ridge @ one.mT]
    return torch.linalg.lstsq(torch.cat(rows), torch.cat(targets), driver="gelsd").solution.mT


def close(x, y, tolerance=1e-8):
    return float((x - y).abs().max()) < tolerance


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.9, 1.0])
@pytest.mark.parametrize("weight", [(1.0, 1.0, 1.0), WEIGHT])
def test_least_squares(alpha, weight):
    maps, data = weights(), inputs()
    result = regmean(maps, grams(data), weight=weight, reduce_nondiag=alpha)
    assert close(result, least_squares(maps, data, weight, alpha), 1e-7)
    assert not close(result, linear(maps, weight=weight), 0.1)
    assert not close(result, least_squares(maps, data, weight, 0.5), 0.01)


def test_the_formula():
    """``W = Σ w_i W_i G_i (Σ w_i G_i)⁻¹``, one output at a time."""
    maps, data = weights(), inputs()
    reduced = []
    for x in data:
        gram = torch.stack([torch.outer(row, row) for row in x]).mean(0)
        reduced.append(0.9 * gram + 0.1 * gram.diagonal().diag())
    whole = sum(w * g for w, g in zip(WEIGHT, reduced, strict=True))
    result = regmean(maps, grams(data), weight=WEIGHT)
    for k in range(OUTPUTS):
        right = sum(w * g @ one[k] for w, g, one in zip(WEIGHT, reduced, maps, strict=True))
        assert close(result[k], torch.linalg.solve(whole, right))


def test_inputs_along_the_first_axis():
    """GPT-2's Conv1D keeps its weight as [in, out]."""
    maps, data = weights(), inputs()
    turned = regmean([one.mT for one in maps], grams(data, axis=0), weight=WEIGHT)
    assert close(turned.mT, regmean(maps, grams(data), weight=WEIGHT))


def test_equal_grams_give_the_weighted_average():
    maps, (x, y, _) = weights(), inputs()
    average = linear(maps, weight=WEIGHT)
    assert close(regmean(maps, grams([x, x, x]), weight=WEIGHT), average)
    assert not close(regmean(maps, grams([x, x, y]), weight=WEIGHT), average, 0.1)


@pytest.mark.parametrize("alpha", [0.0, 0.9, 1.0])
def test_inputs_that_never_fire_keep_the_average(alpha):
    maps, data = weights(), inputs()
    for x in data:
        x[:, 2] = 0.0
    average = linear(maps, weight=WEIGHT)
    result = regmean(maps, grams(data), weight=WEIGHT, reduce_nondiag=alpha)
    live = [j for j in range(INPUTS) if j != 2]
    assert close(result[:, 2], average[:, 2])
    assert close(
        result[:, live], least_squares([one[:, live] for one in maps], [x[:, live] for x in data], WEIGHT, alpha)
    )
    assert not close(result[:, live], average[:, live], 0.1)


@pytest.mark.parametrize("alpha", [0.0, 0.9, 1.0])
def test_inputs_that_fire_for_one_model_are_its_own(alpha):
    maps, data = weights(), inputs()
    data[0][:, 2] = data[2][:, 2] = 0.0
    data[1] = data[1] * torch.eye(INPUTS)[2].double()
    result = regmean(maps, grams(data), weight=WEIGHT, reduce_nondiag=alpha)
    assert close(result[:, 2], maps[1][:, 2])


def test_fewer_tokens_than_inputs():
    """With ``reduce_nondiag`` 1 the sum is singular: the fit is still the best, and nothing is larger than need be."""
    maps, data = weights(), inputs((2, 1, 1))
    result = regmean(maps, grams(data), weight=WEIGHT, reduce_nondiag=1.0)
    best = least_squares(maps, data, WEIGHT, 1.0)

    def loss(one):
        return sum(
            w / len(x) * float((x @ (one - own).mT).square().sum())
            for own, x, w in zip(maps, data, WEIGHT, strict=True)
        )

    average = linear(maps, weight=WEIGHT)
    assert loss(result) == pytest.approx(loss(best), abs=1e-6)
    assert loss(average) > loss(best) + 1
    # in the inputs' own units, the least-norm solution is the smallest correction
    sizes = torch.stack([w * (x * x).mean(0) for x, w in zip(data, WEIGHT, strict=True)]).sum(0).sqrt()
    corrections = [(one - average) * sizes for one in maps]
    smallest = least_squares(corrections, [x / sizes for x in data], WEIGHT, 1.0) / sizes
    assert close(result, average + smallest, 1e-4)
    assert not close(result, best, 0.1)


def test_inputs_that_are_copies_share_the_correction():
    """Two equal inputs: only their sum matters, and the difference of their weights stays the average's."""
    maps, data = weights(), inputs()
    for x in data:
        x[:, 3] = x[:, 1]
    result = regmean(maps, grams(data), weight=WEIGHT, reduce_nondiag=1.0)
    average = linear(maps, weight=WEIGHT)
    assert close(result[:, 3] - result[:, 1], average[:, 3] - average[:, 1], 1e-5)
    assert not close(result[:, 3] + result[:, 1], average[:, 3] + average[:, 1], 0.1)


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_the_scale_of_an_input_is_no_condition_number(scale):
    """Outlier activations a hundred million times the others: as exact as without."""
    maps, data = weights(), inputs()
    expected = regmean(maps, grams(data), weight=WEIGHT)
    diagonal = torch.ones(INPUTS).double()
    diagonal[1] = scale
    scaled = regmean([one / diagonal for one in maps], grams([x * diagonal for x in data]), weight=WEIGHT)
    assert close(scaled * diagonal, expected)


def test_float32_weights_are_solved_in_float64():
    maps, data = weights(), inputs()
    result = regmean([one.float() for one in maps], grams(data), weight=WEIGHT)
    assert result.dtype == torch.float32
    exact = regmean([one.float().double() for one in maps], grams(data), weight=WEIGHT)
    assert torch.equal(result, exact.float())


def test_grams_that_are_none_are_refused():
    maps, broken = weights(), grams(inputs())
    broken[0] = replace(broken[0], matrix=broken[0].matrix.clone())
    broken[0].matrix[0, 1] = broken[0].matrix[1, 0] = 1e4
    with pytest.raises(InputError, match="not positive semi-definite"):
        regmean(maps, broken, weight=WEIGHT)


def test_regmean_plusplus_is_the_same_function_of_other_grams():
    plain, other = find("regmean"), find("regmean++")
    assert plain.function is other.function
    assert (plain.statistics, other.statistics) == ("grams", "grams_in_turn")
