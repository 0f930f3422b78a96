"""The largest entries of a difference: those of a sort."""

import pytest
import torch

from cobasin.fusion import arithmetic, largest
from cobasin.fusion.largest import Largest

SIZE = 500


def tensors(dtype: torch.dtype, levels: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    base, change = torch.randn(2, SIZE, generator=generator, dtype=torch.float64)
    if levels is not None:  # many entries are equal, in magnitude, too
        base, change = base.round(), (change * levels).round() / levels
    return base.to(dtype), (base + change).to(dtype)


def sorted_out(difference: torch.Tensor, count: int) -> torch.Tensor:
    chosen = difference.abs().argsort(descending=True, stable=True)[:count]
    return torch.zeros_like(difference).index_put((chosen,), difference[chosen])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("levels", [None, 4, 1])
@pytest.mark.parametrize("slices", [7, SIZE])
@pytest.mark.parametrize("sample", [SIZE, 300, 20])
def test_the_largest_are_those_of_a_sort(monkeypatch, dtype, levels, slices, sample):
    monkeypatch.setattr(largest, "_SAMPLE", sample)
    check_largest(monkeypatch, dtype, levels, slices)


@pytest.mark.parametrize("levels", [None, 4, 1])
@pytest.mark.parametrize("around", [(0.0, 0.25), (0.25, 0.75), (0.7, 1.0), (5.0, 6.0)])
def test_samples_may_mislead(monkeypatch, levels, around):
    monkeypatch.setattr(largest, "_around", lambda *_: around)
    check_largest(monkeypatch, torch.float64, levels, 7)


def check_largest(monkeypatch, dtype, levels, slices):
    monkeypatch.setattr(arithmetic, "SLICE", slices)
    base, tensor = tensors(dtype, levels)
    difference = tensor.to(torch.promote_types(dtype, torch.float32)) - base
    for density in (1e-3, 0.1, 0.5, 0.77, 1 - 1e-3, 1.0):
        count = max(int(density * SIZE), 1)
        found = Largest.of(base, tensor, count)
        kept = torch.cat([found.of_slice(part, i * slices) for i, part in enumerate(difference.split(slices))])
        assert torch.equal(kept, sorted_out(difference, count)), density
        if levels is None and count < SIZE:
            assert not torch.equal(kept, sorted_out(difference, count + 1))


@pytest.mark.parametrize("scale", [1e-42, 1e38])
def test_of_any_size(scale):
    change = torch.tensor([1.0, -3.0, 0.0, 2.0, -1.0]) * scale
    assert Largest.of(torch.zeros(5), change, 3).of_slice(change, 0).tolist() == [
        *change[:2].tolist(),
        0.0,
        *change[3:4].tolist(),
        0.0,
    ]
    assert not Largest.of(torch.zeros(5), torch.zeros(5), 3).of_slice(torch.zeros(5), 0).any()
