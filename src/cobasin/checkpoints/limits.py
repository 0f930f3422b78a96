"""What a config says of the texts that a model reads and writes: how long they are, and of which tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def part_of(config: PreTrainedConfig, name: str) -> PreTrainedConfig:
    """The config of one tower of a model, the model's own where it has one tower."""
    return getattr(config, name, None) or config


def positions(config: PreTrainedConfig) -> int:
    """The rows of the position table, the decoder's where only that is made of tokens; 512 where there is no limit.

    Of LED, whose tables differ, those that both have. XLNet, which has no table, says -1.
    """
    text = part_of(config, "text_config")
    limits = (getattr(text, name, None) for name in ("max_position_embeddings", "max_target_positions"))
    both = [getattr(text, f"max_{side}_position_embeddings", None) for side in ("encoder", "decoder")]
    return next((rows for rows in limits if rows and rows > 0), None) or min(filter(None, both), default=512)


def fixed_length(config: PreTrainedConfig) -> int | None:
    """How long every text has to be, where it is cut into as many parts as Nyströmformer has landmarks."""
    length = getattr(config, "segment_means_seq_len", None)
    return length if length != getattr(config, "num_landmarks", None) else None


def first_written(config: PreTrainedConfig) -> int | None:
    """The token that a decoder begins with, where a config says it; T5Gemma says it as that of its decoder's texts."""
    start = getattr(config, "decoder_start_token_id", None)
    return getattr(getattr(config, "decoder", None), "bos_token_id", None) if start is None else start


def takes_no_padding(config: PreTrainedConfig, architecture: str) -> bool:
    """Whether a class finds the last token of a row by the padding token, and the config has none."""
    return architecture.endswith("ForSequenceClassification") and getattr(config, "pad_token_id", None) is None


def pads_left(config: PreTrainedConfig, architecture: str) -> bool:
    """Whether a class takes the last position of a row for its last token; XLNet has no positions that this moves."""
    return architecture == "XLNetForSequenceClassification" and config.summary_type in ("last", "cls_index")


def counts_padding(config: PreTrainedConfig, architecture: str) -> bool:
    """Whether a class makes one vector of a text from positions that may be padding, on whichever side that is."""
    summarised = config.model_type in ("xlm", "flaubert", "xlnet") and architecture.endswith(
        "ForSequenceClassification"
    )
    return summarised and config.summary_type != "first" and not pads_left(config, architecture)


def written_vocabulary(config: PreTrainedConfig) -> int:
    """How many tokens a model writes, or compares its answers with: Marian may read others than it writes."""
    text = part_of(config, "text_config")
    return getattr(text, "decoder_vocab_size", None) or text.vocab_size
