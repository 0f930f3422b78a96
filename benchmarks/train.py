"""Train a model from scratch, with a seed: the independently trained models that the benchmarks match.

    python benchmarks/train.py gpt2-shakespeare --seed 2 [--shared ../shared] [--out benchmarks/out/models]

A family is a file of ``benchmarks/training/`` (or any YAML file of that form): two models of it differ in nothing but
the seed, which draws the start, the order of the data, crops and masks. A folder that is finished is left alone, so a
list of these commands can be started again. A GPU is used where there is one. The scores printed at the end are on dev
data; no test data is used.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError, field_validator

from cobasin.checkpoints.json_files import read_json
from cobasin.checkpoints.output import publishing
from cobasin.checkpoints.refusals import check_output
from cobasin.errors import InputError, explain
from cobasin.recipe.document import read_yaml
from common.results import made
from common.tuning import training_arguments
from training.data import Data, cifar10, tinyshakespeare
from training.texts import texts

FAMILIES = Path(__file__).parent / "training"
RECORD = "training.json"


class Family(BaseModel):
    """Everything about a model but its seed.

    Attributes:
        folder: the name of a model's folder without the seed.
        architecture: a class of Transformers.
        config: its config, ``model_type`` included; the vocabulary's size is that of the data.
        data: text is read in windows as long as the model's positions: of tiny Shakespeare by characters, of all
            training texts together (``texts``) by pieces of words; masked for a masked language model.
        held_out: the last training images, which become dev data; 0: the last 5,000 are dev data, but trained on.
        padding: black pixels on every side of an image before it is cut at random.
        training: arguments of ``transformers.TrainingArguments``; ``max_steps`` must be among them. ``bf16`` is for
            machines with a GPU, and left out elsewhere.
        decay_all: weight decay holds for norms and biases, too, which the Trainer leaves out by itself.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: str
    architecture: str
    config: dict[str, Any]
    data: Literal["cifar10", "tinyshakespeare", "texts"]
    held_out: NonNegativeInt = 0
    padding: NonNegativeInt = 0
    training: dict[str, Any]
    decay_all: bool = False

    @field_validator("training")
    @classmethod
    def _for_this_machine(cls, given: dict[str, Any]) -> dict[str, Any]:
        if torch.cuda.is_available():
            return given
        return {name: value for name, value in given.items() if name != "bf16"}  # which the Trainer refuses

    @classmethod
    def read(cls, name: str) -> Family:
        """By its name, or from a YAML file.

        Raises:
            InputError: there is none of that name, or the file does not say what a family needs.
        """
        if not name.endswith(".yaml") and name not in names():
            raise InputError(f"{name}: no such family; choose one of {', '.join(names())}, or give a YAML file")
        path = Path(name) if name.endswith(".yaml") else FAMILIES / f"{name}.yaml"
        try:
            return cls.model_validate(read_yaml(path))
        except ValidationError as error:
            raise InputError(f"{path}: {explain(error)}") from None

    def made_config(self) -> Any:
        """Its config, as Transformers makes it."""
        from transformers import AutoConfig

        try:
            return AutoConfig.for_model(**self.config)
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(f"config: {error}") from error

    def read_data(self, config: Any, shared: Path) -> Data:
        """Training and dev data; of text, the config learns how many tokens there are, and which are special."""
        if self.data == "cifar10":
            return cifar10(shared, config.image_size, self.padding, self.held_out)
        read = texts if self.data == "texts" else tinyshakespeare
        data = read(shared, config.max_position_embeddings, self.architecture.endswith("ForMaskedLM"))
        config.vocab_size = data.vocabulary
        for name, token in data.special.items():
            if hasattr(config, name):
                setattr(config, name, token)
        return data

    def model(self, seed: int, config: Any) -> Any:
        """A model that is not trained yet."""
        import transformers

        transformers.set_seed(seed)
        try:
            return getattr(transformers, self.architecture)(copy.deepcopy(config))
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(f"{self.architecture}: cannot be made from its config: {error}") from error

    def arguments(self, seed: int) -> Any:
        """The ``transformers.TrainingArguments``."""
        if "max_steps" not in self.training:
            raise InputError("training: max_steps is missing; say how many steps a model is trained for")
        return training_arguments(seed, **({"logging_steps": 0.1, "remove_unused_columns": False} | self.training))


def names() -> list[str]:
    """The families that can be given by name."""
    return sorted(path.stem for path in FAMILIES.glob("*.yaml"))


def train(family: Family, seed: int, shared: Path, out: Path) -> None:
    """Train a model and write its folder, all or nothing; leave a folder alone that is finished.

    Raises:
        InputError: the folder holds something else, or a model of other settings; data is missing, or the family's
            settings cannot be used.
    """
    if (out / RECORD).exists():
        check_trained(family, seed, out)
        print(f"{out}: is trained already")
        return
    check_output(out, overwrite=False)
    arguments, config = family.arguments(seed), family.made_config()
    data = family.read_data(config, shared)
    model = family.model(seed, config)
    with publishing(out, overwrite=False, source=None) as folder:
        arguments.output_dir = str(folder)
        record = _run(model, arguments, data, family.decay_all)
        model.config = config  # the Trainer adds to the model's own
        model.to("cpu").save_pretrained(folder)
        if data.beside:
            data.beside(folder)
        record = _settings(family, seed) | record
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    print(f"{out}: {json.dumps(record['dev'])}")


def check_trained(family: Family, seed: int, folder: Path) -> None:
    """Refuse a model that was trained otherwise than a family says now."""
    asked = json.loads(json.dumps(_settings(family, seed)))
    made = {"decay_all": False} | read_json(folder / RECORD)  # older ones do not say so
    if changed := [key for key, value in asked.items() if made.get(key) != value]:
        raise InputError(f"{folder}: was trained with another {', '.join(changed)}; remove it to train it anew")


def _settings(family: Family, seed: int) -> dict[str, Any]:
    return {"seed": seed, **family.model_dump()}


def _run(model: Any, arguments: Any, data: Data, decay_all: bool) -> dict[str, Any]:
    """Train; what there is to record about it."""
    from transformers import Trainer

    class Decaying(Trainer):  # which leaves norms and biases out by itself
        def get_decay_parameter_names(self, model: Any) -> list[str]:
            return [name for name, _ in model.named_parameters()]

    trainer = (Decaying if decay_all else Trainer)(
        model,
        arguments,
        data_collator=_unchanged,
        train_dataset=data.train,
        eval_dataset=data.dev,
        compute_metrics=_accuracy if data.vocabulary is None else None,
    )
    print(
        f"{type(model).__name__}, {model.num_parameters():,} parameters: {arguments.max_steps:,} steps of "
        f"{arguments.train_batch_size} out of {len(data.train):,} rows, on {arguments.device}",
        flush=True,
    )
    started, started_cpu = time.perf_counter(), time.process_time()
    loss = trainer.train().training_loss
    seconds = {"seconds": round(time.perf_counter() - started), "cpu_seconds": round(time.process_time() - started_cpu)}
    scores = trainer.evaluate()
    return {
        "dev": {
            "rows": len(data.dev),
            "trained_on": data.seen,
            **{name: scores[f"eval_{name}"] for name in ("loss", "accuracy") if f"eval_{name}" in scores},
        },
        "training_loss": loss,
        **seconds,
        "device": str(arguments.device),
        **made(),
    }


def _unchanged(batch: Any) -> Any:
    """The data sets make whole batches; nothing is left to collate."""
    return batch


def _accuracy(predicted: Any) -> dict[str, float]:
    return {"accuracy": float((predicted.predictions.argmax(1) == predicted.label_ids).mean())}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code: 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", help=f"{', '.join(names())}, or a YAML file")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="folder with data/")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/models"), help="folder of the models")
    options = parser.parse_args(arguments)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        if not 0 <= options.seed < 2**32:
            raise InputError(f"--seed {options.seed}: expected a whole number from 0 to 2**32 - 1")
        family = Family.read(options.family)
        train(family, options.seed, options.shared, options.out / f"{family.folder}{options.seed}")
    except InputError as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
