"""Pictures to pixel values."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.preprocessors import PREPROCESSOR
from cobasin.data.config import DataConfig
from cobasin.data.examples import Example
from cobasin.data.pictures import IMAGE_MODES, pixels_of
from cobasin.errors import InputError, one_line

_TO_ONE_SIZE = "say the size to cut out under 'crop', or resize the images"


class ImageInputs:
    """Examples to ``pixel_values`` [rows, channels, height, width].

    Pictures are cropped as the data's config says. Integer pixels are brought to [0, 1] and normalised as it says, or
    else put through the image processor in the model's folder. Floating ones are not scaled, and may
    go without either; to be normalised, they have to be in [0, 1].

    Args:
        sizes: the model's ``image_size`` and ``num_channels``.
    """

    def __init__(self, checkpoint: Checkpoint, data: DataConfig, sizes: dict[str, Any]):
        self.channels: int = sizes["num_channels"]
        self.size: tuple[int, int] = sizes["image_size"]
        # their positions are interpolated; the config has the size of the first training
        self.any_size = checkpoint.config.model_type.startswith("dinov2")
        self.crop, self.mean, self.std = data.crop, data.mean, data.std
        self.label, self.processor, self.file = checkpoint.label, None, None
        if self.mean and len(self.mean) not in (1, self.channels):
            raise InputError(f"mean and std have {len(self.mean)} values for {self.channels} channels")
        file = checkpoint.folder and checkpoint.folder / PREPROCESSOR
        if file and file.is_file() and not self.mean:
            self.processor, self.file = _processor(file.parent), file

    @property
    def digest(self) -> str:
        """What the pixels are made with, hashed."""
        said = repr((self.mean, self.std, self.crop)).encode()
        if self.file:
            said = self.file.read_bytes() + (said if self.crop else b"")
        return hashlib.sha256(said).hexdigest()

    def __call__(self, examples: Sequence[Example]) -> Tensor:
        """Raises InputError for a picture that cannot be read, or has another size than the model or batch."""
        made = [self._pixels(example["image"], example["where"]) for example in examples]
        height, width = made[0].shape[1:]
        for example, pixels in zip(examples, made, strict=True):
            if pixels.shape != made[0].shape:
                raise InputError(
                    f"{example['where']}: image is {pixels.shape[1]}x{pixels.shape[2]}, the first of its batch "
                    f"{height}x{width}; {_TO_ONE_SIZE}"
                )
        return torch.stack(made)

    def _pixels(self, image: np.ndarray | Path | bytes, where: str) -> Tensor:
        array = image if isinstance(image, np.ndarray) else self._decoded(image, where)
        array = self._cropped(array, where)
        integer = array.dtype == np.uint8
        as_they_are = self.processor is None and {*(self.mean or (0,))} == {0} and {*(self.std or (1,))} == {1}
        if not integer and not as_they_are and ((array < 0) | (array > 1)).any():
            raise InputError(
                f"{where}: image has pixels from {array.min():.4g} to {array.max():.4g}; expected floats from 0 to 1, "
                "or whole numbers (uint8) from 0 to 255, as they are normalised; of pixels that are normalised "
                "already, say mean: [0] and std: [1]"
            )
        if self.processor is not None:
            options = {} if integer else {"do_rescale": False}
            try:
                made = self.processor([array], return_tensors="pt", input_data_format="channels_last", **options)
                pixels = made["pixel_values"][0]
            except Exception as error:  # processors raise their own kinds
                raise InputError(f"{where}: image cannot be used as {self.file} says: {one_line(error)}") from error
        elif integer and self.mean is None:
            raise InputError(
                f"{self.label}: has no {PREPROCESSOR}; say how its pixels were normalised under 'mean' and 'std' (of "
                "pixels in [0, 1]; 0 and 1 where they were not)"
            )
        else:
            pixels = self._normalised(torch.tensor(array).movedim(2, 0).float() / (255 if integer else 1))
        if not self.any_size and tuple(pixels.shape[1:]) != self.size:
            height, width = pixels.shape[1:]
            hint = "" if self.processor else f"; {_TO_ONE_SIZE}"
            raise InputError(f"{where}: image is {height}x{width}, the model reads {self.size[0]}x{self.size[1]}{hint}")
        return pixels

    def _cropped(self, array: np.ndarray, where: str) -> np.ndarray:
        if self.crop is None:
            return array
        height, width = array.shape[:2]
        if min(height, width) < self.crop:
            raise InputError(f"{where}: image is {height}x{width}, smaller than the crop of {self.crop}")
        top, left = (height - self.crop) // 2, (width - self.crop) // 2
        return array[top : top + self.crop, left : left + self.crop]

    def _normalised(self, pixels: Tensor) -> Tensor:
        if self.mean is None or self.std is None:
            return pixels
        mean, std = (torch.tensor(numbers, dtype=pixels.dtype) for numbers in (self.mean, self.std))
        return (pixels - mean[:, None, None]) / std[:, None, None]

    def _decoded(self, image: Path | bytes, where: str) -> np.ndarray:
        """The pixels of a file [height, width, channels]."""
        from PIL import Image

        if self.channels not in IMAGE_MODES:
            raise InputError(f"{where}: image files have 1, 3 or 4 channels, the model reads {self.channels}")
        try:
            with Image.open(io.BytesIO(image) if isinstance(image, bytes) else image) as opened:
                return pixels_of(opened, self.channels, where)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise InputError(f"{where}: the image cannot be read: {one_line(error)}") from error


def _processor(folder: Path) -> Any:
    from transformers import AutoImageProcessor

    try:
        # of one kind, whatever is installed: their resampling differs
        return AutoImageProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False, backend="pil")
    except Exception as error:  # processors raise their own kinds
        raise InputError(f"{folder / PREPROCESSOR}: cannot be used: {one_line(error)}") from error
