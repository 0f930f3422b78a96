"""What every merge method does, whoever wrote it: one table of properties over all that are registered."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cobasin.errors import InputError
from cobasin.fusion.registry import REQUIRED, find, methods
from cobasin.statistics.grams import InputGram

ROWS, COLUMNS = 6, 5
EACH = {
    "weight": (0.5, 0.3, 0.7),
    "density": (0.5, 0.8, 0.3),
    "gamma": (0.1, 0.2, 0.05),
    "epsilon": (0.4, 0.1, 0.2),
}
SINGLE = {"t": 0.3}
DISTANCES = {"nearswap": SINGLE, "ram": {"epsilon": 1e-5}, "ramplus_tl": {"epsilon": 1e-5}}
"""Parameters that grow with the tensors."""

ALL = sorted(methods())
STEADY = [name for name in ALL if "generator" not in methods()[name].inputs]
UNORDERED = [name for name in STEADY if methods()[name].most != 1]
MEANS = [name for name in ALL if methods()[name].most != 1]
"""Methods that give back what all models agree on; SLERP, of the base and one other, goes only a part of the way."""


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def gram(seed: int, inputs: int = COLUMNS) -> InputGram:
    x = torch.cat([random(40, inputs, seed=seed) @ random(inputs, inputs, seed=seed + 1), torch.ones(40, 1)], 1)
    return InputGram(x.mT @ x / 40, 1)


def given(name: str) -> dict[str, Any]:
    """Random inputs of a method, three models or as many as it takes."""
    count = methods()[name].most or 3
    return {
        "tensors": [random(ROWS, COLUMNS, seed=i) for i in range(count)],
        "base": random(ROWS, COLUMNS, seed=10),
        "fishers": [random(ROWS, COLUMNS, seed=20 + i).square() for i in range(count)],
        "grams": [gram(30 + i) for i in range(count)],
        "generator": np.random.default_rng(0),
        "dtype": None,
    }


def parameters(name: str, **changed: Any) -> dict[str, Any]:
    """Parameters that differ between models where they can; ``changed`` where the method has them."""
    count, found = methods()[name].most or 3, {}
    for key, parameter in methods()[name].parameters.items():
        if key in changed:
            found[key] = changed[key]
        elif parameter.each:
            found[key] = EACH.get(key, (parameter.default,) * 3)[:count]
        else:
            found[key] = SINGLE[key] if parameter.default is REQUIRED else parameter.default
    return found


def fused(name: str, inputs: dict[str, Any], **changed: Any) -> torch.Tensor:
    return find(name).fuse(inputs, parameters(name, **changed))


def each(inputs: dict[str, Any], change) -> dict[str, Any]:
    return inputs | {"tensors": [change(x) for x in inputs["tensors"]], "base": change(inputs["base"])}


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


@pytest.mark.parametrize("name", ALL)
def test_described(name):
    method = find(name)
    assert method.summary
    assert method.reference
    assert method.fewest >= 1
    assert "tensors" in method.inputs


@pytest.mark.parametrize("name", ALL)
def test_equal_models_and_base_give_that_model(name):
    x = random(ROWS, COLUMNS, seed=5)
    inputs = each(given(name), lambda _: x.clone())
    assert distance(fused(name, inputs), x) < 1e-12
    assert distance(fused(name, given(name)), x) > 0.1


@pytest.mark.parametrize("name", MEANS)
def test_equal_models_give_that_model_whatever_the_base(name):
    x, inputs = random(ROWS, COLUMNS, seed=5), given(name)
    inputs |= {"tensors": [x.clone() for _ in inputs["tensors"]]}
    whole = {"normalize": True, "density": (1.0, 1.0, 1.0)}
    assert distance(fused(name, inputs, **whole), x) < 1e-12
    inputs["tensors"][0][0, 0] += 1
    assert distance(fused(name, inputs, **whole), x) > 1e-3


@pytest.mark.parametrize("name", UNORDERED)
def test_the_order_of_the_models_does_not_matter(name):
    inputs, order = given(name), (1, 0) if methods()[name].most == 2 else (2, 0, 1)
    moved = {key: [inputs[key][i] for i in order] for key in ("tensors", "fishers", "grams")}
    values = parameters(name)
    turned = {
        key: tuple(value[i] for i in order) if methods()[name].parameters[key].each else value
        for key, value in values.items()
    }
    result = find(name).fuse(inputs, values)
    assert distance(find(name).fuse(inputs | moved, turned), result) < 1e-12
    if values != turned:  # a model with the weights of another
        assert distance(find(name).fuse(inputs | moved, values), result) > 1e-3


@pytest.mark.parametrize("name", STEADY)
def test_permuted_rows_give_the_permuted_result(name):
    """Neurons have no order: what the method says must not depend on it."""
    inputs, order = given(name), torch.tensor([3, 0, 5, 1, 4, 2])
    moved = each(inputs, lambda x: x[order]) | {"fishers": [one[order] for one in inputs["fishers"]]}
    result = fused(name, inputs)
    assert distance(fused(name, moved), result[order]) < 1e-12
    assert distance(result[order], result) > 0.1


@pytest.mark.parametrize("name", [name for name in ALL if name != "arcee_fusion"])  # of which entries are exponents
@pytest.mark.parametrize("factor", [-3.0, 1e-6, 1e6])
def test_scaled_models_give_the_scaled_result(name, factor):
    expected = factor * fused(name, given(name))
    distances = {key: abs(factor) * value for key, value in DISTANCES.get(name, {}).items()}
    result = fused(name, each(given(name), lambda x: factor * x), **distances)
    assert distance(result, expected) < 1e-11 * abs(factor)


@pytest.mark.parametrize("name", ALL)
def test_float32_models_are_fused_to_float32_accuracy(name):
    exact = fused(name, given(name))
    result = fused(name, each(given(name), torch.Tensor.float))
    assert (exact.dtype, result.dtype) == (torch.float64, torch.float32)
    assert 0 < distance(result.double(), exact) < 3e-6


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened(name, dtype):
    result = fused(name, each(given(name), lambda x: x.to(dtype)))
    assert result.dtype == torch.float32
    assert torch.equal(result, fused(name, each(given(name), lambda x: x.to(dtype).float())))
    assert not torch.equal(result, fused(name, each(given(name), torch.Tensor.float)))


@pytest.mark.parametrize("name", ALL)
def test_inputs_are_left_alone(name):
    inputs, fresh = given(name), given(name)
    fused(name, inputs)
    for key in ("tensors", "fishers"):
        assert all(torch.equal(a, b) for a, b in zip(inputs[key], fresh[key], strict=True))
    assert torch.equal(inputs["base"], fresh["base"])
    assert all(torch.equal(a.matrix, b.matrix) for a, b in zip(inputs["grams"], fresh["grams"], strict=True))


@pytest.mark.parametrize("name", ALL)
def test_how_tensors_lie_in_memory_does_not_matter(name):
    turned = each(given(name), lambda x: x.mT.contiguous().mT)
    assert not turned["base"].is_contiguous()
    assert distance(fused(name, turned), fused(name, given(name))) < 1e-12


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("kind", ["zeros", "one zero", "opposite", "equal but one entry", "statistics of zero"])
def test_nothing_becomes_nan(name, kind):
    inputs = given(name)
    x, y = inputs["base"], inputs["tensors"][-1]
    zero = torch.zeros_like(x)
    if kind == "zeros":
        inputs |= {"base": zero, "tensors": [zero] * len(inputs["tensors"])}
    elif kind == "one zero":
        inputs |= {"tensors": [zero, *inputs["tensors"][1:]]}
    elif kind == "opposite":
        inputs |= {"base": -y, "tensors": [-y, zero, y][-len(inputs["tensors"]) :]}
    elif kind == "equal but one entry":
        near = x.clone()
        near[0, 0] += 1e-12
        inputs |= {"tensors": [near, x, x][: len(inputs["tensors"])]}
    else:
        grams = [replace(one, matrix=torch.zeros_like(one.matrix)) for one in inputs["grams"]]
        inputs |= {"fishers": [zero] * 3, "grams": grams}
    assert fused(name, inputs).isfinite().all()


@pytest.mark.parametrize("name", [name for name in ALL if "grams" not in methods()[name].inputs])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3, 4)])
def test_tensors_of_any_shape(name, shape):
    inputs = given(name)
    inputs |= {
        "tensors": [random(*shape, seed=i) for i in range(len(inputs["tensors"]))],
        "base": random(*shape, seed=10),
        "fishers": [random(*shape, seed=20 + i).square() for i in range(len(inputs["tensors"]))],
    }
    for whole in (False, True):
        result = fused(name, inputs, filter_wise=not whole, nuslerp_flatten=whole)
        assert result.shape == shape
        assert result.isfinite().all()


@pytest.mark.parametrize("name", ["fisher", "linear", "multislerp", "regmean", "regmean++"])
def test_weights_that_leave_no_model_are_refused(name):
    with pytest.raises(InputError, match=r"the weights 0, 0, 0 sum to 0"):
        fused(name, given(name), weight=(0.0, 0.0, 0.0))
    assert fused(name, given(name), weight=(0.0, 0.0, 1.0)).isfinite().all()


REFUSED = {
    "weight": [float("nan"), float("inf"), "heavy"],
    "density": [0, -0.1, 1.5, float("nan"), "half"],
    "t": [-0.1, 1.1, float("nan"), "middle"],
    "lambda": [float("nan"), float("-inf")],
    "reduce_nondiag": [-0.1, 1.1, float("nan")],
    "max_iter": [-1, 2.5],
    "tol": [-1e-3, float("nan"), float("inf")],
    "normalize": ["perhaps", 2],
    "rescale": ["perhaps"],
    "filter_wise": ["perhaps"],
    "gamma": [-0.1, 1, float("nan")],
    "epsilon": [-0.1, float("nan")],
    "r": [-0.1, float("nan")],
    "alpha": [-0.1, float("inf")],
    "select_topk": [0, -0.1, 1.5, float("nan")],
    "nuslerp_flatten": ["perhaps"],
    "nuslerp_row_wise": ["perhaps"],
    "normalize_weights": ["perhaps"],
}
TAKEN = {
    "weight": 2,
    "density": 1,
    "t": "0.5",
    "lambda": -1,
    "reduce_nondiag": 0,
    "max_iter": 0,
    "tol": 1e-9,
    "select_topk": 1,
}


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name in ALL for key in methods()[name].parameters if key in REFUSED]
)
def test_values_out_of_bounds_are_refused(name, key):
    parameter = methods()[name].parameters[key]
    for value in REFUSED[key]:
        if value == 1.1 and key in DISTANCES.get(name, {}):
            continue
        with pytest.raises(ValueError, match="expected "):
            parameter.check(value)
    assert parameter.check(TAKEN.get(key, False)) == float(TAKEN.get(key, False))


@pytest.mark.parametrize("name", ["fisher", "regmean", "regmean++"])
def test_negative_weights_are_no_precisions(name):
    with pytest.raises(ValueError, match="expected a number from 0 on"):
        methods()[name].parameters["weight"].check(-1)
    assert methods()["task_arithmetic"].parameters["weight"].check(-1) == -1
