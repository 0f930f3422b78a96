"""What makes pixel values of a picture for a model, and in what those of several models differ."""

from __future__ import annotations

from collections.abc import Sequence

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.json_files import json_in
from cobasin.checkpoints.typed import Typed

PREPROCESSOR = "preprocessor_config.json"
# what it says of how a picture becomes pixel values
_PIXEL_KEYS = (
    "do_resize",
    "size",
    "resample",
    "do_center_crop",
    "crop_size",
    "do_rescale",
    "rescale_factor",
    "do_normalize",
    "image_mean",
    "image_std",
)


def other_pixels(models: Sequence[Typed]) -> list[str]:
    """A note where preprocessors make other pixel values of a picture than the first model's does."""
    found: list[str] = []
    first, *others = [(model.checkpoint, _pixel_settings(model.checkpoint)) for model in models]
    for model, settings in others:
        both = [key for key in _PIXEL_KEYS if key in first[1] and key in settings]
        if differ := [key for key in both if first[1][key] != settings[key]]:
            found.append(
                f"the preprocessors of {first[0].label} and {model.label} differ in {', '.join(differ)}: "
                "to the models, one picture is other pixel values, which nothing here makes up for"
            )
    return found


def _pixel_settings(checkpoint: Checkpoint) -> dict[str, object]:
    """What a model's preprocessor says; nothing of one that cannot be read, which is refused where it is used."""
    content = json_in(checkpoint.folder / PREPROCESSOR) if checkpoint.folder else None
    settings: dict[str, object] = content if isinstance(content, dict) else {}
    for key in ("size", "crop_size"):  # older files have one number for the side of a square
        if isinstance(said := settings.get(key), dict):
            named = [side for side in ("height", "width", *sorted(said)) if side in said]
            settings[key] = [*dict.fromkeys(str(said[side]) for side in named)]
        elif isinstance(said, int):
            settings[key] = [str(said)]
    return settings
