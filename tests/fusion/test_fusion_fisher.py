"""Fisher merging against the definition, entry by entry."""

import pytest
import torch

from cobasin.fusion.average import linear
from cobasin.fusion.fisher import FLOOR, fisher

WEIGHT = (0.5, 2.0, 1.0)


def models(shape=(4, 3), count=3):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(count)]
    return tensors, [torch.randn(shape, dtype=torch.float64, generator=generator) ** 2 for _ in range(count)]


def close(x, y, tolerance=1e-10):
    return float((x - y).abs().max()) < tolerance


def test_definition():
    tensors, fishers = models()
    result = fisher(tensors, fishers, weight=WEIGHT)
    for i in range(4):
        for j in range(3):
            shares = [w * float(f[i, j]) for w, f in zip(WEIGHT, fishers, strict=True)]
            expected = sum(s * float(x[i, j]) for s, x in zip(shares, tensors, strict=True)) / sum(shares)
            assert float(result[i, j]) == pytest.approx(expected, abs=1e-11)
    assert not close(result, linear(tensors, weight=WEIGHT), 0.1)


def test_equal_fishers_give_the_weighted_average():
    tensors, (one, *_) = models()
    average = linear(tensors, weight=WEIGHT)
    assert close(fisher(tensors, [one] * 3, weight=WEIGHT), average)
    assert not close(fisher(tensors, [one, 2 * one, one], weight=WEIGHT), average, 0.1)


def test_a_parameter_that_no_model_uses_is_averaged():
    tensors, fishers = models()
    for i, one in enumerate(fishers):
        one[0] = 0.0
        one[1] = 1e-30 * (i + 1)
    average, result = linear(tensors, weight=WEIGHT), fisher(tensors, fishers, weight=WEIGHT)
    assert close(result[:2], average[:2])
    assert not close(result[2:], average[2:], 0.1)
    assert close(fisher(tensors, [torch.zeros(4, 3)] * 3, weight=WEIGHT), average)


def test_a_parameter_that_one_model_uses_is_its_own():
    tensors, fishers = models()
    fishers[0][0], fishers[2][0] = 0.0, 0.0
    assert close(fisher(tensors, fishers, weight=WEIGHT)[0], tensors[1][0])


@pytest.mark.parametrize("factor", [1e-12, 1e-30, 1e12])
def test_the_common_scale_has_no_effect(factor):
    tensors, fishers = models()
    fishers[0][0] = 0.0
    expected = fisher(tensors, fishers, weight=WEIGHT)
    assert close(fisher(tensors, [factor * one for one in fishers], weight=WEIGHT), expected)
    single = [x.float() for x in tensors], [(factor * one).float() for one in fishers]
    assert close(fisher(*single, weight=WEIGHT), expected, 1e-5)
    own = [factor * fishers[0], *fishers[1:]]
    assert not close(fisher(tensors, own, weight=WEIGHT), expected, 0.1)


def test_weights_balance_the_scales_of_models():
    tensors, fishers = models()
    scaled = [100 * fishers[0], *fishers[1:]]
    balanced = fisher(tensors, scaled, weight=(0.01, 1.0, 1.0))
    assert close(balanced, fisher(tensors, fishers, weight=(1.0, 1.0, 1.0)))
    assert not close(balanced, fisher(tensors, scaled, weight=(1.0, 1.0, 1.0)), 0.1)


def test_the_floor_is_that_of_rounding():
    """Gradients a millionth of the largest still count."""
    tensors, fishers = [torch.zeros(2), torch.ones(2)], [torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1e-12])]
    assert float(fisher(tensors, fishers, weight=(1.0, 1.0))[1]) == pytest.approx(1.0, abs=0.02)
    assert 1e-14 < FLOOR < 2e-14


def test_a_model_of_weight_zero_is_left_out():
    tensors, fishers = models()
    without = fisher(tensors[:2], fishers[:2], weight=(1.0, 1.0))
    assert close(fisher(tensors, fishers, weight=(1.0, 1.0, 0.0)), without)
    assert not close(fisher(tensors, fishers, weight=(1.0, 1.0, 1.0)), without, 0.1)
