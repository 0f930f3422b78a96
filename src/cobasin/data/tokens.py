"""Text to token ids."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.limits import length_limit, pads_left, part_of
from cobasin.data.examples import Example
from cobasin.errors import InputError, one_line

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

CHAT_TEMPLATE = "chat_template.jinja"
# the files of which one is there, whatever the tokenizer; without any, transformers makes up an empty one
_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "spm.model",
    "sentencepiece.model",
    "source.spm",
    "target.spm",
    "target_vocab.json",
    "bpe.codes",
    "dict.txt",
    "normalizer.json",
    "tekken.json",
    "word_shape.json",
    "word_pronunciation.json",
    CHAT_TEMPLATE,
)
# what tokenizers say of every token beside its id: RoCBert's also how a character looks, and how it is read
_BESIDE = ("token_type_ids", "input_shape_ids", "input_pronunciation_ids")
UNLIMITED = 512  # tokens of a text, for models and tokenizers that take any number


def tokenizer_of(checkpoint: Checkpoint, words: bool = False, blocks: bool = False) -> Any:
    """The tokenizer in the folder of a checkpoint; for `words` that are split already, or to cut `blocks`.

    Raises:
        InputError: there is none, or it cannot be read.
    """
    from transformers import AutoTokenizer

    folder = checkpoint.folder
    if folder is None or not tokenizer_files(folder):
        raise InputError(
            f"{checkpoint.label}: has no tokenizer, which text needs, and masks: put its files into the folder, "
            "or give rows with input_ids (not to a masked language model)"
        )
    # byte-level tokenizers tell the first word of a text from the others
    options = {"add_prefix_space": True} if words else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)
    except Exception as error:  # tokenizers raise their own kinds
        raise InputError(f"{folder}: the tokenizer cannot be read: {one_line(error)}") from error
    if (words or blocks) and not tokenizer.is_fast:
        raise InputError(f"{folder}: {type(tokenizer).__name__} does not tell which token is of which word or block")
    return tokenizer


def tokenizer_files(folder: Path) -> list[Path]:
    """The files of a folder that a tokenizer is made of."""
    found = [folder / name for name in _FILES if (folder / name).is_file()]
    further = sorted((folder / "additional_chat_templates").glob("*.jinja"))  # of a tokenizer that has several
    return [*found, *further] if found else []


def has_tokenizer(checkpoint: Checkpoint) -> bool:
    """Whether a tokenizer lies in the folder of a checkpoint."""
    return checkpoint.folder is not None and bool(tokenizer_files(checkpoint.folder))


def tokenizer_digest(folder: Path) -> str:
    """SHA-256 of the tokenizer's files, in hexadecimal."""
    sha = hashlib.sha256()
    for file in tokenizer_files(folder):
        sha.update(f"{file.relative_to(folder).as_posix()}:{hashlib.sha256(file.read_bytes()).hexdigest()};".encode())
    return sha.hexdigest()


def has_masks(checkpoint: Checkpoint, tokenizer: Any) -> bool:
    """Whether the tokenizer has a mask, and no token that the model lacks."""
    return (
        tokenizer.mask_token_id is not None and len(tokenizer) <= part_of(checkpoint.config, "text_config").vocab_size
    )


def text_length(
    checkpoint: Checkpoint, tokenizer: Any, asked: int | None, usual: int | None, key: str = "max_length"
) -> int:
    """The tokens of a text: as many as asked for by a key; or as the model and its tokenizer take, `usual` at most.

    Raises:
        InputError: more are asked for than the model has positions.
    """
    limit = length_limit(checkpoint.config, checkpoint.architecture)
    if asked and limit and asked > limit:
        raise InputError(f"{key} {asked}: {checkpoint.label} reads {limit} tokens at most")
    most = [limit or UNLIMITED, usual, getattr(tokenizer, "model_max_length", None)]
    return asked or min(number for number in most if number)


def reads_looks(checkpoint: Checkpoint) -> bool:
    """Whether a model reads how characters look or sound, which their ids do not say."""
    return any(getattr(checkpoint.config, f"enable_{kind}", False) for kind in ("shape", "pronunciation"))


def padding_id(text: PreTrainedConfig, tokenizer: Any) -> int:
    """The id that rows are filled up with; models that look for padding look for the one in the config of its text."""
    candidates = (getattr(text, "pad_token_id", None), getattr(tokenizer, "pad_token_id", None))
    return next((one for one in candidates if isinstance(one, int) and 0 <= one < text.vocab_size), 0)


def padded(rows: Sequence[Sequence[int]], value: int, length: int = 0, left: bool = False) -> Tensor:
    """Rows of ids filled up on the right, or left: [rows, length], or the longest row's length if that is more."""
    length = max(length, *map(len, rows))
    more = ([value] * (length - len(row)) for row in rows)
    return torch.tensor([[*fill, *row] if left else [*row, *fill] for row, fill in zip(rows, more, strict=True)])


def known_ids(tokenizer: Any, ids: list[list[int]], places: Sequence[str], vocabulary: int) -> list[list[int]]:
    """What a tokenizer made of texts, all of which the model has.

    Raises:
        InputError: with the first text that has no tokens, or one that the model lacks.
    """
    for row, where in zip(ids, places, strict=True):
        if not row:
            raise InputError(f"{where}: a text without tokens; leave it out")
        if max(row) >= vocabulary:
            token = tokenizer.convert_ids_to_tokens(max(row))
            raise InputError(
                f"{where}: the tokenizer gives {token!r} the id {max(row)}, outside the model's vocabulary of "
                f"{vocabulary}: they do not belong together"
            )
    return ids


class TextInputs:
    """Examples to ``input_ids``, ``attention_mask`` and, of texts, what else the tokenizer says; all [rows, length].

    Args:
        tokenizer: None where the examples have ids.
        length: tokens that a text is cut to.
        taken: lengths that batches never have: the numbers of positions of pictures beside the texts, which could not
            be told from tokens inside the model.
    """

    def __init__(self, checkpoint: Checkpoint, tokenizer: Any, length: int, taken: Collection[int]):
        self.tokenizer, self.taken, self.most = tokenizer, taken, length
        self.length = next((one for one in range(length, 0, -1) if one not in taken), length)
        self.left = pads_left(checkpoint.config, checkpoint.architecture)
        text = part_of(checkpoint.config, "text_config")
        self.vocabulary, self.padding = text.vocab_size, padding_id(text, tokenizer)

    def __call__(self, examples: Sequence[Example]) -> tuple[dict[str, Tensor], list[list[int | None]]]:
        """The inputs, and of every token the word that it begins: its place, None for all other tokens."""
        if "input_ids" in examples[0]:
            ids = [example["input_ids"] for example in examples]
            return self._inputs(ids, {}), [list(range(len(row))) for row in ids]
        words = "tokens" in examples[0]
        texts = [example["tokens" if words else "text"] for example in examples]
        places = [example["where"] for example in examples]
        pairs = [example["text_b"] for example in examples] if "text_b" in examples[0] else None
        encoded = self.tokenizer(
            texts, pairs, is_split_into_words=words, truncation=True, max_length=self.length, padding=False
        )
        ids = known_ids(self.tokenizer, encoded["input_ids"], places, self.vocabulary)
        starts = [_starts(encoded.word_ids(row)) for row in range(len(ids))] if words else []
        return self._inputs(ids, {name: encoded[name] for name in _BESIDE if name in encoded}), starts

    def _inputs(self, ids: list[list[int]], beside: Mapping[str, list[list[int]]]) -> dict[str, Tensor]:
        longest = max(map(len, ids))
        # ids that are given may be as long as the model has positions, and can then be padded no further
        length = next((one for one in range(longest, self.most + 1) if one not in self.taken), longest)
        found = {"input_ids": (ids, self.padding), "attention_mask": ([[1] * len(row) for row in ids], 0)}
        found |= {name: (rows, 0) for name, rows in beside.items()}
        return {name: padded(rows, value, length, self.left) for name, (rows, value) in found.items()}


def _starts(words: list[int | None]) -> list[int | None]:
    """The word at its first token only."""
    return [word if word != before else None for word, before in zip(words, [None, *words], strict=False)]
