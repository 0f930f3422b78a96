"""Properties that are computed once."""

import threading
from concurrent.futures import ThreadPoolExecutor

from cobasin.execution.once import once


class Slow:
    """Something that waits for another of its kind."""

    both = threading.Barrier(2, timeout=5)
    count = 0

    @once
    def value(self):
        """What it is."""
        self.both.wait()
        self.count += 1
        return self.count


def test_instances_do_not_wait_for_each_other():
    """With the lock that they would share before Python 3.12 neither comes to the barrier while the other waits."""
    pair = Slow(), Slow()
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda one: one.value, pair)) == [1, 1]
    assert [one.value for one in pair] == [1, 1]  # and not again
    assert Slow.__dict__["value"].__doc__ == "What it is."
