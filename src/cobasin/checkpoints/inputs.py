"""What a model reads, told from its config and class."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from cobasin.architectures.parts import sides
from cobasin.checkpoints.limits import part_of, writer_of
from cobasin.checkpoints.pictures_in_text import READ
from cobasin.checkpoints.running import model_class
from cobasin.errors import NotProbed

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# What the models of transformers call their inputs, and the config keys that say what these are made of.
INPUT_SIZES = {
    "input_ids": ("vocab_size",),
    "decoder_input_ids": ("vocab_size",),
    "pixel_values": ("image_size", "num_channels"),
    "patches": ("num_patches", "patch_size"),  # the pixel_values of a model that takes pictures of any size, cut up
    "picture": ("image_size",),  # the pixel_values of a model that always sees one beside a text
    "clips": ("num_frames", "image_size", "num_channels"),  # the pixel_values of a model that sees frames together
    "input_features": ("num_mel_bins", "max_source_positions"),
    "features": ("feature_projection_input_dim",),  # the input_features of a model that takes any number of frames
    "filter_banks": ("input_feat_per_channel", "input_channels"),  # the same, beside what a decoder reads
    "input_values": ("num_mel_bins", "max_length"),
    "waveform": ("conv_kernel", "conv_stride"),  # the input_values of a model that begins with convolutions
}

# What of these the code of a model says, by its type.
IN_CODE = {"moonshine": {"conv_kernel": (127, 7, 3), "conv_stride": (64, 3, 2)}}
WITHOUT_LOSS = ("aimv2",)  # the types of contrastive models that return no loss, by which others are known
BESIDE = ("vilt", "blip")  # the types of models that see a picture beside every text


def accepted_by(config: PreTrainedConfig, architecture: str) -> set[str]:
    """The keyword arguments of a model of this config and class.

    Raises:
        InputError: the class is unknown.
    """
    handed_on = {"token_type_ids"} if config.model_type == "encoder-decoder" else set[str]()
    return {*inspect.signature(model_class(architecture).forward).parameters} | handed_on


def input_sizes(config: PreTrainedConfig, architecture: str) -> dict[str, dict[str, Any]]:
    """What a model of this config and class reads: its inputs, each with its sizes by config key.

    Raises:
        InputError: the class is unknown.
        NotProbed: it takes inputs of another kind.
    """
    cls = model_class(architecture)
    accepted = inspect.signature(cls.forward).parameters
    names = [cls.main_input_name]
    if "decoder_input_ids" in accepted:
        names.append("decoder_input_ids")
    if config.model_type in BESIDE:
        names = ["input_ids", "picture"]
    # contrastive models need both; others with pictures beside text may go without
    if "return_loss" in accepted or config.model_type in WITHOUT_LOSS:
        names.append("pixel_values")
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        part = part_of(config, "vision_config" if name in ("pixel_values", "picture") else "text_config")
        part = writer_of(config) if name == "decoder_input_ids" else part
        kind, coded = _kind(config, part, name), IN_CODE.get(config.model_type, {})
        name = name if kind == "waveform" else kind
        found[name] = {key: coded.get(key, getattr(part, key, None)) for key in INPUT_SIZES.get(kind, ())}
        alone = name == "input_ids" and not {"pixel_values", "picture"} & {*names}
        foreign = alone and hasattr(config, "vision_config") and config.model_type not in READ
        if foreign or name not in INPUT_SIZES or None in found[name].values():
            raise NotProbed(
                f"{architecture}: reads {'pictures beside text' if foreign else name}; probes are text, images of a "
                "fixed size or cut into patches, clips, pictures beside text in a contrastive model or one that is "
                "declared, spectrograms of a fixed size, or waveforms"
            )
        if "image_size" in found[name]:
            found[name]["image_size"] = sides(found[name]["image_size"])
    return found


def _kind(config: PreTrainedConfig, part: PreTrainedConfig, name: str) -> str:
    """Which of `INPUT_SIZES` an input is, by what the config of a model says, and that of the part that reads it."""
    if name == "input_values" and (config.model_type in IN_CODE or hasattr(part, "conv_stride")):
        return "waveform"
    if name == "input_features":
        return next((kind for kind in ("features", "filter_banks") if hasattr(part, INPUT_SIZES[kind][0])), name)
    if name == "pixel_values" and hasattr(part, "num_patches") and not hasattr(part, "image_size"):
        return "patches"
    cut = hasattr(config, "patch_size") or hasattr(config, "tubelet_size")
    return "clips" if name == "pixel_values" and hasattr(config, "num_frames") and cut else name
