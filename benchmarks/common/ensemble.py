"""Several models that answer together."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor


class Ensemble:
    """The mean of what several models predict, called like one of them: of probabilities, or of numbers."""

    def __init__(self, models: Sequence[Any], task: str):
        self.models, self.task = models, task
        self.config, self.device, self.dtype = models[0].config, models[0].device, models[0].dtype

    def __call__(self, **inputs: Tensor) -> SimpleNamespace:
        """The logits of the mean."""
        logits = torch.stack([model(**inputs).logits for model in self.models])
        if self.task == "regression":
            return SimpleNamespace(logits=logits.mean(0))
        if self.task == "multilabel":
            return SimpleNamespace(logits=logits.double().sigmoid().mean(0).logit(1e-12))
        return SimpleNamespace(logits=logits.softmax(-1).mean(0).log())
