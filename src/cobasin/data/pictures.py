"""Pictures, as Pillow opens them, to pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cobasin.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # by number of channels


def pixels_of(picture: Image, channels: int, where: str) -> np.ndarray:
    """The pixels ``[height, width, channels]`` of uint8, turned as the camera was held.

    Raises:
        InputError: they have more than 8 bits, of which Pillow would cut off what does not fit.
    """
    from PIL import ImageOps

    if picture.mode.startswith(("I", "F")):
        raise InputError(
            f"{where}: the image has more than 8 bits a pixel (mode {picture.mode}); convert it to 8, or give arrays "
            "of float in an npz file"
        )
    array = np.array(ImageOps.exif_transpose(picture).convert(IMAGE_MODES[channels]))
    return array.reshape(*array.shape[:2], channels)
