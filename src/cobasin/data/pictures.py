"""Pictures, as Pillow opens them, to pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cobasin.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # by number of channels
_ORIENTATION = 0x0112  # of EXIF
# quarter turns to the left that undo it, after mirroring left and right or not
_TURNS = {2: (0, True), 3: (2, False), 4: (2, True), 5: (1, True), 6: (3, False), 7: (3, True), 8: (1, False)}


def pixels_of(picture: Image, channels: int, where: str) -> np.ndarray:
    """The pixels ``[height, width, channels]`` of uint8, turned as the camera was held.

    Raises:
        InputError: a grey picture has more than 8 bits a pixel, of which Pillow would cut off what does not fit.
    """
    if picture.mode.startswith(("I", "F")):
        raise InputError(
            f"{where}: the image has more than 8 bits a channel (mode {picture.mode}); convert it to 8, or give arrays "
            "of float in an npz file"
        )
    array = np.array(picture.convert(IMAGE_MODES[channels]))
    array = array.reshape(*array.shape[:2], channels)
    turn, mirrored = _TURNS.get(_orientation(picture), (0, False))
    return np.ascontiguousarray(np.rot90(array[:, ::-1] if mirrored else array, turn))


def _orientation(picture: Image) -> int:
    try:
        return picture.getexif().get(_ORIENTATION, 1)
    except Exception:  # Pillow reads all tags, and raises what comes for damaged ones; the picture may be whole
        return 1
