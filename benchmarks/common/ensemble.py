"""Several models that answer together."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor


class Ensemble:
    """The mean of what several models predict, called like one of them: of probabilities, or of numbers.

    Args:
        known: [models, labels] of multi-label models, which labels each was trained on: the mean is over those that
            know a label.
    """

    def __init__(self, models: Sequence[Any], task: str, known: Tensor | None = None):
        self.models, self.task, self.known = models, task, known
        self.config, self.device, self.dtype = models[0].config, models[0].device, models[0].dtype
        self.training = any(model.training for model in models)

    def __call__(self, **inputs: Tensor) -> SimpleNamespace:
        """The logits of the mean."""
        logits = torch.stack([model(**inputs).logits for model in self.models])
        if self.task == "regression":
            return SimpleNamespace(logits=logits.mean(0))
        if self.task == "multilabel":
            counts = torch.ones(len(logits), logits.shape[-1]) if self.known is None else self.known
            shares = (counts / counts.sum(0).clamp(min=1)).to(logits.device, torch.float64)
            mean = torch.einsum("mrl,ml->rl", logits.double().sigmoid(), shares)
            return SimpleNamespace(logits=mean.logit(1e-12))
        return SimpleNamespace(logits=logits.softmax(-1).mean(0).log())
