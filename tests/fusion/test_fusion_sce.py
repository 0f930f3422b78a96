"""SCE against the definition, entry by entry."""

import pytest
import torch

from cobasin.fusion.sce import sce
from task_vector_cases import close, models


def defined(base, tensors, part):
    """The merge by loops over entries, and the positions that were selected."""
    columns = list(zip(*[(x - base).flatten().tolist() for x in tensors], strict=True))
    means = [sum(column) / len(column) for column in columns]
    variances = [sum((x - m) ** 2 for x in column) / len(column) for column, m in zip(columns, means, strict=True)]
    ranked = sorted(range(len(columns)), key=lambda i: -variances[i])
    selected = set(ranked[: int(part * sum(v > 0 for v in variances))]) if part < 1 else set(ranked)
    columns = [column if i in selected else (0.0,) * len(column) for i, column in enumerate(columns)]
    sizes = [sum(x * x for x in own) for own in zip(*columns, strict=True)]
    shares = [size / sum(sizes) for size in sizes]
    merged = []
    for column in columns:
        positive = sum(column) >= 0
        counted = [i for i, x in enumerate(column) if x != 0 and (x > 0) == positive]
        total = sum(shares[i] for i in counted)
        merged.append(sum(shares[i] * column[i] for i in counted) / total if counted else 0.0)
    return base + torch.tensor(merged, dtype=torch.float64).view_as(base), selected


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.99, 1.0])
def test_sce(count, part):
    base, others = models(count=count)
    others[0] *= 3
    expected, selected = defined(base, others, part)
    result = sce(base, others, select_topk=part)
    assert close(result, expected)
    assert set((result - base).flatten().nonzero().flatten().tolist()) == selected
    assert not close(result, sum(others) / count, 0.1)


def test_what_all_models_have_learned_alike_is_not_selected():
    base, (other, *_) = models()
    near = other.clone()
    near[0, 0] += 1
    assert close(sce(base, [other, near], select_topk=0.9), base)  # 0.9 of one position is none
    both = near.clone()
    both[1, 1] += 2
    result = sce(base, [other, both], select_topk=0.9) - base
    assert result.nonzero().tolist() == [[1, 1]]
    assert not close(sce(base, [other, near]), base, 0.1)


def test_models_that_have_learned_nothing_count_alike():
    base, _ = models()
    assert torch.equal(sce(base, [base, base]), base)
    assert torch.equal(sce(base, [base, base], select_topk=0.5), base)


def test_weights_of_models_are_their_squares():
    base = torch.zeros(2)
    result = sce(base, [torch.tensor([3.0, 4.0]), torch.tensor([5.0, 0.0])])
    assert result.tolist() == [4.0, 4.0]
    result = sce(base, [torch.tensor([6.0, 0.0]), torch.tensor([0.0, 2.0]), torch.tensor([2.0, 0.0])])
    assert torch.allclose(result, torch.tensor([(36 * 6 + 4 * 2) / 40, 2.0]))
