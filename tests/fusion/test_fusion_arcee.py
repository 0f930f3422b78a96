"""Arcee Fusion against its definition, entry by entry."""

import math

import pytest
import torch

from cobasin.fusion import arcee_fusion as module
from cobasin.fusion.arcee_fusion import arcee_fusion
from task_vector_cases import models


def probabilities(row):
    total = sum(math.exp(x) for x in row)
    return [math.exp(x) / total + 1e-8 for x in row]


def defined(base, tensor):
    """The merge of lists of rows, and how many entries were taken."""
    matters = []
    for ours, theirs in zip(base, tensor, strict=True):
        p, q = probabilities(theirs), probabilities(ours)
        divergence = sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
        matters.append([abs(y - x) * divergence for x, y in zip(ours, theirs, strict=True)])
    ranked = sorted(one for row in matters for one in row)
    low, median, high = (ranked[int(part * (len(ranked) - 1))] for part in (0.25, 0.5, 0.75))
    least = median + 1.5 * (high - low)
    taken = [[one >= least for one in row] for row in matters]
    rows = zip(taken, base, tensor, strict=True)
    merged = [[y if take else x for take, x, y in zip(*row, strict=True)] for row in rows]
    return torch.tensor(merged, dtype=torch.float64), sum(map(sum, taken))


@pytest.mark.parametrize("shape", [(6, 5), (40, 3), (1, 30)])
@pytest.mark.parametrize("entries", [4, 1 << 18])
def test_arcee_fusion(monkeypatch, shape, entries):
    monkeypatch.setattr(module, "SLICE", entries)  # rows at a time
    base, (other, *_) = models(shape)
    expected, taken = defined(base.tolist(), other.tolist())
    assert 0 < taken < base.numel() / 3
    assert torch.equal(arcee_fusion(base, [other]), expected)
    assert not torch.equal(arcee_fusion(other, [base]), expected)


def test_vectors_and_stacks_are_rows():
    base, (other, *_) = models((2, 3, 5))
    expected, _ = defined(base.view(6, 5).tolist(), other.view(6, 5).tolist())
    assert torch.equal(arcee_fusion(base, [other]).view(6, 5), expected)
    expected, _ = defined([base.flatten().tolist()], [other.flatten().tolist()])
    assert torch.equal(arcee_fusion(base.flatten(), [other.flatten()])[None], expected)


def test_in_the_dtype_that_is_asked_for():
    base, (other, *_) = models()
    result = arcee_fusion(base.bfloat16(), [other.bfloat16()], torch.bfloat16)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result.float(), arcee_fusion(base.bfloat16(), [other.bfloat16()]))
