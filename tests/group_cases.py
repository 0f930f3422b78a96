"""Every group, and random problems for it."""

import torch

from cobasin.symmetry.groups import Diagonal, Gram, Orthogonal, Permutation, Rotation2

GROUPS = {
    "permutation": Permutation(),
    "signed": Permutation(signed=True),
    "scaled": Permutation(scaled=True),
    "signed and scaled": Permutation(signed=True, scaled=True),
    "orthogonal": Orthogonal(),
    "orthogonal, scaled": Orthogonal(scaled=True),
    "orthogonal fixing 1": Orthogonal(fix_ones=True),
    "orthogonal fixing 1, scaled": Orthogonal(scaled=True, fix_ones=True),
    "signs": Diagonal(signed=True),
    "positive scales": Diagonal(scaled=True),
    "scales": Diagonal(signed=True, scaled=True),
    "rotation": Rotation2(),
    "rotation, scaled": Rotation2(scaled=True),
}
CHARGES = (1, 0, -1)


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sample(group, batch, n, seed, spread=None):
    """A random element; its scales log-uniform over ``[1 / spread, spread]``, if given."""
    value = group.sample(batch, n, torch.Generator().manual_seed(seed))
    if spread is not None and group.scaled:
        uniform = torch.rand(value["scale"].shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        value["scale"] = value["scale"].sign() * spread ** (2 * uniform - 1)
    return value


def size_of(group, n=5):
    return 2 if isinstance(group, Rotation2) else n


def sides(batch, n, seed, rows=7):
    """Random tensors, one of every charge."""
    return {charge: normal(*batch, rows, n, seed=3 * seed + charge) for charge in CHARGES}


def moved(group, value, source):
    return {charge: group.act(value, x, charge) for charge, x in source.items()}


def related(group, batch, n, seed, noise=0.5):
    """A source, and a target that is the source moved by an element plus noise."""
    source = sides(batch, n, seed)
    target = moved(group, sample(group, batch, n, seed), source)
    return source, {charge: x + noise * normal(*x.shape, seed=seed + 7 + charge) for charge, x in target.items()}


def gram_of(source, target):
    gram = Gram()
    for charge, x in source.items():
        y = target[charge]
        gram.add(charge, x.mT @ y)
        gram.add_norms(charge, x.square().sum(-2), y.square().sum(-2))
    return gram


def distance(group, value, source, target):
    """Squared distance of the moved source from the target, ``[*batch]``; what `project` minimises."""
    return sum((group.act(value, x, c) - target[c]).square().sum((-2, -1)) for c, x in source.items())
