"""Reinforced Agent Merging against its definition, entry by entry."""

import pytest
import torch

from cobasin.fusion.reinforced import ram, ramplus_tl
from task_vector_cases import close, models


def sparse(count=3, shape=(8, 6)):
    """A base, and models that have changed about half of its entries each, some of these by very little."""
    base, others = models(shape, count)
    generator = torch.Generator().manual_seed(1)
    for other in others:
        kept = torch.rand(shape, generator=generator)
        other.copy_(torch.where(kept < 0.4, base, torch.where(kept < 0.5, base + 5e-6, other)))
    return base, others


def defined(base, others, epsilon, r=0.0, alpha=0.0):
    """The merge by loops over entries and models, and how many entries one model alone has changed."""
    columns = list(zip(*[(x - base).flatten().tolist() for x in others], strict=True))
    changed = [[i for i, x in enumerate(column) if abs(x) > epsilon] for column in columns]
    factors = []
    for i in range(len(others)):
        alone = sum(found == [i] for found in changed)
        together = sum(i in found and len(found) > 1 for found in changed)
        factors.append(1 + r * min(together / alone, alpha) if alone else 1.0)
    merged = []
    for column, found in zip(columns, changed, strict=True):
        if len(found) == 1:
            merged.append(factors[found[0]] * column[found[0]])
        else:
            merged.append(sum(column[i] for i in found) / len(found) if found else 0.0)
    return base + torch.tensor(merged, dtype=torch.float64).view_as(base), sum(len(found) == 1 for found in changed)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("epsilon", [0.0, 1e-5, 0.5])
def test_ram(count, epsilon):
    base, others = sparse(count)
    expected, alone = defined(base, others, epsilon)
    assert alone
    assert close(ram(base, others, epsilon=epsilon), expected)
    assert not close(sum(others) / count, expected) or (count, epsilon) == (1, 0.0)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(("r", "alpha"), [(0.1, 0.2), (0.5, 100.0), (0.0, 1.0)])
def test_ramplus(count, r, alpha):
    base, others = sparse(count)
    others[0][:4] = base[:4]  # the models have changed entries alone in other parts
    expected, _ = defined(base, others, 1e-5, r, alpha)
    result = ramplus_tl(base, others, r=r, alpha=alpha)
    assert close(result, expected)
    assert close(result, ram(base, others)) == (r == 0)


def test_defaults():
    base, others = sparse()
    assert close(ram(base, others), defined(base, others, 1e-5)[0])
    assert close(ramplus_tl(base, others), defined(base, others, 1e-5, 0.1, 0.2)[0])


def test_a_model_that_has_changed_nothing_alone():
    base, (other, *_) = models()
    assert close(ramplus_tl(base, [other, other]), other)


def test_in_the_dtype_that_is_asked_for():
    base, others = sparse()
    assert ram(base, others, torch.bfloat16).dtype == ramplus_tl(base, others, torch.bfloat16).dtype == torch.bfloat16
