"""What a file says is looked at as a whole before anything is trained: its data, methods and settings of training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cobasin.data import rows_of
from cobasin.errors import InputError
from cobasin.evaluation.tasks import check_metric_name
from cobasin.fusion.registry import find
from cobasin.recipe import Recipe
from common.tuning import training_arguments
from experiment import DataSet, Experiment, Split, chosen
from train import Family
from world import World


def check(experiment: Experiment, world: World) -> None:
    """Refuse what cannot be used, with its place in the file.

    Raises:
        InputError: for data that cannot be read, or of which what is tested on was trained on; for metrics, methods and
            settings of training that there are not; for families of models that there are not.
    """
    for name, data in experiment.used().items():
        with at(f"data: {name}"):
            apart = experiment.training is not None and not experiment.unseen
            _check_data(data, _splits(experiment, name, data), apart, world)
    for name, method in experiment.methods.items():
        with at(f"methods: {name}"):
            statistics = {"statistics": experiment.statistics | {"data": {"path": "x"}}}
            models = {"models": [{"model": "a"}, {"model": "b"}]}
            needed = statistics if find(method["merge_method"]).statistics is not None else {}
            Recipe.of(models | world.fill(dict(method)) | needed, "recipe")
    for setting, starts in experiment.models.items():
        for start in starts:
            with at(f"models: {setting}"):
                if start.family is not None:
                    Family.read(start.family)
                if experiment.training is not None:
                    training_arguments(0, **({"output_dir": "x"} | experiment.training | start.training))


def _splits(experiment: Experiment, name: str, data: DataSet) -> list[Split]:
    """Those of a data set that are read."""
    read: list[Split] = []
    tested = not experiment.unseen or name in experiment.unseen
    # of several labels the ensemble looks at which of them a model's own data annotates
    if experiment.measure != "seconds" and (tested or data.task == "multilabel"):
        read.append("test")
    if experiment.measure == "scores" and tested and any(chosen(match) for match in experiment.matchings.values()):
        read.append("dev")
    counted = any(find(method["merge_method"]).statistics is not None for method in experiment.methods.values())
    if name not in experiment.unseen and (experiment.training is not None or counted):
        read.append("train")
    return read


def _check_data(data: DataSet, splits: list[Split], apart: bool, world: World) -> None:
    assert data.task is not None
    check_metric_name(data.task, data.metric)
    configs = {split: data.config(split, world) for split in splits}
    if apart and configs.keys() >= {"train", "test"} and configs["train"] == configs["test"]:
        raise InputError("read: the rows to train on and to test on are the same; write {split} where theirs differ")
    for config in configs.values():
        rows = rows_of(config)
        if not len(rows):
            raise InputError(f"{rows.label}: is empty")
        rows[0]  # has the columns that are named


@contextmanager
def at(place: str) -> Iterator[None]:
    """Say in messages where in the file it is."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
