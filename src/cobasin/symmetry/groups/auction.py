"""Large assignments by auction: in float32 where the gains are, and far sooner than exactly where norms differ.

Sources bid for targets. A source that holds none bids for the one that is best at the present prices, as much as makes
the second best as good, and a little more; the highest bid takes the target from who held it. Once all hold one, the
total gain is within that little a source of the best (D. P. Bertsekas, *The auction algorithm: a distributed
relaxation method for the assignment problem*, Annals of Operations Research 14, 1988). Increments go from coarse to
fine, and prices are kept in between.
"""

from __future__ import annotations

import torch
from torch import Tensor

SLACK = 1e-4  # of what the best partners gain above the mean, on average: what a source may lose at most
COARSER = 5  # increments from phase to phase
PHASES = 3
MOST_BIDS = 50  # a source: many that are alike, such as neurons that are dead, outbid each other for very long
BID_AT_ONCE = 1 << 20  # gains that are looked at


def auction(cost: Tensor) -> Tensor | None:
    """A permutation whose total cost is next to the least.

    Args:
        cost: ``[n, n]``, n of two or more, what matching source j (row) to target i (column) costs; not copied.

    Returns:
        int64 ``[n]``: for every target its source, the total within `SLACK` of what the cheapest partners save against
        the mean of all. None where that takes too many bids.
    """
    n, step = len(cost), max(1, BID_AT_ONCE // len(cost))
    saved = sum(float((part.mean(1) - part.amin(1)).double().sum()) for part in cost.split(step)) / n
    price = torch.zeros(n, dtype=torch.float64, device=cost.device)
    source = torch.empty(n, dtype=torch.int64, device=cost.device)  # of every target; n: nobody holds it
    idle = torch.empty(n + 1, dtype=torch.bool, device=cost.device)  # sources, and that nobody, who never is
    bids = 0
    for phase in reversed(range(PHASES)):
        least = SLACK * saved * COARSER**phase
        source.fill_(n)
        idle.copy_(torch.arange(n + 1) < n)
        while len(bidders := idle.nonzero()[:step, 0]):
            bids += len(bidders)
            if bids > MOST_BIDS * n:
                return None
            best, targets = (cost[bidders] + price).topk(2, 1, largest=False)
            wanted = targets[:, 0]
            offer = price[wanted] + best[:, 1] - best[:, 0] + least
            price = price.scatter_reduce(0, wanted, offer, "amax")
            won = offer == price[wanted]
            # of equal bids the first source's, whatever the threads do
            winner = torch.full_like(source, n).scatter_reduce(0, wanted[won], bidders[won], "amin")
            sold = winner < n
            idle[source[sold]] = True
            source[sold] = winner[sold]
            idle[winner[sold]] = False
            idle[n] = False
    return source
