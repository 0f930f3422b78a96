"""Examples to the inputs and labels of one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.inputs import accepted_by, input_sizes
from cobasin.checkpoints.limits import SHIFTING, part_of, picture_positions
from cobasin.checkpoints.probes import patch_noise
from cobasin.data.answers import Answers
from cobasin.data.config import DataConfig
from cobasin.data.examples import Example
from cobasin.data.images import ImageInputs
from cobasin.data.tasks import IGNORED, Task
from cobasin.data.tokens import TextInputs, has_masks, padded, tokenizer_digest
from cobasin.errors import InputError

MASKED = 0.15  # of the tokens of a masked language model (Devlin et al., 2019)


@dataclass(frozen=True)
class Batch:
    """One batch.

    Attributes:
        inputs: keyword arguments of the model's forward. Token ids are padded on the right, those of
            XLNet's classifiers left, with an ``attention_mask``; those that a decoder reads have another length than
            its encoder's, and a ``decoder_attention_mask``; those beside pictures another than these have positions.
        labels: of classification and images [rows] (class index); multi-label [rows, labels] (0, 1, NaN where not
            annotated); regression [rows]; tokens and language models [rows, length], -100 where nothing is predicted.
            Those of a causal model are the ids themselves where they are not -100: its loss shifts them. None where
            the rows have none.
    """

    inputs: dict[str, Tensor]
    labels: Tensor | None

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """The same on a device, with inputs that are no ids in a dtype."""
        inputs = {
            name: x.to(device, dtype) if x.is_floating_point() else x.to(device) for name, x in self.inputs.items()
        }
        return Batch(inputs, None if self.labels is None else self.labels.to(device))


def inputs_of(checkpoint: Checkpoint, task: Task) -> dict[str, dict[str, Any]]:
    """What is read from data for a model: its inputs, each with its sizes by config key.

    The decoder of a classifier, or of a model for questions, is not among them: it reads what the encoder reads.

    Raises:
        InputError: it reads something else than text and images.
    """
    reads = input_sizes(checkpoint.config, checkpoint.architecture)
    if not reads.keys() <= {"input_ids", "decoder_input_ids", "pixel_values"}:
        raise InputError(f"{checkpoint.label}: reads {', '.join(reads)}; data is text or images")
    if task not in ("seq2seq_lm", "features") or checkpoint.architecture.endswith(SHIFTING):
        reads.pop("decoder_input_ids", None)
    return reads


class Encoder:
    """Examples to a batch, for one model and tokenizer.

    Args:
        reads: as `inputs_of` tells.
        length: tokens that a text is cut to.
        seed: of the masks of a masked language model, and of the patches that a ViT-MAE hides, which are those of the
            batch's number.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        task: Task,
        reads: dict[str, dict[str, Any]],
        tokenizer: Any,
        data: DataConfig,
        length: int,
        seed: int,
    ):
        self.task, self.seed, self.tokenizer = task, seed, tokenizer
        self.taken = picture_positions(checkpoint.config) if "pixel_values" in reads and len(reads) > 1 else set[int]()
        self.text = TextInputs(checkpoint, tokenizer, length, self.taken) if "input_ids" in reads else None
        self.images = ImageInputs(checkpoint, data, reads["pixel_values"]) if "pixel_values" in reads else None
        self.answers = Answers(checkpoint, tokenizer, length) if "decoder_input_ids" in reads else None
        ends = checkpoint.config.is_encoder_decoder and checkpoint.architecture.endswith("ForSequenceClassification")
        self.end = checkpoint.config.eos_token_id if ends else None  # what such a classifier looks for in its text
        self.config = checkpoint.config
        self.accepted = accepted_by(checkpoint.config, checkpoint.architecture)
        self.settings = {
            "architecture": checkpoint.architecture,
            "task": task,
            "reads": reads,
            "length": length,
            "seed": seed,
            "padding": self.text and self.text.padding,
            "start": self.answers and self.answers.start,
            "tokenizer": tokenizer_digest(checkpoint.folder) if tokenizer and checkpoint.folder else None,
            "images": self.images and self.images.digest,
        }
        self.masks = _masks(tokenizer, checkpoint) if task == "masked_lm" else None

    def __call__(self, examples: Sequence[Example], number: int) -> Batch:
        """The batch of that number.

        Raises:
            InputError: a text has no tokens, or an image cannot be read or has the wrong size.
        """
        inputs: dict[str, Tensor] = {}
        labels, starts = None, []
        if self.text:
            inputs, starts = self.text(examples)
            if self.end is not None:
                _check_ends((inputs["input_ids"] == self.end).sum(1).tolist(), self.end, examples)
        if self.images:
            inputs["pixel_values"] = pixels = self.images(examples)
            if "noise" in self.accepted:
                height, width = pixels.shape[-2:]
                inputs["noise"] = patch_noise(len(pixels), self.config, height, width, self._generator(number))
        if self.task == "causal_lm":
            ids = [example.get("target", example["input_ids"]) for example in examples]
            labels = padded(ids, IGNORED, inputs["input_ids"].shape[1])
        elif self.task == "masked_lm":
            inputs["input_ids"], labels = self._masked(inputs, number)
        elif self.answers:
            taken = {inputs["input_ids"].shape[1]} if self.text else self.taken
            decoder, labels = self.answers(examples, taken)
            inputs |= decoder
            labels = labels if self.task == "seq2seq_lm" else None
        elif "target" in examples[0]:
            labels = self._labels([example["target"] for example in examples], starts)
        return Batch({name: value for name, value in inputs.items() if name in self.accepted}, labels)

    def _labels(self, targets: list[Any], starts: list[list[int | None]]) -> Tensor:
        if self.task != "tokens":
            return torch.tensor(targets, dtype=torch.float32 if isinstance(targets[0], (float, list)) else torch.int64)
        tags = [
            [IGNORED if word is None else row[word] for word in words]
            for row, words in zip(targets, starts, strict=True)
        ]
        return padded(tags, IGNORED)

    def _masked(self, inputs: dict[str, Tensor], number: int) -> tuple[Tensor, Tensor]:
        """Ids of which some are masked, and what they were; -100 for all others."""
        ids = inputs["input_ids"]
        special = torch.isin(ids, torch.tensor(self.tokenizer.all_special_ids)) | (inputs["attention_mask"] == 0)
        assert self.masks is not None
        self.masks.generator = self._generator(number)
        return self.masks.torch_mask_tokens(ids.clone(), special_tokens_mask=special)

    def _generator(self, number: int) -> torch.Generator:
        """Of what is random in the batch of that number."""
        return torch.Generator().manual_seed(np.random.SeedSequence([self.seed, number]).generate_state(1).item())


def _check_ends(counts: list[int], end: int, examples: Sequence[Example]) -> None:
    """Refuse rows that end a text more or less often than others: the models ask for the same number, at least one."""
    for count, example in zip(counts, examples, strict=True):
        if not count or count != counts[0]:
            wanted = f"{counts[0]}, as in {examples[0]['where']}" if counts[0] else "1 at least"
            raise InputError(
                f"{example['where']}: has {count} tokens of id {end}, which ends a text; expected {wanted}"
            )


def _masks(tokenizer: Any, checkpoint: Checkpoint) -> Any:
    from transformers import DataCollatorForLanguageModeling

    if not has_masks(checkpoint, tokenizer):
        vocabulary = part_of(checkpoint.config, "text_config").vocab_size
        raise InputError(
            f"{checkpoint.label}: the tokenizer has {len(tokenizer)} tokens and the mask {tokenizer.mask_token}; "
            f"a masked language model of {vocabulary} tokens needs one that fits"
        )
    return DataCollatorForLanguageModeling(tokenizer, mlm_probability=MASKED)
