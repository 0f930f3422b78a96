"""Permutations, with signs and scales: the group of neurons, heads and generic-gain residual streams."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from cobasin.symmetry.groups.assignment import assign, assign_rows, is_permutation
from cobasin.symmetry.groups.base import Batch, Group, Value
from cobasin.symmetry.groups.diagonal import Diagonal
from cobasin.symmetry.groups.gram import Gram


@dataclass(frozen=True)
class Permutation(Group):
    """Monomial matrices: a permutation, with a sign (``signed``) and a positive scale (``scaled``) per entry.

    ``{"perm": int64[*batch, n], "scale": float64[*batch, n]}``; entry i of the result is
    ``scale[i] * x[perm[i]]``. Plain permutations have no ``scale``; with ``signed`` alone it is ±1.

    What is learned has ``scores[*batch, n, n]`` as well, and the gradient of its matrix of zeros and ones (source to
    target) goes straight through to them (Bengio, Léonard and Courville 2013); ``ratio[*batch, n, n]`` is the scale
    that a pair would have, over that of the target now. On the way to an order ``soft[n, n]`` (source to target) acts,
    times ``ratio``, where there is one, in place of ``perm``.
    """

    signed: bool = False
    scaled: bool = False
    tied: bool = False
    """Whether all entries of the last batch axis have one order, each with its own signs and scales."""
    continuous = False

    @property
    def charged(self) -> bool:
        return self.signed or self.scaled

    @property
    def _entries(self) -> Diagonal:
        """The signs and scales alone."""
        return Diagonal(self.signed, self.scaled)

    def identity(self, batch: Batch, n: int) -> Value:
        return {"perm": torch.arange(n).expand(*batch, n).clone()} | self._entries.identity(batch, n)

    def sample(self, batch: Batch, n: int, generator: torch.Generator) -> Value:
        orders = (*batch[:-1], 1) if self.tied else batch
        perm = torch.rand(*orders, n, generator=generator, dtype=torch.float32).argsort(-1)
        perm = perm.expand(*batch, n).clone()
        return {"perm": perm} | self._entries.sample(batch, n, generator)

    def act(self, value: Value, x: Tensor, charge: int = 1) -> Tensor:
        if "soft" in value:
            soft = value["soft"] * value["ratio"].pow(charge) if "ratio" in value else value["soft"]
            return self._entries.act(value, x @ soft, charge)
        perm = value["perm"]
        # one permutation for all rows is an index, not a gather of every entry; near copies have none at all, which is
        # told where the order is kept: asked of a GPU, it would have to be waited for
        if bool((perm == torch.arange(perm.shape[-1], device=perm.device)).all()):
            moved = x
        elif perm.ndim > 1:
            moved = x.gather(-1, perm.to(x.device)[..., None, :].expand(x.shape))
        elif x.ndim > 1 and x.stride(-2) == 1:  # columns lie in one piece: copy them so
            moved = x.mT.index_select(-2, perm.to(x.device)).mT
        else:
            moved = x.index_select(-1, perm.to(x.device))
        if "scores" in value:
            nothing = value["scores"] - value["scores"].detach()  # but for its gradient
            if "ratio" in value and charge:
                nothing = nothing * value["ratio"].pow(charge)
            moved = moved + x.detach() @ nothing
        return self._entries.act(value, moved, charge)

    def inverse(self, value: Value) -> Value:
        perm = value["perm"].argsort(-1)
        return {"perm": perm} | self._entries.inverse(_moved_scale(value, perm))

    def compose(self, first: Value, second: Value) -> Value:
        perm = first["perm"].gather(-1, second["perm"])
        return {"perm": perm} | self._entries.compose(_moved_scale(first, second["perm"]), second)

    def project(self, gram: Gram, joint: bool = True) -> Value:
        shape = torch.broadcast_shapes(*(term.shape for term in gram.cross.values()))
        if self.tied:
            perm = assign(self._table(self.pair_gain(gram))).expand(shape[:-1]).clone()
        else:
            perm = assign_rows(partial(self.pair_gain, gram), shape)
        if not self.charged:
            return {"perm": perm}
        direct, inverse = (at_pairs(gram.total(charge), perm) for charge in (1, -1))
        norms = [norm.gather(-1, perm) for norm in self._entries.norms(gram)]
        return {"perm": perm} | self._entries.solve(direct, inverse, norms)

    def order_of(self, gram_of: Callable[[slice], Gram], n: int, step: int) -> Tensor:
        """What `of_pairs` takes: for every source column its best target, each of another one.

        Args:
            gram_of: the Gram of some source columns.
            n: how many there are.
            step: how many of them are asked for at a time.
        """
        return assign_rows(lambda rows: self.pair_gain(gram_of(rows)), (n, n), step).argsort()

    def bound(self, gram_of: Callable[[slice], Gram], n: int, step: int) -> float:
        """No less than what the best order gains, and cheaper; the arguments are those of `order_of`."""
        of_sources, of_targets = list[Tensor](), list[Tensor]()
        for start in range(0, n, step):
            gains = self.pair_gain(gram_of(slice(start, min(start + step, n))))
            of_sources.append(gains.amax(-1))
            of_targets = [torch.stack([*of_targets, gains.amax(-2)]).amax(0)]
        return min(float(torch.cat(best).double().sum()) for best in (of_sources, of_targets))

    def of_pairs(self, target: Tensor, gram: Gram) -> Value:
        """The element that carries source column j to column ``target[j]``.

        ``gram`` is that of these pairs alone, ``[n, 1, 1]``.
        """
        perm = target.argsort()
        if not self.charged:
            return {"perm": perm}
        direct, inverse = (gram.total(charge)[perm, 0, 0] for charge in (1, -1))
        norms = [norm[perm, 0] for norm in self._entries.norms(gram)]
        return {"perm": perm} | self._entries.solve(direct, inverse, norms)

    def distances(self, gram: Gram) -> Tensor:
        """Squared distance of source column j to target column i, by the best sign and scale of that pair.

        Args:
            gram: with all norms, as if the group were scaled.

        Returns:
            ``[..., j, i]``.
        """
        distances = -2 * self.pair_gain(gram)
        for squares in self._squares(gram):
            distances += squares
        return distances

    def least_distances(self, gram: Gram) -> Tensor:
        """No more than `distances`, and cheaper: as if every charge had a scale of its own, ``|b|² - <a, b>²/|a|²``."""
        if not self.scaled:
            return self.distances(gram)
        least = -2 * gram.total(0)
        for charge in gram.cross.keys() - {0}:
            norm, most = gram.source[charge][..., :, None], gram.target[charge][..., None, :]
            taken = (gram.cross[charge] / norm.sqrt()).square()
            least = least - torch.where(norm > torch.finfo(norm.dtype).tiny, taken, most)  # below it products underflow
        return least + sum(self._squares(gram))

    def gain_at(self, gram: Gram, distance: Tensor) -> Tensor:
        """What pairs gain that are left with these squared distances; the inverse of `distances`.

        Args:
            gram: its norms are looked at, as in `distances`.
            distance: ``[..., j, i]``.
        """
        return (sum(self._squares(gram)) - distance) / 2

    def _squares(self, gram: Gram) -> list[Tensor]:
        """Squared norms that no scale moves, to be added up to a table ``[..., j, i]``."""
        target = torch.stack([*gram.target.values()]).sum(0)[..., None, :]
        still = [norm for charge, norm in gram.source.items() if not (self.scaled and charge)]
        return [target, torch.stack(still).sum(0)[..., :, None]] if still else [target]

    def support(self, gram: Gram) -> Tensor:
        table = self._table(self.pair_gain(gram))
        return at_pairs(table, assign(table)).sum(-1)

    def deviation(self, value: Value) -> float:
        perm = value["perm"]
        usable = is_permutation(perm).all() and not (self.tied and (perm != perm[..., :1, :]).any())
        return self._entries.deviation(value) if usable else math.inf

    def describe(self, n: int) -> tuple[str, int]:
        name = f"signed S({n})" if self.signed else f"S({n})"
        return (name + " with scales", n) if self.scaled else (name, 0)

    def _table(self, gains: Tensor) -> Tensor:
        """Gains of pairs, summed over all that have one order: ``[..., 1, j, i]``, where it is tied."""
        return gains.sum(-3, keepdim=True) if self.tied else gains

    def pair_gain(self, gram: Gram, rows: slice = slice(None)) -> Tensor:
        """What matching column j to column i gains, with the best sign and scale of that pair, ``[..., j, i]``."""
        if not self.charged:
            return gram.total()[..., rows, :]
        neutral, direct, inverse = (gram.total(charge)[..., rows, :] for charge in (0, 1, -1))
        norms = [norm[..., rows, None] for norm in self._entries.norms(gram)]
        return neutral + self._entries.gains(direct, inverse, norms)


def at_pairs(table: Tensor, perm: Tensor) -> Tensor:
    """``table[..., perm[i], i]``: the entries of the matched pairs, ``[..., n]``."""
    return table.gather(-2, perm[..., None, :])[..., 0, :]


def _moved_scale(value: Value, perm: Tensor) -> Value:
    return {"scale": value["scale"].gather(-1, perm)} if "scale" in value else {}
