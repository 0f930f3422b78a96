"""Singular value decompositions on a GPU that is stood in for."""

import pytest
import torch

from cobasin.symmetry import singular
from fake_gpu import GPU, FakeGpu, on_gpu


@pytest.mark.parametrize(("n", "there"), [(4, True), (32, True), (33, False), (255, False), (256, True)])
def test_on_a_gpu_small_matrices_are_decomposed_where_they_are_fast(n, there, monkeypatch):
    asked = []

    def noting(own):
        return lambda m: asked.append(on_gpu(m)) or own(m)

    for name in ("svd", "svdvals"):
        monkeypatch.setattr(torch.linalg, name, noting(getattr(torch.linalg, name)))
    m = torch.randn(2, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    with FakeGpu():
        brought = m.to(GPU)
        parts, sizes = singular.svd(brought), singular.singular_values(brought)
        assert {x.device for x in (*parts, sizes)} == {GPU}
    assert asked == [there, there]
    assert torch.allclose(parts[0] * parts[1][:, None] @ parts[2], m)
    assert torch.allclose(sizes, parts[1])
