"""Rows as a model needs them: checked, and brought to one form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.limits import answer_length, written_vocabulary
from cobasin.data.config import DataConfig, Role
from cobasin.data.pictures import IMAGE_MODES, pixels_of
from cobasin.data.rows import Rows, check_text
from cobasin.data.tasks import IGNORED, Labels, Task, score
from cobasin.errors import InputError, shown
from cobasin.paths import expanded

Example = dict[str, Any]

# the roles that hold a text, the first that there is; and the one that holds what is predicted
_TEXT: tuple[Role, ...] = ("input_ids", "text", "tokens")
TARGETS: dict[Task, Role] = {
    "classification": "label",
    "image": "label",
    "regression": "label",
    "multilabel": "labels",
    "tokens": "tags",
    "causal_lm": "labels",
}


class Examples:
    """Examples of rows, made when they are asked for.

    An example says ``where`` it is from and has some of ``text``, ``text_b`` (str), ``tokens`` (list of str),
    ``input_ids`` (list of int), ``image`` (array, file, or a file's content) and ``target``: a class index, a
    number, a vector, a list of class indices, or the text (or its ids) that a decoder predicts. All have what the
    first row has.

    Args:
        reads: what the model reads, as `inputs_of` tells.
        length: tokens that given ids may have.
    """

    def __init__(
        self,
        rows: Rows,
        checkpoint: Checkpoint,
        task: Task,
        data: DataConfig,
        reads: Mapping[str, Mapping[str, Any]],
        length: int,
    ):
        self.rows, self.task, self.length = rows, task, length
        self.longest_answer = answer_length(checkpoint.config, length)
        self.vocabulary = reads.get("input_ids", {}).get("vocab_size", 0)
        self.channels = reads.get("pixel_values", {}).get("num_channels")
        self.decodes = "decoder_input_ids" in reads
        self.written = written_vocabulary(checkpoint.config) if self.decodes else 0
        self.labels = Labels.of(checkpoint, data.labels, data.threshold, TARGETS.get(task, "label"))
        self.annotated = None
        if data.annotated is not None:
            self.annotated = {self.labels.index(name, "'annotated'") for name in data.annotated}
        first = rows[0]
        self.roles: list[Role] = []
        if "input_ids" in reads:
            text = text_role(rows, task)
            self.roles.append(text)
            if text == "text" and "text_b" in first:
                self.roles.append("text_b")
        if "pixel_values" in reads:
            self.roles.append("image")
        self.target_is_text = isinstance(first.get("label"), str)
        self.wanted: Role | None = "label" if self.decodes else TARGETS.get(task)
        self.target: Role | None = self.wanted
        untagged = task == "tokens" and "text" in self.roles
        if not self.decodes and (self.target not in first or untagged):
            self.target = None
        if self.target:
            self.roles.append(self.target)
        read: list[Role] = ["text_b"] if "text" in self.roles else []
        if self.wanted and not untagged:
            read.append(self.wanted)
        self.absent: list[Role] = [role for role in read if role not in first]

    def __len__(self) -> int:
        return len(self.rows)

    def unlabelled(self) -> InputError:
        """That the first row has no column of what is predicted."""
        return self.rows.missing(0, self.wanted or "label")

    def __getitem__(self, index: int) -> Example:
        row, where = self.rows[index], self.rows.where(index)
        for role in self.roles:
            if role not in row:
                raise self.rows.missing(index, role)
        for role in self.absent:
            if row.get(role) is not None:
                raise InputError(
                    f"{where}: has {role}, which the first row has not; give it to all rows, or leave it out "
                    f"(columns: {{{role}: null}})"
                )
        example: Example = {"where": where}
        for role in self.roles:
            if role in ("text", "text_b"):
                example[role] = text_of(row[role], where, role)
            elif role == "tokens":
                example[role] = _tokens(row[role], where)
            elif role == "input_ids":
                example[role] = token_ids(row[role], row.get("attention_mask"), where, self.vocabulary, self.length)
            elif role == "image":
                example[role] = self._image(row[role], where)
        if self.target:
            words, value = example.get("tokens", example.get("input_ids", [])), row[self.target]
            if self.target == "tags" and "input_ids" in example:
                value = unpadded(value, row.get("attention_mask"))
            example["target"] = self._target(value, where, len(words))
        return example

    def _image(self, value: Any, where: str) -> np.ndarray | Path | bytes:
        """A file as it is; of an array, [height, width, channels] of uint8 or float."""
        if isinstance(value, (Path, bytes)):
            return value
        if isinstance(value, str):
            return self.rows.folder / expanded(value, f"{where}: image")
        if hasattr(value, "convert") and self.channels in IMAGE_MODES:  # of Pillow, perhaps with a palette
            value = pixels_of(value, self.channels, where)
        image = np.asarray(value) if hasattr(value, "__array_interface__") or hasattr(value, "__array__") else None
        numbers = image is not None and (image.dtype == np.uint8 or image.dtype.kind == "f")
        if image is None or not numbers or not image.size or image.ndim not in (2, 3):
            kind = shown(value) if image is None else f"{image.dtype} of shape {list(image.shape)}"
            raise InputError(f"{where}: image is {kind}; expected [height, width, channels] of uint8 or float")
        if not np.isfinite(image).all():
            raise InputError(f"{where}: image has NaN or infinite pixels")
        image = image[:, :, None] if image.ndim == 2 else image
        if image.shape[2] != self.channels:
            raise InputError(
                f"{where}: image has shape {list(image.shape)}; the model reads [height, width, {self.channels}]"
            )
        # torch takes no other byte order, no wider floats, and no view that is turned round, such as BGR to RGB
        native = np.dtype(np.uint8 if image.dtype == np.uint8 else f"f{min(image.dtype.itemsize, 8)}")
        return np.ascontiguousarray(image, native)

    def _target(self, value: Any, where: str, words: int) -> Any:
        if self.decodes:
            if self.target_is_text:
                return text_of(value, where, "label")
            return token_ids(value, None, where, self.written, self.longest_answer, "label")
        if self.task == "causal_lm":  # of a block
            return value
        if self.task == "regression":
            return score(value, where)
        if self.task == "multilabel":
            return self.labels.indicators(value, where, self.annotated)
        if self.task != "tokens":
            return self.labels.index(value, where)
        if not _is_list(value) or len(value) != words:
            count = f"{len(value)} tags" if _is_list(value) else f"tags {shown(value)}"
            raise InputError(f"{where}: has {words} tokens and {count}; expected a tag a token")
        return self.labels.of_tags(value, where)


def text_role(rows: Rows, task: Task) -> Role:
    """The role that holds what a model of text reads, out of those of the first row.

    Raises:
        InputError: there is none.
    """
    order = _TEXT[:2] if task in ("causal_lm", "masked_lm") else _TEXT
    found: list[Role] = [role for role in order if role in rows[0]]
    if not found:
        raise rows.missing(0, "text")
    return "tokens" if task == "tokens" and "tokens" in found else found[0]


def text_of(value: Any, where: str, role: str) -> str:
    """A text.

    Raises:
        InputError: it is none, or one that no tokenizer takes.
    """
    if not isinstance(value, str):
        raise InputError(f"{where}: {role} is {shown(value)}; expected a string")
    check_text(value, where, role)
    return str(value)


def token_ids(
    value: Any, mask: Any, where: str, vocabulary: int, longest: int | None = None, role: str = "input_ids"
) -> list[int]:
    """Token ids, those of the padding left out: where the mask is 0; of a label, -100 at the end.

    Raises:
        InputError: they are no list of ids of the vocabulary, or more than `longest`; the mask does not fit.
    """
    ids = _array(value)
    if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iu":
        raise InputError(f"{where}: {role} is {shown(value)}; expected a list of token ids")
    if mask is not None:
        ones = _array(mask)
        fits = ones.shape == ids.shape and ones.dtype.kind in "biuf" and bool(((ones == 0) | (ones == 1)).all())
        kept = np.flatnonzero(ones if fits else [])
        if not kept.size or kept[-1] - kept[0] + 1 != kept.size:
            raise InputError(
                f"{where}: attention_mask is {shown(mask)}; expected {ids.size} of 0 and 1, with the ones together"
            )
        ids = ids[kept]
    used = np.flatnonzero(ids != IGNORED)
    if role == "label" and used.size:
        ids = ids[: used[-1] + 1]
    bad = ids[(ids < 0) | (ids >= vocabulary)]
    if bad.size:
        raise InputError(f"{where}: token id {bad[0]} is outside the vocabulary of {vocabulary}")
    if longest is not None and ids.size > longest:
        raise InputError(f"{where}: has {ids.size} tokens in {role}; expected at most {longest}")
    return ids.tolist()


def unpadded(tags: Any, mask: Any) -> Any:
    """The tags of the tokens that a mask keeps, where there is a tag for each of its entries; else the tags."""
    if not _is_list(tags) or len(tags) != _array(mask).size:
        return tags
    return [tags[place] for place in np.flatnonzero(_array(mask))]


def _is_list(value: Any) -> bool:
    """Whether it is one, or an array of one axis: a text of NumPy's has the methods of an array, too, but no axis."""
    array = hasattr(value, "tolist") and hasattr(value, "__len__")
    return isinstance(value, (list, tuple)) or (array and getattr(value, "ndim", 1) == 1)


def _array(value: Any) -> np.ndarray:
    """A list of numbers; nothing of everything else."""
    try:
        return np.asarray(value if _is_list(value) else [])
    except ValueError:  # lists of different lengths in it
        return np.asarray([])


def _tokens(value: Any, where: str) -> list[str]:
    if not _is_list(value) or not len(value) or not all(isinstance(token, str) for token in value):
        raise InputError(f"{where}: tokens are {shown(value)}; expected a list of strings")
    for token in value:
        check_text(token, where, f"token {shown(token)}")
    return [str(token) for token in value]
