"""Inputs made without any data, on which models can still be compared.

* Images: dead leaves, opaque shapes of random place, size and colour that cover each other. They have the 1/f spectrum
  and the edges of natural images (Lee, Mumford and Huang, *Occlusion Models for Natural Images*, 2001); Baradad et al.,
  *Learning to See by Looking at Noise* (NeurIPS 2021), train on them.
* Text of a decoder: what the models themselves write, each as much, from a random first token on.
* Text of a masked language model with a tokenizer: what the models put in place of masks, each token drawn anew given
  the others (Wang and Cho, *BERT has a Mouth, and It Must Speak*, 2019).
* Other text: random tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.probes import patch_noise
from cobasin.checkpoints.running import input_sizes, model_class, part_of, positions
from cobasin.data.tasks import task_of
from cobasin.data.tokens import has_masks, text_length, tokenizer_of
from cobasin.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

LONGEST = 128  # tokens
DRAWN = 4  # times that a masked language model draws every token
_PARTS = 7  # of a text, of which one is masked at a time: about the 0.15 that such models are trained on
_ROWS = 16  # of a masked language model that runs at once
_AT_ONCE = 64  # texts that a model writes: what a decoder keeps of them in memory grows with their number
SHAPES = 60  # an image
_CONTRAST = 2.0  # the brightest and the darkest, in standard deviations
_GREY = 0.85  # how far the channels of a colour agree


def check_synthetic(checkpoint: Checkpoint) -> None:
    """Refuse, before a model is built, what no inputs are made for.

    Raises:
        InputError: the model reads anything but images or tokens, or cannot tell padding from tokens.
    """
    config, architecture = checkpoint.config, checkpoint.architecture
    try:
        reads = [*input_sizes(config, architecture)]
    except InputError:
        reads = []
    if {"input_values", "input_features"} & {*reads} or architecture.endswith("ForMultipleChoice"):  # no data is read
        raise InputError(
            f"{checkpoint.label}: no inputs can be made up for {architecture}, nor read; "
            "match by weights, without repair and heal"
        )
    if reads not in (["pixel_values"], ["input_ids"]):
        raise InputError(f"{checkpoint.label}: no inputs can be made up for {architecture}; give it data")
    if architecture.endswith("ForSequenceClassification") and getattr(config, "pad_token_id", None) is None:
        raise InputError(
            f"{checkpoint.label}: the config has no pad_token_id, by which padding is told from text; add it"
        )


@dataclass(frozen=True)
class Blank:
    """A text of nothing but masks.

    Attributes:
        ids: of its tokens: masks, and what the tokenizer puts at the ends of a text.
        mask: the id of a mask.
        special: the ids that are at no other place.
    """

    ids: list[int]
    mask: int
    special: list[int]


def blank_of(checkpoint: Checkpoint) -> Blank | None:
    """What a masked language model is to fill; None of other models, and where no tokenizer fits it."""
    if task_of(checkpoint) != "masked_lm":
        return None
    try:
        tokenizer = tokenizer_of(checkpoint, blocks=True)
    except InputError:
        return None
    if not has_masks(checkpoint, tokenizer):
        return None
    mask, length = tokenizer.mask_token_id, text_length(checkpoint, tokenizer, None, LONGEST)
    ids = tokenizer(tokenizer.mask_token * length, truncation=True, max_length=length)["input_ids"]
    return Blank(ids, mask, tokenizer.all_special_ids) if mask in ids else None


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


def texts(
    models: Sequence[PreTrainedModel],
    count: int,
    seed: int,
    blank: Blank | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Tensor:
    """``count`` texts for models of one architecture, as token ids ``[count, length]``.

    The same seed gives the same texts.

    Args:
        models: that `check_synthetic` lets pass.
        count: how many.
        seed: not negative.
        blank: of masked language models, what they fill.
        report: called with how many are written, and how many will be.
    """
    config = part_of(models[0].config, "text_config")
    length = max(2, min(LONGEST, positions(config)))
    generator = torch.Generator().manual_seed(seed)
    if blank is None and not models[0].can_generate():
        length -= min(length - 2, 4)  # RoBERTa's position table has rows that are no positions
        return _tokens(config, (count, length), generator)
    shares = [len(range(i, count, len(models))) for i in range(len(models))]
    rows: list[Tensor] = []
    for model, share in zip(models, shares, strict=True):
        for start in range(0, share, _AT_ONCE):
            n = min(_AT_ONCE, share - start)
            rows += written(model, n, length, generator) if blank is None else filled(model, n, blank, generator)
            if report:
                report(len(rows), count)
    return torch.stack(rows)[torch.randperm(count, generator=generator)]


def dead_leaves(count: int, channels: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Images of discs and turned rectangles, the latest on top, ``[count, channels, height, width]``.

    The radii have the density r⁻³ that makes the images look alike at all scales.
    """
    rows, columns = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    low, high = 1 / 16 * min(height, width), 2 / 3 * min(height, width)
    images = torch.zeros(count, channels, height, width)
    for _ in range(SHAPES):
        u = torch.rand(6, count, 1, 1, generator=generator)
        radius = (u[0] * (high**-2 - low**-2) + low**-2) ** -0.5
        down, right = rows - u[1] * height, columns - u[2] * width
        cos, sin = torch.cos(torch.pi * u[3]), torch.sin(torch.pi * u[3])
        along, across = (cos * right + sin * down).abs(), (cos * down - sin * right).abs()
        rectangle = (along < radius) & (across < radius * (0.4 + 0.6 * u[4]))
        inside = torch.where(u[5] < 0.5, rectangle, down**2 + right**2 < radius**2)
        shared, own = (torch.randn(count, n, 1, 1, generator=generator) for n in (1, channels))
        colour = _GREY**0.5 * shared + (1 - _GREY) ** 0.5 * own
        images = torch.where(inside[:, None], colour, images)
    return images.clamp(-_CONTRAST, _CONTRAST)


@torch.no_grad()
def written(model: PreTrainedModel, count: int, length: int, generator: torch.Generator) -> Tensor:
    """Token ids ``[count, length]`` that a model writes from a random first token on, at temperature one."""
    ids, cache = _tokens(part_of(model.config, "text_config"), (count, 1), generator).to(model.device), None
    while ids.shape[1] < length:
        found = model(input_ids=ids[:, -1:], past_key_values=cache, use_cache=True)
        cache = found.past_key_values
        ids = torch.cat([ids, _drawn(model, found.logits[:, -1], generator)[:, None].to(ids)], 1)
    return ids.cpu()


@torch.no_grad()
def filled(model: PreTrainedModel, count: int, blank: Blank, generator: torch.Generator) -> Tensor:
    """Token ids ``[count, length]`` that a masked language model puts into a blank, at temperature one."""
    ids = torch.tensor(blank.ids).repeat(count, 1)
    free = (ids[0] == blank.mask).nonzero()[:, 0]
    special = torch.tensor(blank.special, device=model.device)
    for _ in range(DRAWN):
        order = free[torch.rand(count, len(free), generator=generator).argsort(1)]
        for places in order.split(-(-len(free) // _PARTS), 1):
            masked = ids.scatter(1, places, blank.mask)
            for some, at in zip(range(0, count, _ROWS), places.split(_ROWS), strict=True):
                logits = model(input_ids=masked[some : some + _ROWS].to(model.device)).logits
                logits = logits.take_along_dim(at[..., None].to(model.device), 1).index_fill(2, special, -torch.inf)
                ids[some : some + _ROWS].scatter_(1, at, _drawn(model, logits.flatten(0, 1), generator).view_as(at))
    return ids


def _drawn(model: PreTrainedModel, logits: Tensor, generator: torch.Generator) -> Tensor:
    """A token for every row of logits ``[rows, vocabulary]``.

    Raises:
        InputError: they are no numbers.
    """
    chances = logits.cpu().double().softmax(-1)
    if not chances.isfinite().all():
        raise InputError(f"{type(model).__name__}: what it writes is not finite: it overflows float32")
    return torch.multinomial(chances, 1, generator=generator)[:, 0]


def _tokens(config: PreTrainedConfig, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return torch.randint(config.vocab_size, shape, generator=generator)
