"""What an experiment is: a YAML file of this folder."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from cobasin.data import DataConfig
from cobasin.errors import InputError, explain, nearest
from cobasin.fusion.registry import find
from cobasin.recipe.blocks import Matching
from cobasin.recipe.document import read_yaml
from world import World

FOLDER = Path(__file__).parent
Split = Literal["train", "dev", "test"]
Task = Literal["classification", "multilabel", "regression", "tokens", "image"]
SWEEPS = {
    "one": lambda count: [str(layer) for layer in range(count)],
    "first": lambda count: [f"0-{layer}" for layer in range(count)],
    "last": lambda count: [f"{layer}-{count - 1}" for layer in reversed(range(count))],
}
CHOOSE = "choose"  # of single layers the one that is best on dev data


def _once(names: list[str]) -> list[str]:
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{twice[0]!r} is there twice; give every name once")
    return names


Names = Annotated[list[str], AfterValidator(_once)]


class Part(BaseModel):
    """A part of the file; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataSet(Part):
    """A data set and what is predicted on it.

    Attributes:
        read: as under ``data`` in a recipe (`cobasin.data.DataConfig`); ``{split}`` is filled in.
        splits: what the data set calls its splits, where not by our names.
        task, labels, metric: of this data set, where they are not those of the experiment.
    """

    read: dict[str, Any]
    splits: dict[Split, str] = {}
    task: Task | None = None
    labels: Names | None = None
    metric: str | None = None

    def config(self, split: Split, world: World) -> DataConfig:
        """One split, to be read."""
        filled = world.fill(self.read, split=self.splits.get(split, split))
        try:
            return DataConfig.model_validate(filled)
        except ValidationError as error:
            raise InputError(f"read: {explain(error)}") from None


class Start(Part):
    """Where an end model starts from: one of three.

    Attributes:
        path: a folder or a hub id.
        family: a model that ``benchmarks/train.py`` trains from scratch, with ``seed`` and, where given,
            ``max_steps``; of a family beside the project, the model that is there.
        config: the config of a model that is not trained at all, for measuring time; ``tokenizer`` is a folder or id.
        training: how it is fine-tuned, where that is not as the experiment says.
    """

    path: str | None = None
    family: str | None = None
    config: dict[str, Any] | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    max_steps: PositiveInt | None = None
    tokenizer: str | None = None
    training: dict[str, Any] = {}

    @model_validator(mode="after")
    def _one(self) -> Start:
        if [self.path, self.family, self.config].count(None) != 2:
            raise ValueError("expected path, family or config, exactly one of them")
        return self

    @property
    def name(self) -> str:
        """What the file calls it."""
        return self.path or self.family or "config"


class Experiment(Part):
    """An item of the paper.

    Attributes:
        title: of its tables and pictures.
        minutes: CPU minutes that it is expected to take, training included, but not that of models
            which an item of Table 1 trains.
        measure: ``scores`` of merged models; ``paths``, the loss on the line between two; ``distances`` between two
            and whether the function is kept; ``seconds``.
        task, labels, metric: of all data sets. Without ``labels``, those of the models.
        data: data sets by name.
        use: only these of them.
        models: by the name of a setting, where its end models start from: all from its only start, or the k-th data
            set's from the k-th.
        training: how end models are fine-tuned, one on every data set that is not unseen (arguments of
            ``transformers.TrainingArguments``); without it the starts are the end models.
        rows: of every split at most.
        groups: which end models are merged: all ``pairs``; ``all``; ``growing``, the first two, three and so on; or
            a list of lists of names: of data sets, or of starts that are not trained, the last part of whose paths
            (or as many as tell all of them apart) is their name.
        unseen: data sets that no model is trained on, and merged models are tested on in place of their own; with one
            head.
        heads: ``keep``, every task its own; or ``merge``.
        methods: by their names in the tables, parts of recipes: ``merge_method`` and its ``parameters``.
        matchings: by their names in the tables, what a recipe has under ``match``. ``layers: one``, ``first`` and
            ``last`` stand for every single layer, and the first and last so many; ``choose`` for the single layer
            that is best on dev data.
        statistics: what a recipe has there, but data.
        points: on a path.
        seeds: of fine-tuning, and of the rows that statistics are collected on.
    """

    title: str
    minutes: PositiveFloat
    measure: Literal["scores", "paths", "distances", "seconds"] = "scores"
    task: Task
    labels: Names = []
    metric: str | None = None
    data: dict[str, DataSet]
    use: list[str] | None = None
    models: dict[str, Annotated[list[Start], Field(min_length=1)]]
    training: dict[str, Any] | None = None
    rows: dict[Split, PositiveInt] = {}
    groups: Literal["pairs", "all", "growing"] | list[list[str]] = "pairs"
    unseen: list[str] = []
    heads: Literal["keep", "merge"] = "keep"
    methods: dict[str, dict[str, Any]] = {"Simple": {"merge_method": "linear"}}
    matchings: dict[str, Any]
    statistics: dict[str, Any] = {}
    points: PositiveInt = 25
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 32)]], Field(min_length=1)]

    @model_validator(mode="after")
    def _checked(self) -> Experiment:
        for name in [*(self.use or ()), *self.unseen]:
            if name not in self.data:
                raise ValueError(f"no data set {name!r}{nearest(name, self.data)}")
        if self.unseen and self.heads != "merge":
            raise ValueError("data that is unseen is nobody's own: it needs heads: merge")
        learned = len(self.learned())
        if learned == 0:
            raise ValueError("unseen: all data sets that are used; leave one to train on, or to collect statistics on")
        for name, starts in self.models.items():
            if self.training is not None and 1 < len(starts) < learned:
                raise ValueError(
                    f"models: {name}: {len(starts)} starts for {learned} data sets; give each its own, or one for all"
                )
            if self.training is None and any(start.training for start in starts):
                raise ValueError(f"models: {name}: training of a start changes that of the experiment, which has none")
        if self.training is None and learned > 1:
            raise ValueError(
                f"without training all end models are for one data set, and there are {learned}: "
                f"{', '.join(self.learned())}; choose one (use: [{self.learned()[0]}])"
            )
        for name, method in self.methods.items():
            try:
                find(method.get("merge_method", ""))
            except InputError as error:
                raise ValueError(f"methods: {name}: {error}") from None
        for name, match in self.matchings.items():
            try:
                Matching.model_validate({**match, "layers": None} if _swept(match) else match)
            except ValidationError as error:
                raise ValueError(f"matchings: {name}: {explain(error)}") from None
        return self

    @classmethod
    def read(cls, item: str, small: bool = False, model: str | None = None, setting: str | None = None) -> Experiment:
        """An item by its name, or a YAML file.

        Args:
            item: the name of a file in this folder without its suffix, or a file.
            small: with what the file has under ``small`` in place of the same keys.
            model: a folder or hub id that all end models start from, in place of the file's.
            setting: the only entry of ``models`` that is used.

        Raises:
            InputError: there is none, or it is no experiment.
        """
        if not item.endswith(".yaml") and item not in items():
            raise InputError(f"{item}: no such experiment{nearest(item, items())}; or give a YAML file")
        path = Path(item) if item.endswith(".yaml") else FOLDER / f"{item}.yaml"
        content = _content(path)
        if small:
            content |= content["small"]
        del content["small"]
        if model is not None:
            content["models"] = {model: [{"path": model}]}
        try:
            whole = cls.model_validate(content)
        except ValidationError as error:
            raise InputError(f"{path}: {explain(error)}") from None
        if setting is None:
            return whole
        if setting not in whole.models:
            raise InputError(f"{path}: models: no {setting!r}{nearest(setting, whole.models)}")
        return whole.model_copy(update={"models": {setting: whole.models[setting]}})

    def used(self) -> dict[str, DataSet]:
        """The data sets that are used, with what they have in common filled in."""
        names = [*(self.use or (name for name in self.data if name not in self.unseen)), *self.unseen]
        common = {"task": self.task, "labels": self.labels, "metric": self.metric}
        return {
            name: self.data[name].model_copy(
                update={key: value for key, value in common.items() if getattr(self.data[name], key) is None}
            )
            for name in dict.fromkeys(names)
        }

    def learned(self) -> list[str]:
        """The data sets that there are end models of: those that are used, without the unseen."""
        return [name for name in self.used() if name not in self.unseen]

    def grouped(self, names: list[str]) -> list[list[str]]:
        """Which of the end models of these names are merged."""
        if self.groups == "pairs":
            return [list(pair) for pair in combinations(names, 2)]
        if self.groups == "all":
            return [names]
        if self.groups == "growing":
            return [names[:count] for count in range(2, len(names) + 1)]
        return [group for group in self.groups if set(group) <= set(names)]


def sweep(match: Any, layers: int) -> list[tuple[str | None, Any]]:
    """The matchings that an entry of the file stands for, each with its layers, for a model of so many layers."""
    if not _swept(match):
        return [(None, match)]
    wanted = SWEEPS["one" if match["layers"] == CHOOSE else match["layers"]](layers)
    return [(place, {**match, "layers": place}) for place in wanted]


def chosen(match: Any) -> bool:
    """Whether the best layer is asked for."""
    return isinstance(match, dict) and match.get("layers") == CHOOSE


def _swept(match: Any) -> bool:
    return isinstance(match, dict) and match.get("layers") in (*SWEEPS, CHOOSE)


def items() -> list[str]:
    """The experiments of this folder."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def _content(path: Path) -> dict[str, Any]:
    """A file, laid over the one that it is ``like``: its keys replace that one's, and those of that one's ``small``."""
    own = read_yaml(path)
    like, small = own.pop("like", None), own.pop("small", {})
    if like is None:
        return {**own, "small": small}
    other = _content(path.parent / f"{like}.yaml")
    below = {key: value for key, value in other.pop("small").items() if key not in own}
    return {**other, **own, "small": {**below, **small}}
