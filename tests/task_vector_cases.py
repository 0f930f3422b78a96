"""A base and models beside it, and what is made of their differences, computed entry by entry."""

import numpy as np
import torch

WEIGHTS = [(1.0, 1.0, 1.0), (0.5, 0.3, 0.7), (1.0, -0.4, 0.5), (1.0, -1.0, 0.0)]
DENSITIES = [(1.0, 1.0, 1.0), (0.5, 0.2, 0.8), (0.01, 0.34, 0.99)]


def models(shape=(5, 4), count=3):
    generator = torch.Generator().manual_seed(0)
    base, *others = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(count + 1))
    return base, others


def seeded(seed=0):
    return np.random.default_rng(seed)


def close(x, y, tolerance=1e-12):
    return float((x - y).abs().max()) < tolerance


def trimmed(delta, density, gamma=0.0):
    """The entries of a task vector: 0 but for the largest, below a part that is too large."""
    entries = [float(one) for one in delta.flatten()]
    ranked = sorted(range(len(entries)), key=lambda i: -abs(entries[i]))
    count = max(1, int(density * len(entries)))
    without = min(int(gamma * len(entries)), len(entries) - count)
    kept = set(ranked[without : without + count])
    return [one if i in kept else 0.0 for i, one in enumerate(entries)]


def consensus(columns, weight, normalize):
    """The TIES merge of the entries of all models, one after the other."""
    merged = []
    for column in zip(*columns, strict=True):
        weighted = [w * x for w, x in zip(weight, column, strict=True)]
        positive = sum(weighted) >= 0
        counted = [i for i, x in enumerate(weighted) if x != 0 and (x > 0) == positive]
        value, share = sum(weighted[i] for i in counted), sum(weight[i] for i in counted)
        merged.append(value / share if normalize and abs(share) > 1e-8 else value)
    return merged
