"""Nearswap against its definition."""

import pytest
import torch

from cobasin.fusion.nearswap import nearswap


@pytest.mark.parametrize("t", [0.0, 0.3, 1e9])
def test_nearswap(t):
    x, y = torch.randn(2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y[0, 0] = x[0, 0]
    share = (t / (y - x).abs()).nan_to_num(1.0).clamp(0, 1)
    result = nearswap(x, [y], t=t)
    torch.testing.assert_close(result, share * y + (1 - share) * x, rtol=0, atol=1e-12)
    assert t > 0 or torch.equal(result, x)
    assert not torch.allclose(result, (x + y) / 2, atol=0.1)
