"""Inputs made without any data, of either kind."""

from __future__ import annotations

from cobasin.checkpoints.checkpoint import load
from cobasin.data.synthetic import images, reads_text, texts


def synthetic_inputs(models, count, seed=0):
    """``count`` inputs for models of one architecture, as keyword arguments with a row an input."""
    one = load(models[0])
    return {"input_ids": texts(models, count, seed)} if reads_text(one) else images(one, count, seed)
