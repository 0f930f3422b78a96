"""What an element is found from, read and moved once for all that is asked of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from torch import Tensor

from cobasin.matching.state import Match
from cobasin.symmetry.cross_gram import cross_gram
from cobasin.symmetry.groups import Gram
from cobasin.symmetry.keys import Key
from cobasin.symmetry.spec import Site


class Compared:
    """The tensors that a key acts on: of the source, moved by all other keys but some, and of the anchor.

    They are held from when they are first asked for.

    Args:
        without: keys that the source is not moved by either.
    """

    def __init__(self, match: Match, key: Key, without: Iterable[Key] = ()):
        self.spec, self.key, self.group = match.spec, key, match.groups[key]
        self._sites = match.sites(key)
        self._source = cache(lambda site: match.moved_elsewhere(site, key, without))
        self._anchor = cache(lambda name: match.anchor[name])

    def tensors(self) -> Iterator[tuple[Site, Tensor, Tensor]]:
        """Where the key acts: the source and the anchor."""
        for site in self._sites:
            yield site, self._source(site), self._anchor(site.tensor)

    def gram(self, columns: slice | None = None, select: Mapping[str, tuple[int, int]] | None = None) -> Gram:
        """The cross-Gram of some of the source's columns, or of one pair of places; see `cross_gram`."""
        return cross_gram(
            self.spec,
            self.key[0],
            self.group,
            self._sites,
            self._source,
            lambda site: self._anchor(site.tensor),
            columns=columns,
            select=select,
        )
