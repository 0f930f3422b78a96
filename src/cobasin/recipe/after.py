"""What follows the merge, where a recipe asks for it: ``repair`` and ``heal``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cobasin.data.config import DataConfig
from cobasin.errors import InputError
from cobasin.fusion.registry import Method
from cobasin.recipe.blocks import Block, Data, Positive, Seed

INPUTS = ("data", "samples", "seed")


class Repair(Block):
    """Statistics of the norms reset to those between the parents (see `cobasin.merging.repair`).

    ``true`` in a recipe stands for it with all defaults.

    Attributes:
        data, samples, seed: the inputs that it is done on, which are made up without ``data``.
    """

    data: Data = None
    samples: Positive | None = None
    seed: Seed = 0

    @model_validator(mode="before")
    @classmethod
    def _word(cls, content: Any) -> Any:
        if content is False:
            raise ValueError("to leave it out, leave the key out")
        return {} if content is True else content


class Heal(Repair):
    """A few steps of training (see `cobasin.merging.heal`).

    A number in a recipe stands for so many steps, with all defaults.

    Attributes:
        steps: at most.
        loss: ``parents``, to answer as they do on average; ``labels``, those of the data.
        rate: of learning.
    """

    steps: Positive
    loss: Literal["parents", "labels"] = "parents"
    rate: Annotated[float, Field(gt=0, lt=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _number(cls, content: Any) -> Any:
        return {"steps": content} if type(content) is int else content


@dataclass(frozen=True)
class After:
    """Both, on the same inputs, so that what they do can be compared.

    Attributes:
        repair, heal: None where it is not asked for.
        data, samples, seed: as either of them says.
    """

    repair: Repair | None
    heal: Heal | None
    data: DataConfig | None
    samples: int | None
    seed: int

    @classmethod
    def of(cls, repair: Repair | None, heal: Heal | None) -> After | None:
        """What a recipe asks for, None where that is nothing.

        Raises:
            InputError: for blocks with different inputs; for labels without data.
        """
        blocks = [block for block in (repair, heal) if block is not None]
        if not blocks:
            return None
        inputs: dict[str, Any] = {"data": None, "samples": None, "seed": 0}
        for key in INPUTS:
            given = [getattr(block, key) for block in blocks if key in block.model_fields_set]
            if any(other != given[0] for other in given):
                raise InputError(f"repair.{key} and heal.{key} differ: both are done on the same inputs; give it once")
            inputs |= {key: given[0]} if given else {}
        if heal is not None and heal.loss == "labels" and inputs["data"] is None:
            raise InputError("heal.loss labels needs data with labels: say where they are under heal.data")
        return cls(repair, heal, **inputs)

    def check(self, method: Method, base: str | None, keeps: bool) -> None:
        """Check that it goes with a merge by a method, with a ``base`` or none, of models that keep their heads or not.

        Raises:
            InputError: the result is several models, or lies not between those that are merged, or no one knows where.
        """
        if method.stacks:
            raise InputError(
                "repair and heal: passthrough stacks layers, so its result lies not between models; leave them out"
            )
        if keeps:
            raise InputError("repair and heal make one model, head: keep several; name the model whose head to take")
        if self.repair is None:
            return
        if base is not None and not method.first_is_base:
            why = "adds to a base what others have learned, so its result lies not between models"
            raise InputError(f"repair: {method.name} {why}; leave repair out")
        if "weight" not in method.parameters and method.name != "slerp":
            why = "does not say how much each model counts, between which statistics would lie"
            raise InputError(f"repair: {method.name} {why}; leave repair out")
