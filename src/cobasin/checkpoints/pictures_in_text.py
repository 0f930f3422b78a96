"""Pictures among the tokens of a text, as decoders with a tower for pictures read them: random ones, for probes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cobasin.architectures.parts import sides
from cobasin.architectures.vision import grid

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Numbers of a normal distribution, in float32 whatever the default dtype is."""
    return torch.randn(shape, generator=generator, dtype=torch.float32)


def _pixels(config: PreTrainedConfig, generator: torch.Generator) -> Tensor:
    """A picture a row, of the tower's size."""
    tower = config.vision_config
    return normal(generator, 2, tower.num_channels, *sides(tower.image_size))


def _averaged(config: PreTrainedConfig, generator: torch.Generator) -> tuple[dict[str, Tensor], int]:
    """Gemma 3: as many tokens as the config says."""
    return {"pixel_values": _pixels(config, generator)}, config.mm_tokens_per_image


def _encoded(config: PreTrainedConfig, generator: torch.Generator) -> tuple[dict[str, Tensor], int]:
    """T5Gemma 2: the same of its encoder."""
    return _averaged(config.encoder, generator)


def _all_patches(config: PreTrainedConfig, generator: torch.Generator) -> tuple[dict[str, Tensor], int]:
    """PaliGemma: a token a patch."""
    rows, columns = grid(config.vision_config)
    return {"pixel_values": _pixels(config, generator)}, rows * columns


def _squares(config: PreTrainedConfig, generator: torch.Generator) -> tuple[dict[str, Tensor], int]:
    """InternVL, Llama 4: a token a square of patches."""
    tower = config.vision_config
    ratio = config.downsample_ratio if config.model_type == "internvl" else tower.pixel_shuffle_ratio
    rows, columns = (round(count * ratio) for count in grid(tower))
    return {"pixel_values": _pixels(config, generator)}, rows * columns


def _shuffled(config: PreTrainedConfig, generator: torch.Generator) -> tuple[dict[str, Tensor], int]:
    """Command A Vision, Aya Vision: the same, of a side that the config says."""
    rows, columns = (count // config.downsample_factor for count in grid(config.vision_config))
    return {"pixel_values": _pixels(config, generator)}, rows * columns


def _cut_up(config: PreTrainedConfig, generator: torch.Generator) -> tuple[dict[str, Tensor], int]:
    """LFM2-VL: rows of patches, of pictures of two by two tokens, told in patches."""
    tower, side = config.vision_config, 2 * config.downsample_factor
    size = tower.num_channels * tower.patch_size**2
    return {
        "pixel_values": normal(generator, 2, side**2, size),
        "spatial_shapes": torch.full((2, 2), side),
        "pixel_attention_mask": torch.ones(2, side**2, dtype=torch.long),
    }, 4


def _some_a_text(config: PreTrainedConfig, generator: torch.Generator) -> tuple[dict[str, Tensor], int]:
    """Idefics 3: any number of pictures a text, here one; a token a square of patches."""
    rows, columns = (count // config.scale_factor for count in grid(config.vision_config))
    return {"pixel_values": _pixels(config, generator)[:, None]}, rows * columns


def _any_size(config: PreTrainedConfig, generator: torch.Generator) -> tuple[dict[str, Tensor], int]:
    """Mistral 3: pictures of any size, here of two by two tokens, told in pixels."""
    tower, merged = config.vision_config, getattr(config, "spatial_merge_size", 1)
    side = 2 * merged * tower.patch_size
    pixels = normal(generator, 2, tower.num_channels, side, side)
    return {"pixel_values": pixels, "image_sizes": torch.full((2, 2), side)}, 4


def _chosen(config: PreTrainedConfig) -> int:
    """LLaVA: how many tokens the tower makes of a picture of its size; the first may be left out."""
    rows, columns = grid(config.vision_config)
    first = config.vision_config.model_type == "clip_vision_model"
    strategy = getattr(config, "vision_feature_select_strategy", "default")  # VipLLaVA has no other
    return rows * columns + first - (strategy == "default")


def _all_chosen(config: PreTrainedConfig, generator: torch.Generator) -> tuple[dict[str, Tensor], int]:
    """LLaVA: a picture of the tower's size, or, of Pixtral's, of any."""
    if config.vision_config.model_type == "pixtral":
        return _any_size(config, generator)
    return {"pixel_values": _pixels(config, generator)}, _chosen(config)


def _tiles(config: PreTrainedConfig, generator: torch.Generator) -> tuple[dict[str, Tensor], int]:
    """LLaVA-NeXT and OneVision: the whole, and the tiles of the smallest grid, with a token behind each of its rows."""
    tower = config.vision_config
    rows, columns = grid(tower)
    height, width = min(config.image_grid_pinpoints, key=lambda size: size[0] * size[1])
    down, right = height // tower.image_size, width // tower.image_size
    pixels = normal(generator, 2, 1 + down * right, tower.num_channels, tower.image_size, tower.image_size)
    count = _chosen(config) + down * rows * (right * columns + 1)
    return {"pixel_values": pixels, "image_sizes": torch.tensor([[height, width]] * 2)}, count


def _patches(config: PreTrainedConfig, generator: torch.Generator) -> tuple[dict[str, Tensor], int]:
    """Qwen-VL, GLM: rows of patches, of pictures of two by two tokens, told in patches."""
    tower, side = config.vision_config, 2 * config.vision_config.spatial_merge_size
    down, right = sides(tower.patch_size)
    size = tower.in_channels * tower.temporal_patch_size * down * right
    pixels = normal(generator, 2 * side**2, size)
    return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, side, side]] * 2)}, 4


def _apart(config: PreTrainedConfig, generator: torch.Generator) -> tuple[dict[str, Tensor], int]:
    """PaddleOCR-VL: the same, with its channels, rows and columns."""
    tower, side = config.vision_config, 2 * config.vision_config.spatial_merge_size
    pixels = normal(generator, 2 * side**2, tower.num_channels, *sides(tower.patch_size))
    return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, side, side]] * 2)}, 4


def _placed(config: PreTrainedConfig, generator: torch.Generator) -> tuple[dict[str, Tensor], int]:
    """Gemma 4: rows of patches with their places, of pictures of two by two tokens; Unified has a token a patch."""
    tower, merged = config.vision_config, config.vision_config.pooling_kernel_size
    side, width = (
        (2, merged * tower.patch_size) if config.model_type == "gemma4_unified" else (2 * merged, tower.patch_size)
    )
    pixels = torch.rand(2, side**2, 3 * width**2, generator=generator, dtype=torch.float32)
    places = torch.stack([torch.arange(side).repeat(side), torch.arange(side).repeat_interleave(side)], -1)
    return {"pixel_values": pixels, "image_position_ids": places.expand(2, -1, -1)}, 4


def _waves(config: PreTrainedConfig, generator: torch.Generator) -> tuple[dict[str, Tensor], int]:
    """Gemma 4 Unified: a piece of the wave a token."""
    pieces = normal(generator, 2, 3, config.audio_config.audio_embed_dim)
    return {"input_features": pieces, "input_features_mask": torch.ones(2, 3, dtype=torch.bool)}, 3


def _spectrogram(config: PreTrainedConfig, generator: torch.Generator) -> tuple[dict[str, Tensor], int]:
    """Gemma 4: four frames of a spectrogram a token, whose bins are as many as the first convolution's channels."""
    bins = config.audio_config.subsampling_conv_channels[0]
    frames = normal(generator, 2, 20, bins)
    return {"input_features": frames, "input_features_mask": torch.ones(2, 20, dtype=torch.bool)}, 5


def _frames(config: PreTrainedConfig, generator: torch.Generator) -> tuple[dict[str, Tensor], int]:
    """Voxtral, Qwen2-Audio, Qwen2.5-Omni: a spectrogram as long as the encoder, of which convolutions leave half."""
    ear = config.audio_config
    frames = 2 * ear.max_source_positions
    merged = (
        2 if config.model_type in ("qwen2_audio", "qwen2_5_omni_thinker") else ear.intermediate_size // ear.hidden_size
    )
    return {
        "input_features": normal(generator, 2, ear.num_mel_bins, frames),
        "feature_attention_mask": torch.ones(2, frames, dtype=torch.long),
    }, ear.max_source_positions // merged


def _pieces(config: PreTrainedConfig, generator: torch.Generator) -> tuple[dict[str, Tensor], int]:
    """Qwen3-ASR: two pieces of a spectrogram, of which three convolutions leave every eighth frame."""
    ear = config.audio_config
    frames = 4 * ear.n_window
    return {
        "input_features": normal(generator, 2, ear.num_mel_bins, frames),
        "input_features_mask": torch.ones(2, frames, dtype=torch.long),
    }, 2 * -(-2 * ear.n_window // 8)


def _nothing(config: PreTrainedConfig, generator: torch.Generator) -> tuple[dict[str, Tensor], int]:
    """Models that hear only."""
    return {}, 0


def _beside(config: PreTrainedConfig, generator: torch.Generator) -> tuple[dict[str, Tensor], int]:
    """Llama 3.2: tiles of one picture a text, which layers look at; of the first ratio, and of the last."""
    tower = config.vision_config
    pixels = normal(generator, 2, 1, tower.max_num_tiles, tower.num_channels, *sides(tower.image_size))
    ratios = tower.supported_aspect_ratios
    used = torch.tensor([[down * right] for down, right in (ratios[0], ratios[-1])])
    return {
        "pixel_values": pixels,
        "aspect_ratio_ids": torch.tensor([[1], [len(ratios)]]),
        "aspect_ratio_mask": (torch.arange(tower.max_num_tiles) < used).long()[:, None],
    }, 1


def _looked_at(config: PreTrainedConfig, generator: torch.Generator) -> tuple[dict[str, Tensor], int]:
    """Llama 3.2's decoder alone: what its layers look at, and no token."""
    return {"cross_attention_states": normal(generator, 2, 4, config.hidden_size)}, 0


READ = {
    "gemma3": _averaged,
    "t5gemma2": _encoded,
    "paligemma": _all_patches,
    "idefics3": _some_a_text,
    "smolvlm": _some_a_text,
    "mistral3": _any_size,
    "mistral_large4": _any_size,
    "llava": _all_chosen,
    "llava_next": _tiles,
    "llava_next_video": _tiles,
    "llava_onevision": _tiles,
    "vipllava": _all_chosen,
    "qwen2_vl": _patches,
    "qwen2_5_vl": _patches,
    "qwen2_5_omni_thinker": _patches,
    "qwen3_vl": _patches,
    "qwen3_vl_moe": _patches,
    "qwen3_5": _patches,
    "qwen3_5_moe": _patches,
    "glm4v": _patches,
    "glm4v_moe": _patches,
    "glm46v": _patches,
    "paddleocr_vl": _apart,
    "gemma4": _placed,
    "gemma4_unified": _placed,
    "embedding_gemma2": _placed,
    "llama4": _squares,
    "internvl": _squares,
    "cohere2_vision": _shuffled,
    "aya_vision": _shuffled,
    "lfm2_vl": _cut_up,
    "voxtral": _nothing,
    "qwen2_audio": _nothing,
    "qwen3_asr": _nothing,
    "mllama": _beside,
    "mllama_text_model": _looked_at,
}
"""What makes pictures, and says of how many tokens one is, by the model's type."""
HEARD = {
    "gemma4": _spectrogram,
    "embedding_gemma2": _spectrogram,
    "gemma4_unified": _waves,
    "voxtral": _frames,
    "qwen2_audio": _frames,
    "qwen2_5_omni_thinker": _frames,
    "qwen3_asr": _pieces,
}
"""The same of sounds, of models that have a part for them."""


def with_pictures(tokens: dict[str, Tensor], config: PreTrainedConfig, generator: torch.Generator) -> dict[str, Tensor]:
    """Token ids [2, length], with their mask, as inputs in each row of which a picture begins at the second token.

    A sound follows it where the model has a part for sounds.
    Logits are asked for behind tokens of the text: a picture of PaliGemma has up to 4,096 tokens, a vocabulary 257,216.
    """
    pictures, count = READ[config.model_type](config, generator)
    ids, mask = tokens["input_ids"], tokens["attention_mask"]
    picture = getattr(config, "image_token_id", -1)  # a decoder alone has none
    placed = torch.full((2, count), picture)
    if getattr(config, "audio_config", None) is not None:
        sounds, count = HEARD[config.model_type](config, generator)
        pictures |= sounds
        placed = torch.cat([placed, torch.full((2, count), config.audio_token_id)], 1)
    ids = torch.cat([ids[:, :1], placed, ids[:, 1:]], 1)
    seen = (ids == picture).long()
    if config.is_encoder_decoder:  # the decoder of a classifier reads nothing of its own
        asked = {name: own for name, own in tokens.items() if name == "decoder_input_ids"}
    else:
        asked = {"logits_to_keep": (seen[0] == 0).nonzero()[:, 0]}
    return {
        **pictures,
        "input_ids": ids,
        "attention_mask": torch.cat([mask[:, :1], torch.ones_like(placed), mask[:, 1:]], 1),
        "token_type_ids": seen,
        "mm_token_type_ids": seen,
        **asked,
    }
