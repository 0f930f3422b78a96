"""What was freed goes back to the system."""

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from cobasin.execution.memory import release_freed, settle_malloc

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
processes = import_module("common.processes")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="how much is freed is read from Linux's /proc")
def test_what_was_freed_between_what_is_kept_is_given_back():
    settle_malloc()
    freed, kept = [], []
    for _ in range(30):
        freed.append(torch.ones(1 << 20))
        kept.append(torch.ones(50_000))
    full = processes.anonymous_mb("self")
    freed.clear()
    with_holes = processes.anonymous_mb("self")
    release_freed()
    assert full - processes.anonymous_mb("self") > 100  # of 120
    assert with_holes - processes.anonymous_mb("self") > 50  # the control
    assert sum(len(one) for one in kept) == 30 * 50_000
