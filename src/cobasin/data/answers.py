"""What a decoder beside an encoder reads and predicts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import count
from typing import Any

from torch import Tensor

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.limits import answer_length, first_written, part_of, writer_of, written_vocabulary
from cobasin.data.examples import Example
from cobasin.data.tasks import IGNORED
from cobasin.data.tokens import known_ids, padded, padding_id
from cobasin.errors import InputError


class Answers:
    """Examples to ``decoder_input_ids``, ``decoder_attention_mask`` and labels; all [rows, length].

    Args:
        tokenizer: None where the examples have ids.
        length: tokens that a text is cut to.

    Raises:
        InputError: the config does not say what a decoder begins with.
    """

    def __init__(self, checkpoint: Checkpoint, tokenizer: Any, length: int):
        config = checkpoint.config
        self.tokenizer, self.start = tokenizer, first_written(config)
        if self.start is None and config.model_type not in ("mbart", "plbart"):  # there it is the language
            raise InputError(
                f"{checkpoint.label}: the config has no decoder_start_token_id, which a decoder begins with"
            )
        self.longest = answer_length(config, length)
        self.padding = padding_id(writer_of(config), tokenizer)
        self.vocabulary = written_vocabulary(config)

    def __call__(self, examples: Sequence[Example], taken: Collection[int]) -> tuple[dict[str, Tensor], Tensor]:
        """The decoder's inputs, the targets moved by one, and the targets; of a length that is not ``taken``."""
        targets = self._targets(examples)
        length = next(one for one in count(max(map(len, targets))) if one not in taken)
        moved = [[row[-1] if self.start is None else self.start, *row[:-1]] for row in targets]
        inputs = {
            "decoder_input_ids": padded(moved, self.padding, length),
            "decoder_attention_mask": padded([[1] * len(row) for row in targets], 0, length),
        }
        return inputs, padded(targets, IGNORED, length)

    def _targets(self, examples: Sequence[Example]) -> list[list[int]]:
        """The ids of what is predicted, as many as `answer_length` says."""
        targets = [example["target"] for example in examples]
        if not isinstance(targets[0], str):
            return targets
        encoded = self.tokenizer(text_target=targets, truncation=True, max_length=self.longest, padding=False)
        places = [example["where"] for example in examples]
        return known_ids(self.tokenizer, encoded["input_ids"], places, self.vocabulary)


def check_one_tokenizer(checkpoint: Checkpoint) -> None:
    """Refuse texts as answers where the decoder has other tokens than the encoder, whose tokenizer is in the folder.

    Raises:
        InputError: their vocabularies differ in size. Marian's tokenizer knows both.
    """
    config = checkpoint.config
    read, written = part_of(config, "text_config").vocab_size, writer_of(config).vocab_size
    if read != written:
        raise InputError(
            f"{checkpoint.label}: reads {read} tokens and writes others, {written}, and one tokenizer does not know "
            "both; give rows with input_ids, and lists of ids for labels"
        )
