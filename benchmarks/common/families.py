"""Families of independently trained models, and the data they are measured on and may learn from."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.running import instantiate
from cobasin.data import Batch, DataConfig, batches, rows_of, task_of
from cobasin.evaluation.tasks import evaluate
from common.ensemble import Ensemble
from train import FAMILIES
from train import Family as Training
from training.data import DEVIATION, MEAN, unpacked_cifar10

PAIRS = ((0, 1), (0, 2), (1, 2))  # seeds of anchor and source
# of learning, by data: on dev data more were better, for as long as we tried; of the larger ViT, what an hour takes
STEPS = {"cifar10": 2500, "tinyshakespeare": 1500, "cifar10-vit-large": 800}
SIZE = {"image": 250, "causal_lm": 64, "masked_lm": 256}  # rows that are evaluated at once


@dataclass(frozen=True)
class Family:
    """Models that differ in their seeds only, as ``benchmarks/train.py`` trains them.

    Attributes:
        name: of its file in ``benchmarks/training``.
        training: what is in there.
        shared: folder with ``data`` and ``models``.
        own: folder of models, too, which count where ``shared`` has none; data is unpacked beside it.
    """

    name: str
    training: Training
    shared: Path
    own: Path

    @classmethod
    def all(cls, shared: Path, own: Path, only: Sequence[str] | None = None) -> list[Family]:
        """Those that are named, or whose files are; by default all but the small ones.

        What learns from words is only fine-tuned, for the experiments: there is nothing to measure it on here.
        """
        names = only or sorted(path.stem for path in FAMILIES.glob("*.yaml"))
        found = [cls(Path(name).stem, Training.read(name), shared, own) for name in names]
        words = [one.name for one in found if one.training.data == "texts"]
        if only and words:
            raise SystemExit(f"{words[0]}: is there to be fine-tuned; see experiments")
        return [one for one in found if one.name not in words]

    @property
    def steps(self) -> int:
        """Of learning, where nothing else is asked for."""
        return STEPS[self.name if self.name in STEPS else self.training.data]

    def path(self, seed: int) -> Path | None:
        """The model's folder; None where there is none."""
        name = f"{self.training.folder}{seed}"
        found = (self.shared / "models" / name, self.own / name)
        return next((folder for folder in found if (folder / "config.json").exists()), None)

    def paths(self, seeds: Sequence[int]) -> list[Path] | None:
        """The folders of several models; None, which is said, where one is missing."""
        found = {seed: self.path(seed) for seed in seeds}
        if missing := [seed for seed, path in found.items() if path is None]:
            print(
                f"{self.name} {','.join(map(str, seeds))}: skipped, there is no model of seed "
                f"{' and '.join(map(str, missing))}; python benchmarks/train.py {self.name} --seed {missing[0]}",
                file=sys.stderr,
            )
            return None
        return [path for path in found.values() if path is not None]

    def pairs(self, wanted: Sequence[tuple[int, int]] | None = None) -> list[tuple[int, int]]:
        """Those of ``wanted`` (`PAIRS` by default) whose models are there."""
        return [pair for pair in wanted or PAIRS if self.paths(pair) is not None]

    def task(self, train: int, dev: bool) -> Task:
        """What the family is measured on: the test set once, or dev data, and so many rows of training data."""
        seeds = {seed for pair in PAIRS for seed in pair}
        folder = next((path for seed in sorted(seeds) if (path := self.path(seed))), None)
        if folder is None:
            raise SystemExit(f"{self.name}: no model of any of the seeds {sorted(seeds)}; see benchmarks/train.py")
        read = images if self.training.data == "cifar10" else text
        return read(self, folder, train, dev)


@dataclass(frozen=True)
class Task:
    """What models are measured on, and what they may learn from.

    Attributes:
        kind: as `cobasin.data.task_of` says.
        rows: batches of the test set (of dev data).
        train: training data, as `cobasin.match` takes it.
        samples: how many rows (of a language model blocks) of it are used.
        data: what was read, for the record.
    """

    kind: str
    rows: Sequence[Batch]
    train: DataConfig | Sequence[Mapping[str, Any]]
    samples: int
    data: str

    def score(self, model: Any) -> dict[str, float]:
        """Mean loss and accuracy (of tokens)."""
        found = evaluate(model, self.rows, self.kind)
        return {"loss": found.loss, "accuracy": found.metric}


def parents(task: Task, folders: Sequence[Path], device: torch.device) -> dict[str, Any]:
    """The scores of models as they are, and of the mean of their probabilities."""
    models = [torch.nn.Module.to(instantiate(load(folder), torch.float32), device) for folder in folders]
    return {"each": [task.score(model) for model in models], "ensemble": task.score(Ensemble(models, task.kind))}


def images(family: Family, folder: Path, train: int, dev: bool) -> Task:
    """CIFAR-10. Dev data are the last training images, which are not among those learned from."""
    files = unpacked_cifar10(family.shared, family.own.with_name("data") / "cifar10")
    look = {"mean": MEAN, "std": DEVIATION, "crop": family.training.config["image_size"]}
    own, measured = (
        DataConfig(path=str(files / f"{split}.npz"), **look) for split in ("train", "dev" if dev else "test")
    )
    found = batches(load(folder), measured, samples=None, batch_size=SIZE["image"], seed=0)
    data = f"{found.rows} {'training' if dev else 'test'} images of CIFAR-10"
    return Task("image", list(found), own, min(train, len(rows_of(own))), data)


def text(family: Family, folder: Path, train: int, dev: bool) -> Task:
    """Tiny Shakespeare by characters, in blocks as long as the models read; masks of a fixed seed."""
    split, checkpoint = "dev" if dev else "test", load(folder)
    kind = task_of(checkpoint)
    own, measured = (_documents(family, folder, kind, name) for name in ("train", split))
    found = list(batches(checkpoint, measured, samples=None, batch_size=SIZE[kind], seed=0))
    count = sum(len(batch.inputs["input_ids"]) for batch in found)
    return Task(kind, found, own, train, f"{count} blocks of {split}.txt of tiny Shakespeare")


def _documents(family: Family, folder: Path, kind: str, split: str) -> list[dict[str, Any]]:
    """The blocks of a causal language model; the text of a masked one, which its tokenizer cuts."""
    content = (family.shared / "data" / "lm" / "tinyshakespeare" / f"{split}.txt").read_text("utf-8")
    return [{"text": content}] if kind == "masked_lm" else blocks(folder, content)


def blocks(folder: Path, content: str) -> list[dict[str, Any]]:
    """A text by characters, those that a model does not know left out, in blocks as long as it reads."""
    number = {char: i for i, char in enumerate(json.loads((folder / "chars.json").read_text("utf-8")))}
    length = load(folder).config.max_position_embeddings
    ids = torch.tensor([number[char] for char in content if char in number])
    return [{"input_ids": block.tolist()} for block in ids[: len(ids) // length * length].view(-1, length)]
