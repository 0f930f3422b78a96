"""What a model is trained for, and its labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.limits import fixed_length
from cobasin.checkpoints.pictures_in_text import READ
from cobasin.data.rows import Numeral
from cobasin.errors import InputError, shown

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

Task = Literal[
    "classification",
    "multilabel",
    "regression",
    "tokens",
    "causal_lm",
    "masked_lm",
    "seq2seq_lm",
    "image",
    "features",
]

_ENDINGS: dict[str, Task] = {
    "ForSequenceClassification": "classification",
    "ForImageClassification": "image",
    "ForImageClassificationWithTeacher": "image",
    "ForTokenClassification": "tokens",
    "ForCausalLM": "causal_lm",
    "WithLMHeadModel": "masked_lm",  # of XLM and FlauBERT
    "LMHeadModel": "causal_lm",
    "ForMaskedLM": "masked_lm",
    "ForConditionalGeneration": "seq2seq_lm",
    "MarianMTModel": "seq2seq_lm",
    "EncoderDecoderModel": "seq2seq_lm",
    "BertGenerationDecoder": "causal_lm",
}
_READING = {"tapas": "reads tables", "markuplm": "reads pages"}  # by type of model
IGNORED = -100  # what the losses of transformers leave out
LABELS_LISTED = 30
DIGITS = 9  # of an index


def task_of(checkpoint: Checkpoint) -> Task:
    """The task of a model, told from its class and config as transformers tells its loss.

    Text and image classifiers with several labels a row are ``multilabel``, those with one number as output
    ``regression``; models without one of the usual heads have ``features``.

    Raises:
        InputError: the class is of no task that rows are read for.
    """
    return task_of_class(checkpoint.architecture, checkpoint.config, checkpoint.label)


def task_of_class(name: str, config: PreTrainedConfig, label: str) -> Task:
    """The same of the class of that name with a config, which messages call by a label."""
    found: list[Task] = [task for ending, task in _ENDINGS.items() if name.endswith(ending)]
    task: Task = found[0] if found else "features"
    if task == "seq2seq_lm" and config.model_type in READ and not config.is_encoder_decoder:
        return "causal_lm"  # of texts without pictures
    if task == "masked_lm" and getattr(config, "causal", False):
        return "causal_lm"  # an XLM that looks back only
    reading = _beside_rows(name, config)
    if reading or (task == "seq2seq_lm" and not config.is_encoder_decoder):
        raise InputError(
            f"{label}: no data is read or made up for a {name}{f', which {reading}' if reading else ''}; "
            "match and merge it by weights, with nothing that runs models on data"
        )
    if task not in ("classification", "image"):
        return task
    problem = config.problem_type
    if problem == "multi_label_classification":
        return "multilabel"
    if problem == "regression" and config.num_labels != 1:
        raise InputError(f"{label}: a regression of {config.num_labels} numbers; only one is supported")
    return "regression" if config.num_labels == 1 else task


def _beside_rows(name: str, config: PreTrainedConfig) -> str | None:
    """What a class reads or asks for that no row of a data set says, if there is anything."""
    if name.endswith("ForMultipleChoice"):
        return "chooses among several texts"
    if "ForEntity" in name:
        return "reads entities"
    if name == "XLNetLMHeadModel":
        return "sees what it predicts unless it is told an order"
    if config.model_type == "xmod" and config.default_language is None:
        return "names no default_language"
    if length := fixed_length(config):
        return f"reads texts of {length} tokens only"
    return _READING.get(config.model_type)


TAG_PREFIXES = tuple(f"{letter}-" for letter in "BIESLU")
"""Of the tags of spans, in the schemes IOB, IOBES and BILOU."""


@dataclass(frozen=True)
class Labels:
    """The labels of a model, and what a data set calls them.

    Attributes:
        ids: label to class index, as the config has it in ``label2id``, which may be of another model.
        names: class index to label.
        count: number of classes.
        renamed: what the data set says to what the model says (name or index).
        threshold: the score above which a label is on.
        role: that labels of this kind have in a row.
    """

    ids: Mapping[str, Any]
    names: Mapping[int, str]
    count: int
    renamed: Mapping[str, str | int]
    threshold: float = 0.0
    role: str = "label"

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        renamed: Mapping[str | int, str | int],
        threshold: float = 0.0,
        role: str = "label",
    ) -> Labels:
        """The labels that a config names."""
        config = checkpoint.config
        names = {int(index): str(name) for index, name in (config.id2label or {}).items()}
        ids: dict[str, Any] = {name: index for index, name in names.items()}
        ids |= {str(name): index for name, index in (config.label2id or {}).items()}
        count = config.num_labels or 0
        return cls(ids, names, count, {str(old): new for old, new in renamed.items()}, threshold, role)

    @cached_property
    def numbered(self) -> bool:
        """Whether some labels are called by other numbers than their indices, so that a bare number says neither."""
        return any(name.isdecimal() and int(name) != index for index, name in self.names.items())

    def index(self, value: Any, where: str) -> int:
        """The class index of a label: a name (as it is written), an index, or what ``renamed`` makes one.

        A boolean is the name ``True`` or ``true`` where ``renamed`` or the model has it, and an index otherwise.

        Raises:
            InputError: the model has no such label, or its config says two things of it.
        """
        if isinstance(value, (bool, np.bool_)):
            value = self._of_boolean(value)
        label = self.renamed.get(str(value), value)
        asked = str(value) in self.renamed
        prefixed = isinstance(value, str) and value not in self.renamed and value[:2] in TAG_PREFIXES
        if prefixed and isinstance(name := self.renamed.get(value[2:]), str):
            label = value[:2] + name
        if isinstance(label, str):
            if label in self.ids:
                return self._named(label, where)
            if isinstance(label, Numeral):
                raise InputError(
                    f"{where}: class {shown(str(label))} of the data set is a number, but not its place among the "
                    "classes, and none of the model's labels; say under 'labels' which label of the model every class "
                    f"is (labels: {{{str(label)!r}: NAME OR INDEX, ...}})"
                )
            if label.isdecimal() and len(label) <= DIGITS:  # of a text file
                label = int(label)
        if isinstance(label, (int, np.integer)) and 0 <= label < self.count:
            if self.numbered and not asked:
                raise InputError(
                    f"{where}: label {shown(value)} is a number, and the model has labels that are called by other "
                    "numbers than their indices; say under 'labels' which one it is"
                )
            return int(label)
        names = ", ".join(list(self.ids)[:LABELS_LISTED]) + (", ..." if len(self.ids) > LABELS_LISTED else "")
        said = shown(value) if str(label) == str(value) else f"{shown(value)}, renamed {shown(label)},"
        raise InputError(
            f"{where}: label {said} is none of the model's ({names}) and no index below {self.count}; say "
            f"under 'labels' which one it is, or, where no labels are needed, leave them out "
            f"(columns: {{{self.role}: null}})"
        )

    def of_tags(self, tags: Sequence[Any], where: str) -> list[int]:
        """The class indices of a text's tags, -100 where nothing is predicted.

        Tags in IOB1, where ``B-`` is only between spans of one type, are brought to IOB2 before they are renamed: types
        may become one. Those for a model that lacks ``B-`` of a type that it knows stay: it was trained on IOB1.
        """
        inside, begins = ({name[2:] for name in self.ids if name.startswith(prefix)} for prefix in ("I-", "B-"))
        if inside and inside <= begins and all(isinstance(tag, str) or tag == IGNORED for tag in tags):
            tags = _in_iob2(tags)
        return [IGNORED if tag == IGNORED else self.index(tag, where) for tag in tags]

    def _named(self, label: str, where: str) -> int:
        said = self.ids[label]
        index = int(said) if str(said).isdecimal() else -1
        elsewhere = label in self.names.values() and self.names.get(index) != label
        if elsewhere or not 0 <= index < self.count:
            raise InputError(
                f"{where}: label {label} has the index {shown(said)} in label2id of the model's config, which "
                f"contradicts id2label, a list of {self.count}; correct the one that is wrong"
            )
        return index

    def _of_boolean(self, value: bool | np.bool_) -> str | int:
        names = (str(value), str(value).lower())
        return next((name for known in (self.renamed, self.ids) for name in names if name in known), int(value))

    def indicators(self, value: Any, where: str, annotated: set[int] | None) -> list[float]:
        """1 for every label that is in a list, 0 for the others, NaN for those that are not annotated.

        A boolean or floating vector with an entry a label is taken as it is. Of a map from label to score, those
        above the threshold are on, and those without a score not annotated.

        Raises:
            InputError: it is none of these, or may be two of them; a label is unknown, twice, or not annotated.
        """
        if isinstance(value, (str, int, np.integer)):
            value = [value]
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if not isinstance(value, (list, tuple, Mapping)):
            raise InputError(f"{where}: labels are {shown(value)}; expected a list of labels, or their scores")
        if isinstance(value, Mapping):
            vector = self._scored(value, where)
        elif value and all(isinstance(one, (float, bool)) for one in value):
            if len(value) != self.count or not all(one in (0, 1) or math.isnan(one) for one in value):
                raise InputError(f"{where}: labels are {shown(value)}; expected {self.count} of 0, 1 and NaN")
            vector = [float(one) for one in value]
        else:
            vector_too = len(value) == self.count and list(value) in ([0], [0, 1], [1, 0])
            if vector_too and not {"0", "1"} & self.renamed.keys():
                raise InputError(
                    f"{where}: labels are {shown(value)}: indices, or a vector? write a vector with 0.0 and 1.0, and "
                    "labels by their names"
                )
            on = {self.index(one, where) for one in value}
            if len(set(value)) < len(value):
                raise InputError(f"{where}: labels are {shown(value)}, one of them twice; a vector has 0.0 and 1.0")
            vector = [float(index in on) for index in range(self.count)]
        if annotated is None:
            return vector
        if extra := [index for index, one in enumerate(vector) if one == 1 and index not in annotated]:
            name = next((name for name, index in self.ids.items() if index == extra[0]), extra[0])
            raise InputError(f"{where}: has label {name}, which is not under 'annotated'")
        return [one if index in annotated else math.nan for index, one in enumerate(vector)]

    def _scored(self, scores: Mapping[Any, Any], where: str) -> list[float]:
        """From scores by label; two names of one label turn it on if either does."""
        vector = [math.nan] * self.count
        for label, value in scores.items():
            if value is not None:
                index, on = self.index(label, where), float(score(value, f"{where}, {label}") > self.threshold)
                vector[index] = on if math.isnan(vector[index]) else max(on, vector[index])
        return vector


def _in_iob2(tags: Sequence[Any]) -> list[Any]:
    """``I-X`` that begins a span as ``B-X``: behind another type, ``O``, or nothing."""
    made, before = [], "O"
    for tag in tags:
        begins = isinstance(tag, str) and tag.startswith("I-") and tag[2:] != before[2:]
        made.append(f"B-{tag[2:]}" if begins else tag)
        before = tag if isinstance(tag, str) else before  # -100: a further token of a word
    return made


def score(value: Any, where: str) -> float:
    """The number that a regression predicts.

    Raises:
        InputError: it is none, not finite, or beyond float32.
    """
    try:
        number = math.nan if value is None or isinstance(value, bool) else float(value)
    except (OverflowError, TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where}: label {shown(value)} is not a finite number")
    if abs(number) > float(np.finfo(np.float32).max):  # compared as float64, without a warning
        raise InputError(f"{where}: label {shown(value)} is beyond float32, in which models compute")
    return number
