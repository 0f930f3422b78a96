"""Inputs on which the functions of models are compared, made without any data."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from cobasin.architectures.parts import sides
from cobasin.architectures.vision import MASKED
from cobasin.checkpoints.inputs import accepted_by, input_sizes
from cobasin.checkpoints.limits import (
    COMPOSITES,
    SHIFTING,
    first_written,
    fixed_length,
    part_of,
    positions,
    segments,
    takes_no_padding,
    writer_of,
    written_vocabulary,
)
from cobasin.checkpoints.pictures_in_text import READ, normal, with_pictures

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

# Special tokens: some have places of their own in what is read, others stand anywhere in texts, or for what is no text.
PLACED = ("pad", "eos")
IN_TEXTS = ("bos", "cls", "sep", "mask", "unk")
OF_OTHERS = ("image", "video", "audio", "vision_start", "audio_start")
# Attributes of what counts the experts of a token beside a router: JetMoe's attention, DBRX's FFN.
BESIDE_ROUTERS = ("kv_projection_size", "moe_normalize_expert_weights")
# What else texts say of every token, with the config key of how many kinds there are: its language, look and sound.
KINDS = {
    "langs": "n_langs",
    "input_shape_ids": "shape_vocab_size",
    "input_pronunciation_ids": "pronunciation_vocab_size",
}
# What of a token is told at every depth of a tree, of which MarkupLM sees the upmost ones.
IN_TREE = {"xpath_tags_seq": "max_xpath_tag_unit_embeddings", "xpath_subs_seq": "max_xpath_subs_unit_embeddings"}
# The sizes of what is read beside the ids of tokens.
BESIDE_IDS = (*KINDS.values(), *IN_TREE.values(), "max_depth", "type_vocab_sizes", "entity_vocab_size", "languages")
# Tables of positions that are no embeddings, with the axis of their rows.
POSITIONS = {"position_embedding_table": 1, "pos_embedding": 0}


def probe(config: PreTrainedConfig, architecture: str, seed: int = 0) -> dict[str, Tensor]:
    """Inputs that a model of this config and class runs on.

    Token ids [2, length], special tokens among them, the second row a third shorter, with an attention mask and
    segments, length at most 32 where it is free; one row [1, length] where the class cannot take a padded batch;
    pixel values [2, channels, height, width], clips [2, frames, channels, height, width], mel features [2, bins,
    frames] or [2, frames, bins], spectrograms [2, frames, bins] or waveforms [2, samples] from a normal distribution.
    The same seed gives the same inputs.

    Raises:
        InputError: the class is unknown.
        NotProbed: it takes inputs of another kind.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = input_sizes(config, architecture)
    inputs: dict[str, Tensor] = {}
    if "input_ids" in sizes or "decoder_input_ids" in sizes:
        kept = {getattr(config, f"{kind}_token_id", None) for kind in OF_OTHERS}
        inputs |= _tokens(part_of(config, "text_config"), architecture, generator, kept)
    if config.model_type in COMPOSITES:  # whose decoder reads tokens of its own
        written = _tokens(writer_of(config), architecture, generator, set())
        inputs["decoder_input_ids"] = written["decoder_input_ids"]
    if pixels := sizes.get("pixel_values"):
        height, width = pixels["image_size"]
        inputs["pixel_values"] = normal(generator, 2, pixels["num_channels"], height, width)
        inputs["noise"] = patch_noise(2, config, height, width, generator)
        if getattr(config, "use_mask_token", False) or architecture.endswith(MASKED):
            inputs["bool_masked_pos"] = (torch.arange(inputs["noise"].shape[1]) % 3 == 1).expand(2, -1)
    if getattr(config, "visual_embed", False):  # LayoutLMv3 reads the picture of a page beside its words
        inputs["pixel_values"] = normal(generator, 2, config.num_channels, *sides(config.input_size))
    if picture := sizes.get("picture"):
        tower = part_of(config, "vision_config")
        inputs["pixel_values"] = normal(generator, 2, getattr(tower, "num_channels", 3), *picture["image_size"])
    if clips := sizes.get("clips"):
        inputs |= _clips(config, clips, generator)
    if "patches" in sizes:
        inputs |= _patches(part_of(config, "vision_config"), generator)
    if not {"input_features", "filter_banks", "input_values"}.isdisjoint(sizes):
        inputs.pop("attention_mask", None)  # it would be over frames or samples
    if mel := sizes.get("input_features"):
        frames = 2 * mel["max_source_positions"]  # the second convolution has stride two
        inputs["input_features"] = normal(generator, 2, mel["num_mel_bins"], frames)
    if features := sizes.get("features") or sizes.get("filter_banks"):
        inputs["input_features"] = normal(generator, 2, 16, math.prod(features.values()))
    if sounds := sizes.get("input_values"):
        shape = (sounds["max_length"], sounds["num_mel_bins"]) if "max_length" in sounds else (_samples(**sounds),)
        inputs["input_values"] = normal(generator, 2, *shape)
    if config.model_type in READ:
        inputs = with_pictures(inputs, config, generator)
    accepted = accepted_by(config, architecture)
    return {name: value for name, value in inputs.items() if name in accepted}


def patch_noise(rows: int, config: PreTrainedConfig, height: int, width: int, generator: torch.Generator) -> Tensor:
    """What says, [rows, patches], which patches a ViT-MAE hides; without it every run would hide others."""
    down, right = sides(getattr(config, "patch_size", None) or (height, width))
    return torch.rand(rows, (height // down) * (width // right), dtype=torch.float32, generator=generator)


def _patches(config: PreTrainedConfig, generator: torch.Generator) -> dict[str, Tensor]:
    """Pictures of two by three and three by three patches, the former with padding."""
    size = config.num_channels * config.patch_size**2
    return {
        "pixel_values": normal(generator, 2, 9, size),
        "pixel_attention_mask": (torch.arange(9) < torch.tensor([[6], [9]])).long(),
        "spatial_shapes": torch.tensor([[2, 3], [3, 3]]),
    }


def _clips(config: PreTrainedConfig, sizes: dict[str, Any], generator: torch.Generator) -> dict[str, Tensor]:
    """Clips [2, frames, channels, height, width], and which of their patches VideoMAE hides, as many of each."""
    frames, (height, width) = sizes["num_frames"], sizes["image_size"]
    clips = {"pixel_values": normal(generator, 2, frames, sizes["num_channels"], height, width)}
    if hasattr(config, "patch_size"):
        down, right = sides(config.patch_size)
        patches = frames // getattr(config, "tubelet_size", 1) * (height // down) * (width // right)
        clips["bool_masked_pos"] = (torch.arange(patches) % 3 == 1).expand(2, -1)
    return clips


def _samples(conv_kernel: Sequence[int], conv_stride: Sequence[int]) -> int:
    """How long a waveform is that convolutions make 16 frames of."""
    length = 16
    for kernel, stride in zip(reversed(conv_kernel), reversed(conv_stride), strict=True):
        length = (length - 1) * stride + kernel
    return length


def _tokens(
    config: PreTrainedConfig, architecture: str, generator: torch.Generator, kept: Collection[int | None]
) -> dict[str, Tensor]:
    """Token ids for encoder and decoder, none of which is among ``kept``, and the attention mask."""
    # a few less than there are positions: attention that picks some tokens of a text shall have some to leave out
    length = fixed_length(config) or max(2, min(32, positions(config) - 4))
    named = {kind: getattr(config, f"{kind}_token_id", None) for kind in PLACED + IN_TEXTS}
    start = first_written(config)
    specials = {*kept, start} | {i for value in named.values() for i in (value if isinstance(value, list) else [value])}
    written = written_vocabulary(config)

    def drawn(count: int) -> Tensor:
        ids = torch.tensor([i for i in range(count) if i not in specials] or range(count))
        return ids[torch.randint(len(ids), (2, length), generator=generator)]

    tokens, decoder_tokens = drawn(config.vocab_size), drawn(written)
    # Most texts have them: a fault in their rows must not go unseen.
    in_texts = dict.fromkeys(named[kind] for kind in IN_TEXTS if named[kind] not in (named["pad"], named["eos"]))
    seen = torch.tensor([i for i in in_texts if i in range(config.vocab_size)][: length - 1], dtype=torch.int64)
    tokens[0, : len(seen)] = seen
    if start is not None and start in range(written):
        decoder_tokens[:, 0] = start
    mask = torch.ones_like(tokens)
    mask[1, length - max(1, length // 3) :] = 0
    pad, eos = named["pad"], named["eos"]
    eos = eos[0] if isinstance(eos, list) else eos
    if eos == 2 and "CLIP" in architecture:
        eos = config.vocab_size - 1  # with a 2, that of old configs, CLIP looks for the largest id
    # Sequence classification with a decoder, and CLIP, read its position; decoders take it for padding, if it is that.
    if eos is not None and eos != pad and eos in range(config.vocab_size):
        tokens[torch.arange(2), mask.sum(1) - 1] = eos
    # Some configs have -1 for "no padding token", or one that their vocabulary has not.
    tokens[mask == 0] = pad if isinstance(pad, int) and 0 <= pad < config.vocab_size else 0
    inputs = {"input_ids": tokens, "attention_mask": mask} | _beside(config, length, generator)
    inputs["global_attention_mask"] = (torch.arange(length) == 0).long().repeat(2, 1)
    if not architecture.endswith(SHIFTING):
        inputs["decoder_input_ids"] = decoder_tokens
    if takes_no_padding(config, architecture) or fixed_length(config):
        inputs = {name: value[:1] for name, value in inputs.items()}
    if architecture.endswith("ForMultipleChoice"):
        inputs = {name: value[None] for name, value in inputs.items()}
    return inputs


def _beside(config: PreTrainedConfig, length: int, generator: torch.Generator) -> dict[str, Tensor]:
    """What models read of two texts beside the ids of tokens."""
    inputs: dict[str, Tensor] = {}
    if count := segments(config):
        inputs["token_type_ids"] = (torch.arange(length) * count // length).repeat(2, 1)
    if kinds := getattr(config, "type_vocab_sizes", ()):  # TAPAS reads a question, and a table behind it
        types = [torch.randint(count, (2, length), generator=generator) for count in kinds]
        inputs["token_type_ids"] = torch.stack(types, -1) * (torch.arange(length) >= length // 2)[:, None]
    if places := getattr(config, "max_2d_position_embeddings", 0):  # where a word stands on its page: two corners
        inputs["bbox"] = torch.randint(places, (2, length, 2, 2), generator=generator).sort(2).values.flatten(2)
    inputs |= _entities(config, length, generator)
    for name, key in KINDS.items():
        if kinds := getattr(config, key, 0):
            inputs[name] = torch.randint(kinds, (2, length), generator=generator)
    if languages := getattr(config, "languages", ()):  # X-MOD has adapters for each
        inputs["lang_ids"] = torch.randint(len(languages), (2, length), generator=generator)
    for name, key in IN_TREE.items():
        if kinds := getattr(config, key, 0):
            inputs[name] = torch.randint(kinds, (2, length, config.max_depth), generator=generator)
    return inputs


def _entities(config: PreTrainedConfig, length: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Entities that LUKE reads beside a text, with the words that each is made of; the first row has one less."""
    count, entities = getattr(config, "entity_vocab_size", 0), 4
    if not count:
        return {}
    starts = torch.randint(length - 1, (2, entities), generator=generator)
    places = torch.stack([starts, starts + 1, torch.full_like(starts, -1)], -1)
    places[:, 0, 1] = -1  # of one word
    return {
        "entity_ids": torch.randint(count, (2, entities), generator=generator),
        "entity_attention_mask": torch.ones(2, entities, dtype=torch.int64).tril(entities - 2),
        "entity_token_type_ids": (torch.arange(entities) * segments(config) // entities).repeat(2, 1),
        "entity_position_ids": places,
        "entity_start_positions": starts,
        "entity_end_positions": places[..., :2].amax(-1),
    }


Change = tuple[Any, str, Any]
"""An object, the name of one of its attributes, and what that shall be."""


@contextmanager
def changed(changes: Sequence[Change]) -> Iterator[None]:
    """Attributes as ``changes`` say, within the block."""
    own = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in own:
            setattr(owner, name, value)


def mixed_vocabulary(model: PreTrainedModel) -> list[Change]:
    """What adds a part of all rows of the vocabulary to every row that is looked up.

    ``E + 1 (c E)`` with weights c whose sum is 0. What a few tokens read then depends on every row, that of the padding
    among them, and two tables that differ by a map of their columns, or by one vector in all rows, go on to.
    """
    from transformers import PreTrainedModel

    tables: dict[Any, None] = {}
    for part in model.modules():
        with suppress(NotImplementedError):  # of CLIP as a whole; its text tower has one
            if isinstance(part, PreTrainedModel):
                tables[part.get_input_embeddings()] = None
                tables[getattr(part, "embed_tokens_per_layer", None)] = None
                tables[getattr(getattr(part, "entity_embeddings", None), "entity_embeddings", None)] = None
    places: list[tuple[Any, str, int]] = []
    if model.config.model_type in READ:  # small pictures meet a few rows of a table of positions that is resampled
        tables |= dict.fromkeys(part for part in model.modules() if isinstance(part, torch.nn.Embedding))
        places = [(part, *place) for part in model.modules() for place in POSITIONS.items()]
    places += [(table, "weight", 0) for table in tables if isinstance(table, torch.nn.Embedding)]
    mixed: dict[Tensor, Parameter] = {}  # of several tables that are one
    changes: list[Change] = []
    for part, name, axis in places:
        if isinstance(rows := getattr(part, name, None), Parameter):
            if rows not in mixed:
                added = rows.detach().movedim(axis, -1) @ row_weights(rows.shape[axis]).to(rows.dtype)
                mixed[rows] = Parameter(rows.detach() + added.unsqueeze(axis), requires_grad=False)
            changes.append((part, name, mixed[rows]))
    return changes


def all_experts(model: PreTrainedModel) -> list[Change]:
    """What lets every token go to all experts of a mixture, by the same router.

    Of many experts the few tokens of a probe meet some only.
    """
    changes: list[Change] = []
    router: Any
    for router in model.modules():
        if hasattr(router, "top_k") and hasattr(router, "num_experts"):
            changes.append((router, "top_k", router.num_experts))
            if hasattr(router, "topk_group"):  # a token may choose among the experts of so many groups
                changes.append((router, "topk_group", router.num_group))
        if any(hasattr(router, name) for name in BESIDE_ROUTERS):
            changes.append((router, "top_k", router.experts.num_experts))
    config = model.config.get_text_config()
    if getattr(config, "top_k_experts", None):  # Gemma 4's routers read it there
        changes.append((config, "top_k_experts", config.num_experts))
    return changes


def row_weights(count: int) -> Tensor:
    """Of so many rows; float64, of length 1, sum 0, and none of them near 0 where there are more than a few."""
    generator = torch.Generator().manual_seed(0)
    size, sign = torch.rand(2, count, generator=generator, dtype=torch.float64)
    weights = torch.where(sign < 0.5, -1.0, 1.0) * (1 + size)
    weights -= weights.mean()
    return weights / weights.norm().clamp(min=torch.finfo(weights.dtype).tiny)  # of one row nothing is left
