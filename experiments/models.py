"""The end models of an experiment: made where they are not there yet, each in a folder named by all that comes from."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.output import publishing
from cobasin.data import Batch, DataConfig, batches, rows_of
from cobasin.errors import InputError
from cobasin.learning.answers import against_labels
from common.results import write
from common.tuning import fine_tune
from experiment import DataSet, Experiment
from starts import content, folder_of, padding_tokenizer, place_of, short_digest
from train import RECORD
from world import World

PROBLEMS = {
    "classification": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regression": "regression",
}


@dataclass(frozen=True)
class End:
    """A model that is merged.

    Attributes:
        name: of its data set, or of the start that it is.
        data: the data set that it is for.
    """

    name: str
    folder: Path
    data: str

    @property
    def content(self) -> str:
        """What the model is, whatever it is called."""
        return content(self.folder)

    @property
    def seconds(self) -> float | None:
        """That its training took; None where it was not trained here."""
        record = self.folder / RECORD
        return json.loads(record.read_text("utf-8"))["seconds"] if record.exists() else None


@cache
def rows_digest(config_text: str) -> str:
    """The digest of a data set's rows; of its config as JSON, so that it is read once."""
    return rows_of(DataConfig.model_validate_json(config_text)).digest[:16]


def end_models(experiment: Experiment, setting: str, seed: int, world: World) -> list[End]:
    """The end models of a setting, in the order of the file.

    Raises:
        InputError: a model or data set cannot be read, or does not fit.
    """
    used, starts, names = experiment.used(), experiment.models[setting], end_names(experiment, setting, world)
    if experiment.training is None:
        (data,) = experiment.learned()
        return [End(name, folder_of(start, world), data) for name, start in zip(names, starts, strict=True)]
    ends = []
    for place, name in enumerate(names):
        start, limit = starts[place if len(starts) > 1 else 0], experiment.rows.get("train")
        training = {**experiment.training, **start.training}
        folder = fine_tuned(folder_of(start, world), name, used[name], training, limit, seed, world)
        ends.append(End(name, folder, name))
    return ends


def end_names(experiment: Experiment, setting: str, world: World) -> list[str]:
    """What the end models are called: as their data sets; those that are not trained, by the shortest last parts of
    their paths that tell them apart.

    Raises:
        InputError: a model is there twice.
    """
    if experiment.training is not None:
        return experiment.learned()
    places = [place_of(start, world).absolute() for start in experiment.models[setting]]
    if twice := [place for place in places if places.count(place) > 1]:
        raise InputError(f"{twice[0]}: is there twice; give every model once")
    names = [place.name for place in places]
    for count in range(2, max(len(place.parts) for place in places) + 1):
        if len(set(names)) < len(names):
            names = ["/".join(place.parts[-count:]) for place in places]
    return names


def fine_tuned(
    start: Path, name: str, data: DataSet, training: dict[str, Any], rows: int | None, seed: int, world: World
) -> Path:
    """The folder of a start that was fine-tuned on a data set.

    Args:
        start: a folder with a tokenizer.
        name: of the data set.
        training: arguments of ``transformers.TrainingArguments``.
        rows: of training data, at most.
        seed: of the head's start, of which rows, and of their order.
    """
    config = data.config("train", world)
    of = {
        "start": content(start),
        "data": data.read,
        "content": rows_digest(config.model_dump_json()),
        "labels": data.labels,
        "task": data.task,
        "training": training,
        "rows": rows,
        "seed": seed,
    }
    out = world.out / "models" / f"{name}-{seed}-{short_digest(of)}"
    if out.exists():
        return out
    import transformers

    model, tokenizer = _with_head(start, data, seed)
    with publishing(out, False, None) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        encoded = _encoded(load(partial), config, rows, seed)
        print(f"{out.name}: fine-tuning on {len(encoded):,} rows", file=sys.stderr, flush=True)
        collator = transformers.DataCollatorWithPadding(tokenizer)
        if data.task == "tokens":
            collator = transformers.DataCollatorForTokenClassification(tokenizer)
        loss = _annotated_loss if data.task == "multilabel" else None
        took = fine_tune(model, encoded, partial, seed, collator, loss, **training)
        write(partial / RECORD, {"of": of, **took})
    return out


def untrained(start: Path, data: DataSet, seed: int, world: World) -> Path:
    """What a model that was fine-tuned on a data set was before, with the head that it started with."""
    of = {"start": content(start), "labels": data.labels, "task": data.task, "seed": seed}
    out = world.out / "models" / f"untrained-{seed}-{short_digest(of)}"
    if not out.exists():
        model, tokenizer = _with_head(start, data, seed)
        with publishing(out, False, None) as partial:
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
    return out


def _with_head(start: Path, data: DataSet, seed: int) -> tuple[Any, Any]:
    """The model with a head for the task, a new one where it has none for as many labels; and its tokenizer."""
    import transformers

    transformers.set_seed(seed)
    tokenizer = padding_tokenizer(start)
    names = data.labels or []
    options: dict[str, Any] = {"num_labels": 1, "problem_type": "regression"}
    if data.task != "regression":
        options = {"id2label": dict(enumerate(names)), "label2id": {label: i for i, label in enumerate(names)}}
        options |= {"num_labels": len(names), "problem_type": PROBLEMS.get(str(data.task))}
    classes = {"tokens": transformers.AutoModelForTokenClassification}
    head = classes.get(str(data.task), transformers.AutoModelForSequenceClassification)
    # in bfloat16 a step of fine-tuning would be rounded away, in float16 it may overflow
    options |= {"dtype": torch.float32, "ignore_mismatched_sizes": True}
    model, found = head.from_pretrained(start, **options, output_loading_info=True)
    # only the head may be of another size: a body would be drawn anew without a word
    if wrong := sorted(name for name, *_ in found["mismatched_keys"] if name.startswith(f"{model.base_model_prefix}.")):
        raise InputError(f"{start}: {wrong[0]} has another shape than the config says; correct one of them")
    if model.config.pad_token_id is None:  # by which a classifier tells where a text ends
        model.config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def _encoded(checkpoint: Checkpoint, config: DataConfig, rows: int | None, seed: int) -> list[dict[str, Any]]:
    """Rows for the Trainer, encoded as they are for everything else."""
    samples = None if rows is None or rows >= len(rows_of(config)) else rows
    single = batches(checkpoint, config, samples=samples, batch_size=1, seed=seed)
    found = []
    for batch in single:
        if batch.labels is None:
            raise InputError(f"{config.path}: has no labels; say their column under 'columns'")
        row = {key: value[0].tolist() for key, value in batch.inputs.items()}
        found.append({**row, "labels": batch.labels[0].tolist()})
    return found


def _annotated_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    # that of Transformers is NaN where a label is not annotated
    return against_labels("multilabel", outputs.logits, Batch({}, labels))
