"""How far two models agree once they are matched: by layer, and along the coordinates of every space."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cobasin.matching.state import Match
from cobasin.symmetry.action import batch_positions, rows
from cobasin.symmetry.keys import Key, is_layer
from cobasin.symmetry.spec import Spec
from cobasin.symmetry.state import Lazy, State, squared_distance, squared_size

POINTS = 101  # of a spectrum
OUTSIDE = "outside the layers"
UNUSED = 1e-9  # squared length of a coordinate that is no more than rounding, against the longest


class Difference(NamedTuple):
    """Two sets of tensors against each other.

    Attributes:
        squared: ``|a - b|²``.
        size: ``|a|² + |b|²``.
    """

    squared: float
    size: float

    @property
    def relative(self) -> float:
        """0 for equal tensors, 1 for unrelated ones."""
        return math.sqrt(self.squared / self.size) if self.size else 0.0

    @property
    def agreement(self) -> float:
        """1 for equal tensors, 0 for unrelated ones."""
        return 1 - self.squared / self.size if self.size else 1.0


def difference(a: Tensor, b: Tensor) -> Difference:
    """Of two tensors."""
    return Difference(squared_distance(a, b), squared_size(a) + squared_size(b))


def place_of(index: Mapping[str, int]) -> str:
    """The layer of a tensor or an element with these index values, in words."""
    return next((f"{space} {i}".replace("_", " ") for space, i in index.items() if is_layer(space)), OUTSIDE)


def by_tensor(match: Match) -> dict[str, Difference]:
    """The models as they are matched so far, tensor by tensor."""
    return {name: difference(match.moved(name), match.anchor[name]) for name in match.tensors}


def by_layer(spec: Spec, tensors: Mapping[str, Difference]) -> dict[str, Difference]:
    """The sums over the tensors of every layer, and over those outside of all layers."""
    places: dict[str, list[Difference]] = {}
    for name, found in tensors.items():
        places.setdefault(place_of(spec.entries[name].index), []).append(found)
    return {place: total(parts) for place, parts in places.items()}


def total(parts: Iterable[Difference]) -> Difference:
    """The sum of differences."""
    squared, size = (math.fsum(figures) for figures in zip(*parts, strict=True))
    return Difference(squared, size)


def kept(match: Match, keys: Iterable[Key]) -> float | None:
    """The share of coordinates that the elements of these keys leave where they are; None where none has an order.

    Of a permutation it is the share of fixed points; of an orthogonal map, its trace over its size.
    """
    stay, count = 0.0, 0
    for value in (match.values[key] for key in keys):
        if "perm" in value:
            perm = value["perm"]
            stay += float((perm == torch.arange(perm.shape[-1])).sum())
            count += perm.numel()
        elif "matrix" in value:
            diagonal = value["matrix"].diagonal(dim1=-2, dim2=-1)
            stay += float(diagonal.sum())
            count += diagonal.numel()
    return stay / count if count else None


def spectrum(cosines: Iterable[Tensor]) -> list[float]:
    """Of the `cosines` of some keys, `POINTS` evenly spaced ones, largest first; zeros where the models use none."""
    found = torch.cat(list(cosines))
    return np.quantile(found.numpy() if len(found) else np.zeros(1), np.linspace(1, 0, POINTS)).tolist()


def cosines(match: Match, key: Key) -> Tensor:
    """Cosines between the coordinates of two matched models, over all tensors that they run through.

    A coordinate is a neuron, or a head; under an orthogonal group, whose coordinates mean nothing, it is a singular
    direction of the cross-Gram. Those that a model does not use are left out.
    """
    orthogonal = "matrix" in match.values[key]
    grams: list[Tensor | float] = [0.0, 0.0, 0.0]  # a with b, a with itself, b with itself
    for a, b in _sides(match, key):
        for i, (x, y) in enumerate(((a, b), (a, a), (b, b))):
            grams[i] = grams[i] + (x.mT @ y if orthogonal else (x * y).sum(-2))
    cross, left, right = (torch.as_tensor(gram) for gram in grams)
    if orthogonal:
        u, cross, vh = torch.linalg.svd(cross)
        left, right = ((basis * (gram @ basis)).sum(-2) for gram, basis in ((left, u), (right, vh.mT)))
    size = (left * right).clamp_min(0).sqrt()
    used = size > UNUSED * size.max()  # nothing is written along the ones vector, say
    return (cross[used] / size[used]).clamp(-1, 1)


def _sides(match: Match, key: Key) -> Iterator[tuple[Tensor, Tensor]]:
    """The moved source and the anchor wherever a key acts: [*batch, rest, n]."""
    for site in match.sites(key):
        block = match.spec.block_at(site)
        batch = batch_positions(match.spec, block.axes, key[0])
        source, anchor = (
            rows(block.view(tensor), batch, site.axis).double()
            for tensor in (match.moved(site.tensor), match.anchor[site.tensor])
        )
        yield source, anchor


def shuffled(state: State) -> State:
    """A model without any relation to another: every tensor shuffled along every axis, by itself."""

    def shuffle(name: str) -> Tensor:
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
        generator = torch.Generator().manual_seed(seed)
        tensor = state[name]
        for axis, size in enumerate(tensor.shape):
            tensor = tensor.index_select(axis, torch.randperm(size, generator=generator))
        return tensor

    return Lazy(state, shuffle)
