"""Inputs made without any data, on which models can still be compared.

* Images: dead leaves, opaque shapes of random place, size and colour that cover each other. They have the 1/f spectrum
  and the edges of natural images (Lee, Mumford and Huang, *Occlusion Models for Natural Images*, 2001); Baradad et al.,
  *Learning to See by Looking at Noise* (NeurIPS 2021), train on them.
* Text: what the models themselves write (`writing`).
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.inputs import input_sizes
from cobasin.checkpoints.limits import first_written, takes_no_padding
from cobasin.checkpoints.probes import patch_noise
from cobasin.checkpoints.running import model_class
from cobasin.data.tasks import task_of
from cobasin.data.tokens import reads_looks
from cobasin.errors import InputError

SHAPES = 60  # an image
_CONTRAST = 2.0  # the brightest and the darkest, in standard deviations
_GREY = 0.85  # how far the channels of a colour agree


def check_synthetic(checkpoint: Checkpoint) -> None:
    """Refuse, before a model is built, what no inputs are made for.

    Raises:
        InputError: the model reads anything but images or tokens, does not say what its decoder begins with, or cannot
            tell padding from tokens.
    """
    config, architecture = checkpoint.config, checkpoint.architecture
    try:
        reads = [*input_sizes(config, architecture)]
    except InputError:
        reads = []
    if {"input_values", "input_features", "features", "filter_banks", "clips", "picture"} & {*reads}:  # no data is read
        raise InputError(
            f"{checkpoint.label}: no inputs can be made up for {architecture}, nor read; "
            "match by weights, without repair and heal"
        )
    answers = reads == ["input_ids", "decoder_input_ids"] and task_of(checkpoint) == "seq2seq_lm"
    # without it the one of mBART and PLBART begins with a language, which no config says
    begins = first_written(config) is not None
    alone = reads in (["pixel_values"], ["input_ids"]) and not reads_looks(checkpoint)
    if not alone and not (answers and begins):
        raise InputError(f"{checkpoint.label}: no inputs can be made up for {architecture}; give it data")
    if takes_no_padding(config, architecture):
        raise InputError(
            f"{checkpoint.label}: the config has no pad_token_id, by which padding is told from text; add it"
        )


def reads_text(checkpoint: Checkpoint) -> bool:
    """Whether texts are what is made up for a model; images else."""
    return "input_ids" in input_sizes(checkpoint.config, checkpoint.architecture)


def images(checkpoint: Checkpoint, count: int, seed: int) -> dict[str, Tensor]:
    """``count`` images for a model that `check_synthetic` lets pass, as keyword arguments with a row an image.

    Pixels ``[count, channels, height, width]`` are normalised: mean zero, deviation about one. The same seed gives the
    same images.
    """
    config, architecture = checkpoint.config, checkpoint.architecture
    pixels = input_sizes(config, architecture)["pixel_values"]
    height, width = pixels["image_size"]
    generator = torch.Generator().manual_seed(seed)
    inputs = {"pixel_values": dead_leaves(count, pixels["num_channels"], height, width, generator)}
    if "noise" in inspect.signature(model_class(architecture).forward).parameters:
        inputs["noise"] = patch_noise(count, config, height, width, generator)
    return inputs


def dead_leaves(count: int, channels: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Images of discs and turned rectangles, the latest on top, ``[count, channels, height, width]``.

    The radii have the density r⁻³ that makes the images look alike at all scales.
    """
    options: dict[str, Any] = {"dtype": torch.float32, "generator": generator}  # whatever the default dtype
    sides = (torch.arange(size, dtype=torch.float32) + 0.5 for size in (height, width))
    rows, columns = torch.meshgrid(*sides, indexing="ij")
    low, high = 1 / 16 * min(height, width), 2 / 3 * min(height, width)
    images = torch.zeros(count, channels, height, width, dtype=torch.float32)
    for _ in range(SHAPES):
        u = torch.rand(6, count, 1, 1, **options)
        radius = (u[0] * (high**-2 - low**-2) + low**-2) ** -0.5
        down, right = rows - u[1] * height, columns - u[2] * width
        cos, sin = torch.cos(torch.pi * u[3]), torch.sin(torch.pi * u[3])
        along, across = (cos * right + sin * down).abs(), (cos * down - sin * right).abs()
        rectangle = (along < radius) & (across < radius * (0.4 + 0.6 * u[4]))
        inside = torch.where(u[5] < 0.5, rectangle, down**2 + right**2 < radius**2)
        shared, own = (torch.randn(count, n, 1, 1, **options) for n in (1, channels))
        colour = _GREY**0.5 * shared + (1 - _GREY) ** 0.5 * own
        images = torch.where(inside[:, None], colour, images)
    return images.clamp(-_CONTRAST, _CONTRAST)
