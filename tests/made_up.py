"""Inputs made without any data, of either kind."""

from __future__ import annotations

import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.data.synthetic import images, reads_text
from cobasin.data.writing import texts


def synthetic_inputs(models, count, seed=0):
    """``count`` inputs for models of one architecture, as keyword arguments with a row an input."""
    one = load(models[0])
    if not reads_text(one):
        return images(one, count, seed)
    return {"input_ids": torch.tensor([row["input_ids"] for row in texts(models, count, seed)])}
