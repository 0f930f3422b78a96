"""What the families of models are trained on, as batches."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset

from cobasin.checkpoints.output import publishing
from cobasin.errors import InputError

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
DEV_IMAGES = 5000  # the last training images; the smaller models are trained on them, too
MASKED = 0.15  # of the tokens of a masked language model (Devlin et al., 2019)


class Rows(Dataset):
    """A data set that makes whole batches, so that nothing is done row by row."""

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        """The batch of these rows: the model's inputs, and ``labels``."""
        raise NotImplementedError


@dataclass(frozen=True)
class Data:
    """What a model is trained on, and measured on meanwhile.

    Attributes:
        seen: whether the dev rows are trained on, too.
        vocabulary: tokens; None of images.
        special: what configs call special tokens, and which these are.
        beside: writes what goes with the weights into a model's folder.
    """

    train: Rows
    dev: Rows
    seen: bool = False
    vocabulary: int | None = None
    special: Mapping[str, int] = field(default_factory=dict)
    beside: Callable[[Path], object] | None = None


class Windows(Rows):
    """Windows of a text, for a causal language model.

    Args:
        ids: [tokens].
        length: tokens a window.
        stride: from the start of a window to that of the next one.
    """

    def __init__(self, ids: Tensor, length: int, stride: int):
        self.windows = ids.unfold(0, length, stride)  # a view, [windows, length]

    def __len__(self) -> int:
        return len(self.windows)

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        ids = self.windows[indices]
        return {"input_ids": ids, "labels": ids}


class Blocks(Windows):
    """Consecutive blocks of a text, in which the first token is not predicted.

    Not even counted: for the mean loss of some models, the Trainer counts all labels.
    """

    def __init__(self, ids: Tensor, length: int):
        super().__init__(ids, length, length)

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        batch = super().__getitems__(indices)
        return batch | {"labels": batch["labels"].index_fill(1, torch.tensor(0), -100)}


class MaskedWindows(Windows):
    """Windows between the tokenizer's ``cls`` and ``sep``, some tokens masked; with a seed, alike in every pass."""

    def __init__(self, ids: Tensor, length: int, stride: int, tokenizer: Any, seed: int | None = None):
        from transformers import DataCollatorForLanguageModeling

        super().__init__(ids, length - 2, stride)
        self.tokenizer, self.seed = tokenizer, seed
        self.masks = DataCollatorForLanguageModeling(tokenizer, mlm_probability=MASKED)

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        ids = pad(self.windows[indices], (1, 1))
        ids[:, 0], ids[:, -1] = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        special = torch.zeros_like(ids, dtype=torch.bool)
        special[:, [0, -1]] = True
        if self.seed is not None:
            self.masks.generator = torch.Generator().manual_seed(self.seed + indices[0])
        inputs, labels = self.masks.torch_mask_tokens(ids, special_tokens_mask=special)
        return {"input_ids": inputs, "labels": labels}


class Images(Rows):
    """Normalised squares of images: cut out at random and mirrored by chance, or cut out of the middle.

    Args:
        images: [rows, 3, height, width] of bytes.
        labels: [rows].
        side: of a square, in pixels.
        random: for training.
    """

    def __init__(self, images: Tensor, labels: Tensor, side: int, random: bool):
        self.labels, self.random = labels, random
        self.squares = images.unfold(2, side, 1).unfold(3, side, 1)  # a view, [rows, 3, down, across, side, side]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        rows, (down, across) = torch.tensor(indices), self.squares.shape[2:4]
        if self.random:
            squares = self.squares[rows, :, torch.randint(down, rows.shape), torch.randint(across, rows.shape)]
            mirrored = torch.rand(len(rows)) < 0.5
            squares[mirrored] = squares[mirrored].flip(-1)
        else:
            squares = self.squares[rows, :, down // 2, across // 2]
        mean, deviation = (torch.tensor(values)[:, None, None] for values in (MEAN, DEVIATION))
        return {"pixel_values": (squares / 255 - mean) / deviation, "labels": self.labels[rows]}


def shared_cifar10(shared: Path) -> Sequence[Any]:
    """Bytes [rows, height, width, channels] of the training images, and their classes; test images, and theirs.

    Raises:
        InputError: they are not among the shared data.
    """
    folder = _there(shared / "data" / "vision" / "cifar10_jpeg.npz").parents[1]
    return _loaded(_there(folder / "load.py"))


def unpacked_cifar10(shared: Path, folder: Path) -> Path:
    """A folder of npz files that is made where it is not there; ``dev`` are the last training images.

    Raises:
        InputError: they are not among the shared data.
    """
    if not folder.exists():
        images, labels, test, classes = shared_cifar10(shared)
        cut = len(labels) - min(DEV_IMAGES, len(labels) // 10)
        splits = {"train": (images[:cut], labels[:cut]), "dev": (images[cut:], labels[cut:]), "test": (test, classes)}
        with publishing(folder, overwrite=False, source=None) as partial:
            for split, (image, label) in splits.items():
                np.savez(partial / f"{split}.npz", image=image, label=label)
    return folder


@cache
def _loaded(loader: Path) -> Sequence[Any]:
    return runpy.run_path(str(loader))["cifar10"]()


def cifar10(shared: Path, side: int, padding: int, held_out: int) -> Data:
    """CIFAR-10's training images; dev rows are the last ``held_out``, or the last 5,000 that are trained on, too."""
    bytes_, classes, _, _ = shared_cifar10(shared)
    images, labels = torch.tensor(bytes_).permute(0, 3, 1, 2), torch.tensor(classes).long()
    if side > images.shape[-1]:
        raise InputError(f"config: image_size {side}; the images have {images.shape[-1]} pixels a side")
    trained, dev = len(labels) - held_out, held_out or DEV_IMAGES
    return Data(
        Images(pad(images[:trained], (padding,) * 4), labels[:trained], side, random=True),
        Images(images[-dev:], labels[-dev:], side, random=False),
        seen=not held_out,
    )


def tinyshakespeare(shared: Path, length: int, masked: bool) -> Data:
    """Plays of Shakespeare by characters, in windows from every place of the text; dev rows do not overlap."""
    folder = shared / "data" / "lm" / "tinyshakespeare"
    texts = [_there(folder / f"{split}.txt").read_text("utf-8") for split in ("train", "dev")]
    chars = sorted(set(texts[0]))
    if masked:
        tokenizer = characters(chars, length)
        train, dev = (torch.tensor(tokenizer.convert_tokens_to_ids(list(text))) for text in texts)
        return Data(
            MaskedWindows(train, length, 1, tokenizer),
            MaskedWindows(dev, length, length - 2, tokenizer, seed=0),
            vocabulary=len(tokenizer),
            beside=tokenizer.save_pretrained,
        )
    number = {char: i for i, char in enumerate(chars)}
    train, dev = (torch.tensor([number[char] for char in text]) for text in texts)
    return Data(
        Windows(train, length, 1),
        Blocks(dev, length),
        vocabulary=len(chars),
        beside=lambda out: (out / "chars.json").write_text(json.dumps(chars)),
    )


def characters(chars: Sequence[str], length: int) -> Any:
    """A tokenizer that reads text by characters, between ``[CLS]`` and ``[SEP]``."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    vocabulary = {token: i for i, token in enumerate([*special.values(), *chars])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=length, **special)


def _there(path: Path) -> Path:
    if not path.exists():
        raise InputError(f"{path}: no such file; give the folder that holds data/ with --shared")
    return path
