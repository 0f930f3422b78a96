"""What a file says is looked at as a whole before anything is trained: its data, methods and settings of training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cobasin.data import DataConfig, rows_of
from cobasin.data.examples import TARGETS
from cobasin.data.rows import Rows
from cobasin.data.tokens import tokenizer_of
from cobasin.errors import InputError, nearest
from cobasin.evaluation.path import check_points
from cobasin.evaluation.tasks import check_metric_name
from cobasin.fusion.registry import find
from cobasin.matching.choice import Choice
from cobasin.recipe import Recipe
from common.results import Results
from common.tuning import training_arguments
from experiment import DataSet, Experiment, Split, Start, chosen, sweep
from models import end_names
from starts import config_of, opened, padding_tokenizer, place_of
from world import World

ALIKE = "model_type", "num_hidden_layers", "hidden_size", "num_attention_heads"


def check(experiment: Experiment, world: World, results: Results) -> None:
    """Refuse what cannot be used, with its place in the file.

    Raises:
        InputError: for data that cannot be read, has no labels, or of which what is tested on was learned from; for
            metrics, methods, matchings and settings of training that there are not; for models that there are not, or
            that cannot be trained for their data; where nothing is merged; for results that are damaged.
    """
    if experiment.measure == "paths":
        check_points(experiment.points)
    for name, data in experiment.used().items():
        with at(f"data: {name}"):
            _check_data(experiment, name, data, world)
    for name, method in experiment.methods.items():
        with at(f"methods: {name}"):
            statistics = {"statistics": experiment.statistics | {"data": {"path": "x"}}}
            models = {"models": [{"model": "a"}, {"model": "b"}]}
            needed = statistics if find(method["merge_method"]).statistics is not None else {}
            Recipe.of(models | world.fill(dict(method)) | needed, "recipe")
    for name, match in experiment.matchings.items():
        with at(f"matchings: {name}"):
            if isinstance(match, dict):
                _check_matching(experiment, match, world)
    names = {}
    for setting in experiment.models:
        with at(f"models: {setting}"):
            _check_starts(experiment, setting, world)
            names[setting] = end_names(experiment, setting, world)
    _check_groups(experiment, names)
    _ = results.rows  # can be read


def _check_starts(experiment: Experiment, setting: str, world: World) -> None:
    """That end models can be made from them, and are of one architecture, which the bases of methods are of, too."""
    starts, used = experiment.models[setting], experiment.used()
    tasks = [used[name].task for name in experiment.learned()]
    bases = [Start(path=method["base_model"]) for method in experiment.methods.values() if "base_model" in method]
    first = config_of(starts[0], world)
    _check_layers(experiment, first)
    for place, start in enumerate([*starts, *bases]):
        config = config_of(start, world)
        for key in ALIKE if experiment.training is not None else (*ALIKE, "architectures"):
            one, other = getattr(config, key, None), getattr(first, key, None)
            if None not in (one, other) and one != other:
                raise InputError(
                    f"{start.name} has {key} {one}, {starts[0].name} has {other}: only models of one architecture merge"
                )
        if experiment.training is not None:
            training_arguments(0, **({"output_dir": "x"} | experiment.training | start.training))
            one_for_all = len(starts) == 1 or place >= len(starts)
            for task in tasks if one_for_all else tasks[place : place + 1]:
                _check_start(start, config, task == "tokens", world)


def _check_layers(experiment: Experiment, config: Any) -> None:
    """That models have the layers that are matched."""
    for name, match in experiment.matchings.items():
        if not isinstance(match, dict) or match.get("layers") is None:
            continue
        count = config.num_hidden_layers
        for _, one in sweep(match, count):
            asked = Choice.parse("full", one["layers"]).layers or [0]
            if max(asked) >= count:
                raise InputError(f"matchings: {name}: layers {one['layers']}: the models have layers 0 to {count - 1}")


def _check_start(start: Start, config: Any, words: bool, world: World) -> None:
    """That a model can be fine-tuned on texts, or on words with a tag each."""
    import transformers

    heads = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    if words:
        heads = transformers.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
    if type(config) not in heads:
        what = "words" if words else "text"
        raise InputError(
            f"{start.name}: Transformers has no {config.model_type} that classifies {what}; name another model"
        )
    if start.config is not None and start.tokenizer is None:
        raise InputError(
            "config: has no tokenizer, which text needs; name a folder or hub id that has one (tokenizer: ...)"
        )
    if start.path is not None:
        folder = place_of(start, world)
        padding_tokenizer(folder)
        tokenizer_of(opened(folder), words)


def _check_matching(experiment: Experiment, match: dict[str, Any], world: World) -> None:
    if match.get("data") is not None:
        _rows(DataConfig.of(world.fill(match["data"])))
    words, anchor = ["medoid", "consensus"], world.fill(match.get("anchor", "medoid"))
    if experiment.training is None:
        words += [str(place_of(start, world)) for starts in experiment.models.values() for start in starts]
    if anchor not in words:
        raise InputError(f"anchor {anchor!r}: expected {', '.join(words)}")


def _check_groups(experiment: Experiment, names: dict[str, list[str]]) -> None:
    """That there is something to merge, of models that there are: their names, by setting."""
    known = {name for own in names.values() for name in own}
    if experiment.training is not None:
        known |= experiment.data.keys() - {*experiment.unseen}  # of which `use` may leave some out
    for group in experiment.groups if isinstance(experiment.groups, list) else ():
        for name in group:
            if name not in known:
                raise InputError(f"groups: no end model {name!r}{nearest(name, known)}")
            if group.count(name) > 1:
                raise InputError(f"groups: {name!r} is twice in one; give every name once")
    for setting, own in names.items():
        groups = experiment.grouped(own)
        if not groups or min(map(len, groups)) < 2:
            raise InputError(
                f"models: {setting}: nothing to merge: there is {', '.join(own)}, and groups are "
                f"{experiment.groups}; a merge takes two end models or more"
            )


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


def _check_data(experiment: Experiment, name: str, data: DataSet, world: World) -> None:
    assert data.task is not None
    check_metric_name(data.task, data.metric)
    configs = {split: data.config(split, world) for split in _splits(experiment, name, data)}
    learned = experiment.training is not None and name not in experiment.unseen
    uses = {"train": "train on" if learned else "collect statistics on", "dev": "choose a layer on"}
    for split, use in () if experiment.unseen else uses.items():
        if split in configs and configs[split] == configs.get("test"):
            raise InputError(
                f"read: the rows to {use} and to test on are the same; write {{split}} where theirs differ"
            )
    for split, config in configs.items():
        rows, target = _rows(config), TARGETS[data.task]
        if (split != "train" or learned) and rows[0].get(target) is None:
            raise InputError(
                f"{rows.where(0)}: has no {target}, which {split} rows need; say its column under 'columns'"
            )
    if learned and data.task == "image":
        raise InputError(
            "image classifiers are not fine-tuned here; leave training out, and name models that are trained"
        )
    if learned and data.task != "regression" and not data.labels:
        raise InputError(f"labels are missing, which a {data.task} head needs")


def _rows(config: DataConfig) -> Rows:
    """A data set that can be read, with the columns that are named."""
    rows = rows_of(config)
    if not len(rows):
        raise InputError(f"{rows.label}: is empty")
    rows[0]
    return rows


@contextmanager
def at(place: str) -> Iterator[None]:
    """Say in messages where in the file it is."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
