"""The blocks of a recipe. A key that a block does not know is refused, and the nearest one suggested."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, field_validator, model_validator

from cobasin.data.config import DataConfig, described
from cobasin.errors import InputError, known_keys, shown
from cobasin.finding.search import Search
from cobasin.matching.choice import Choice
from cobasin.paths import check_name

LAYER_BY_LAYER = "cobasin merges layer k of one model with layer k of the others"


def _model(name: Any) -> Any:
    """A folder or hub id, maybe with an adapter."""
    if isinstance(name, Path):
        name = str(name)
    if isinstance(name, Mapping):
        name = _of_parts(name)
    if isinstance(name, str):
        check_name(name)
    return name


def _of_parts(given: Mapping[str, Any]) -> Any:
    """A model as mergekit writes it in recipes of its own making, like ``{model: {path: ./a}}``, in one text."""
    parts = {key: part for key, part in given.items() if part is not None}
    known = "model" in parts and parts.keys() <= {"model", "lora"}
    if not known or not all(isinstance(part, Mapping) and isinstance(part.get("path"), str) for part in parts.values()):
        return given
    texts = [parts[key] for key in ("model", "lora") if key in parts]
    return "+".join(one["path"] + (f"@{one['revision']}" if one.get("revision") else "") for one in texts)


def _device(name: str) -> str:
    """A device in torch's words."""
    if not re.fullmatch(r"auto|cpu|mps|(cuda|xpu)(:\d+)?", name):
        raise ValueError(f"{shown(name)}: expected auto, cpu, cuda, cuda:1 (or another number), mps or xpu")
    return name


ModelName = Annotated[str, Field(min_length=1), BeforeValidator(_model)]
Positive = Annotated[int, Field(strict=True, gt=0, lt=1 << 63)]
Device = Annotated[str, AfterValidator(_device)]
Layer = Annotated[int, Field(strict=True, ge=0)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]
Data = Annotated[DataConfig | None, BeforeValidator(lambda given: None if given is None else described(given))]


class Block(BaseModel):
    """A part of a recipe with known keys."""

    unsupported: ClassVar[dict[str, str]] = {}
    """Keys of mergekit that are refused by name: what to do instead."""

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, content: Any) -> Any:
        return content if isinstance(content, cls) else known_keys(content, cls.model_fields, cls.unsupported)


class Entry(Block):
    """A model, with parameters of its own."""

    unsupported = {"layer_range": "it goes with slices: and their sources:; leave it out where it is all layers"}
    model: ModelName
    parameters: dict[str, Any] | None = None


class Source(Entry):
    """A model in a slice."""

    unsupported = {}
    layer_range: tuple[Layer, Layer]


class Slice(Block):
    """Layers that have parameters, and gradients, of their own."""

    unsupported = {"residual_weight": f"{LAYER_BY_LAYER}; leave it out"}
    sources: list[Source] = Field(min_length=1)
    base_model: ModelName | None = None
    parameters: dict[str, Any] | None = None


class Module(Block):
    """The whole model, in mergekit's notation for models of several modules."""

    models: list[Entry] | None = Field(default=None, min_length=1)
    slices: list[Slice] | None = Field(default=None, min_length=1)
    parameters: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one(self) -> Module:
        if (self.models is None) == (self.slices is None):
            raise ValueError("expected models or slices, exactly one of them")
        return self


class Matching(Block):
    """How the models are brought together before they are merged.

    Attributes:
        symmetry: ``none``, or as in `cobasin.match`.
        anchor: ``medoid``, ``consensus`` or a model.
        layers: only these, like ``0-4,7``.
        method: ``weights``, ``activations`` or ``learned``, as in `cobasin.match`.
        data, samples, seed: the inputs of the latter two, which are made up without ``data``.
        steps: of ``learned``, at most.
        loss: of ``learned``: ``parents``, to answer as the models do on average; ``labels``, those of the data.
        move: of ``learned``: ``source``, the reference stays; ``all``, its scales and general maps move, too.
        orders: of ``learned``: whether the orders of FFN neurons are learned, too.
        device: where models run, and weights are matched; see `cobasin.match`.
    """

    symmetry: str = "full"
    anchor: str = Field(default="medoid", min_length=1)
    layers: str | None = None
    method: Literal["weights", "activations", "learned"] = "weights"
    data: Data = None
    samples: Positive | None = None
    seed: Seed = 0
    steps: Positive | None = None
    loss: Literal["parents", "labels"] | None = None
    move: Literal["source", "all"] | None = None
    orders: Annotated[bool, Field(strict=True)] | None = None
    device: Device = "auto"

    @model_validator(mode="before")
    @classmethod
    def _word(cls, content: Any) -> Any:
        if content is None:
            return {"symmetry": "none"}
        if content is False:  # no and off in YAML
            raise ValueError("to merge the models as they are, write none or leave it out")
        return {"symmetry": content} if isinstance(content, (str, list)) else content

    @field_validator("symmetry", "layers", mode="before")
    @classmethod
    def _spelled(cls, given: Any) -> Any:
        """Lists and numbers of YAML, as the command line spells them."""
        if isinstance(given, list):
            return ",".join(map(str, given))
        return str(given) if type(given) is int else given

    @property
    def search(self) -> dict[str, Any]:
        """What it says of how to search, as arguments of `cobasin.match`."""
        keys = ("method", "data", "samples", "seed", "steps", "loss", "move", "orders", "device")
        return {key: value for key in keys if (value := getattr(self, key)) is not None}

    @model_validator(mode="after")
    def _readable(self) -> Matching:
        try:
            Search(**self.search)
            if self.symmetry != "none":
                Choice.parse(self.symmetry, self.layers)
        except InputError as error:
            raise ValueError(str(error).replace("expected full", "expected none, full")) from None
        if self.symmetry == "none" and (self.layers, self.anchor, self.method) != (None, "medoid", "weights"):
            raise ValueError("nothing is matched with symmetry none; leave anchor, layers and method out")
        if self.method == "activations" and self.anchor == "consensus":
            raise ValueError("anchor consensus is not found by method activations; take medoid, a model, or learned")
        return self


class Statistics(Block):
    """The ``statistics`` of a recipe: what the method's statistics are collected on.

    Attributes:
        data: for all models, or a list with one for each, in their order.
        samples: rows that are read.
        batch_size: rows at a time.
        seed: of which rows are read, and of what is drawn from the models' distributions.
        fisher: ``exact``, labels drawn from the model's own distribution; ``empirical``, the labels of the data.
        cache: a folder that keeps what was collected.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ...
    """

    data: DataConfig | list[DataConfig] | None = None
    samples: Positive = 1000
    batch_size: Positive = 16
    seed: Seed = 0
    fisher: Literal["exact", "empirical"] = "exact"
    cache: Annotated[str, Field(min_length=1)] | None = None
    device: Device = "auto"

    @field_validator("data", mode="before")
    @classmethod
    def _described(cls, given: Any) -> Any:
        if isinstance(given, list):
            return [described(one) for one in given]
        return None if given is None else described(given)
