"""What a config says of the texts that a model reads and writes: how long they are, and of which tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cobasin.architectures.vision import grid

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


# What the towers for texts and pictures are called in models that are made of an encoder and a decoder of any type.
COMPOSITES = {
    "encoder-decoder": {"text_config": "encoder"},
    "vision-encoder-decoder": {"vision_config": "encoder", "text_config": "decoder"},
}
# Classes whose decoder, where they have one, reads what the encoder reads.
SHIFTING = ("ForSequenceClassification", "ForQuestionAnswering")
# Families whose texts begin at the position behind the number of the padding token.
_BEHIND_PADDING = (
    "roberta",
    "camembert",
    "longformer",
    "data2vec-text",
    "mpnet",
    "esm",
    "layoutlmv3",
    "altclip",
    "luke",
    "markuplm",
    "xmod",
)

_TABLES = ("max_position_embeddings", "max_seq_len")  # positions that there are; the second says it of MPT's ALiBi


def part_of(config: PreTrainedConfig, name: str) -> PreTrainedConfig:
    """The config of one tower of a model, the model's own where it has one tower."""
    return getattr(config, COMPOSITES.get(config.model_type, {}).get(name, name), None) or config


def writer_of(config: PreTrainedConfig) -> PreTrainedConfig:
    """The config of what writes texts, or reads them where nothing writes."""
    return config.decoder if config.model_type in COMPOSITES else part_of(config, "text_config")


def positions(config: PreTrainedConfig) -> int:
    """The tokens that have positions, the decoder's where only that is made of tokens; 512 where there is no limit.

    Of LED, whose tables differ, and of a composite those that both have. XLNet, which has no table, says -1.
    """
    return min(map(_positions_of, (part_of(config, "text_config"), writer_of(config))))


def _positions_of(text: PreTrainedConfig) -> int:
    both = [getattr(text, f"max_{side}_position_embeddings", None) for side in ("encoder", "decoder")]
    one = _tokens_at_most(text) or getattr(text, "max_target_positions", None)
    return one or min(filter(None, both), default=512)


def fixed_length(config: PreTrainedConfig) -> int | None:
    """How long every text has to be, where it is cut into as many parts as Nyströmformer has landmarks."""
    length = getattr(config, "segment_means_seq_len", None)
    return length if length != getattr(config, "num_landmarks", None) else None


def length_limit(config: PreTrainedConfig, architecture: str) -> int | None:
    """The tokens that a model reads at most, or writes where it reads none; None where its positions are relative."""
    text = part_of(config, "text_config")
    if hasattr(text, "max_encoder_position_embeddings"):  # LED, whose decoder may read what the encoder reads
        shifts = architecture.endswith(SHIFTING)
        return positions(text) if shifts else text.max_encoder_position_embeddings
    return _tokens_at_most(text)


def _tokens_at_most(text: PreTrainedConfig) -> int | None:
    rows = next((rows for name in _TABLES if (rows := getattr(text, name, None))), None)
    rotary = getattr(text, "position_embedding_type", None) == "rotary"  # of ESM-2, which looks no position up
    if rows and not rotary and any(family in text.model_type for family in _BEHIND_PADDING):
        padding = 1 if text.model_type == "mpnet" else text.pad_token_id or 0  # MPNet's is 1, whatever its config says
        rows -= padding + 1  # rows of the table up to the padding token's are no positions
    return rows if rows and rows > 0 else None


def answer_length(config: PreTrainedConfig, length: int) -> int:
    """The tokens that an answer has at most, where a text has ``length``: one is left for what begins or pads it."""
    rows = getattr(config, "max_decoder_position_embeddings", None)  # LED's decoder has a table of its own
    most = min(length, rows or _tokens_at_most(writer_of(config)) or length)
    taken = picture_positions(config) if config.model_type == "vision-encoder-decoder" else ()  # see TextInputs
    return next((one for one in range(most, 0, -1) if one not in taken), most) - 1


def picture_positions(config: PreTrainedConfig) -> set[int]:
    """How many positions a picture may have in the model: one for every patch, with or without one for the class.

    DeiT has a further one for its teacher; Swin joins four patches to one from stage to stage. None that is known where
    the config has no patches.
    """
    tower, found = part_of(config, "vision_config"), set[int]()
    if getattr(tower, "patch_size", None) is None:
        return found
    rows, columns = grid(tower)
    for _ in getattr(tower, "depths", [1]):
        found |= {rows * columns + more for more in range(3 if tower.model_type == "deit" else 2)}
        rows, columns = -(-rows // 2), -(-columns // 2)
    return found


def special_token(config: PreTrainedConfig, kind: str) -> int | list[int] | None:
    """The id of a token such as ``eos``, or its ids; a composite may leave it to the config of what writes."""
    own = getattr(config, f"{kind}_token_id", None)
    return getattr(writer_of(config), f"{kind}_token_id", None) if own is None else own


def first_written(config: PreTrainedConfig) -> int | None:
    """The token that a decoder begins with, where a config says it.

    T5Gemma says it as that of its decoder's texts, a composite there, too, if not itself.
    """
    decoder = getattr(config, "decoder", None)
    said = (getattr(part, "decoder_start_token_id", None) for part in (config, decoder))
    start = next((token for token in said if token is not None), None)
    return getattr(decoder, "bos_token_id", None) if start is None else start


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
    text = writer_of(config)
    return getattr(text, "decoder_vocab_size", None) or text.vocab_size


def segments(config: PreTrainedConfig) -> int:
    """How many kinds of segments a text may have; 0 where they are not told apart.

    XLNet has no table of them: it asks whether two tokens are of one segment.
    """
    if config.model_type == "xlnet":
        return 2
    return getattr(part_of(config, "text_config"), "type_vocab_size", None) or 0
