"""Cases of which `make test` takes a sample, and `make test-all` all."""

from collections.abc import Sequence
from typing import Any

import pytest


def one_in(step: int, cases: Sequence[Any], first: int = 0, ids: Sequence[str] | None = None) -> list[Any]:
    """Parameters for pytest: every ``step``-th case from ``first`` on is always tested; rows of several are tuples."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            id=None if ids is None else ids[i],
            marks=() if i % step == first else pytest.mark.exhaustive,
        )
        for i, case in enumerate(cases)
    ]
