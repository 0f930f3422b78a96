"""The end models of an experiment: made where they are not there yet, each in a folder named by all that comes from."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from cobasin.checkpoints.checkpoint import Checkpoint, download, load, read_config
from cobasin.checkpoints.fingerprint import fingerprint
from cobasin.checkpoints.weight_files import open_weights
from cobasin.checkpoints.writer import publishing
from cobasin.data import Batch, DataConfig, batches, rows_of
from cobasin.errors import InputError
from cobasin.learning.answers import against_labels
from common.results import write
from common.tuning import fine_tune
from experiment import DataSet, Experiment, Start
from train import Family, check_trained, train
from world import World

RECORD = "training.json"
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
def content(folder: Path) -> str:
    """The fingerprint of a model, also of one on the hub whose config does not name its class."""
    config = read_config(folder)
    headers, read = open_weights(folder)
    return fingerprint(Checkpoint(str(folder), config, (config.architectures or [""])[0], headers, read))[:16]


@cache
def rows_digest(config_text: str) -> str:
    """The digest of a data set's rows; of its config as JSON, so that it is read once."""
    return rows_of(DataConfig.model_validate_json(config_text)).digest[:16]


def end_models(experiment: Experiment, setting: str, seed: int, world: World) -> list[End]:
    """The end models of a setting, in the order of the file.

    Raises:
        InputError: a model or data set cannot be read, or does not fit.
    """
    used, starts = experiment.used(), experiment.models[setting]
    if experiment.training is None:
        (data,) = [name for name in used if name not in experiment.unseen][:1]
        folders = [folder_of(start, world) for start in starts]
        return [End(folder.name, folder, data) for folder in folders]
    learned = [name for name in used if name not in experiment.unseen]
    ends = []
    for place, name in enumerate(learned):
        start, limit = starts[place if len(starts) > 1 else 0], experiment.rows.get("train")
        training = {**experiment.training, **start.training}
        folder = fine_tuned(folder_of(start, world), name, used[name], training, limit, seed, world)
        ends.append(End(name, folder, name))
    return ends


def folder_of(start: Start, world: World) -> Path:
    """The model that an end model starts from, made where it has to be."""
    if start.path is not None:
        folder = Path(world.fill(start.path)).expanduser()
        return folder if folder.is_dir() else download(start.path)
    if start.family is not None:
        return _of_family(start, world)
    return _random(start, world)


def _of_family(start: Start, world: World) -> Path:
    assert start.family is not None
    family = Family.read(start.family)
    if start.max_steps is not None:
        training = {**family.training, "max_steps": start.max_steps, "warmup_steps": start.max_steps // 10}
        family = family.model_copy(update={"training": training, "folder": f"{family.folder}{start.max_steps}-steps-"})
    name = f"{family.folder}{start.seed}"
    if (world.shared / "models" / name / "config.json").exists():
        return world.shared / "models" / name
    folder = world.out / "models" / name
    if (folder / RECORD).exists():
        check_trained(family, start.seed, folder)
    else:
        train(family, start.seed, world.shared, folder)
    return folder


def _random(start: Start, world: World) -> Path:
    """A model as it is before any training, with a tokenizer."""
    import transformers

    assert start.config is not None
    of = {"config": start.config, "seed": start.seed, "tokenizer": start.tokenizer}
    folder = world.out / "models" / f"{start.config.get('model_type')}-untrained-{short_digest(of)}"
    if not folder.exists():
        transformers.set_seed(start.seed)
        try:
            model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**start.config))
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(f"config: {' '.join(str(error).split())}") from None
        with publishing(folder, False, None) as partial:
            model.save_pretrained(partial)
            if start.tokenizer:
                transformers.AutoTokenizer.from_pretrained(world.fill(start.tokenizer)).save_pretrained(partial)
    return folder


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

    transformers.set_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(start)
    model = _with_head(start, data)
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


def _with_head(start: Path, data: DataSet) -> Any:
    """The model with a new head for the task."""
    import transformers

    names = data.labels or []
    options: dict[str, Any] = {"num_labels": 1, "problem_type": "regression"}
    if data.task != "regression":
        if not names:
            raise InputError(f"{start}: labels are missing, which a {data.task} head needs")
        options = {"id2label": dict(enumerate(names)), "label2id": {label: i for i, label in enumerate(names)}}
        options |= {"num_labels": len(names), "problem_type": PROBLEMS.get(str(data.task))}
    classes = {"tokens": transformers.AutoModelForTokenClassification}
    head = classes.get(str(data.task), transformers.AutoModelForSequenceClassification)
    return head.from_pretrained(start, **options)


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


def short_digest(of: Any) -> str:
    """For a name: it tells what something was made of."""
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:10]
