"""The ``tokenizer`` of a recipe: which tokens the result has, and whose rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from cobasin.errors import nearest
from cobasin.recipe.blocks import Block, Layer, ModelName


class Zero(Block):
    """A row of zeros."""

    kind: Literal["zero"]


class ModelToken(Block):
    """The row of a model that another token has there: by its name, or by its number."""

    kind: Literal["model_token"]
    model: ModelName
    token: Annotated[str, Field(min_length=1)] | None = None
    token_id: Layer | None = None

    @model_validator(mode="after")
    def _one(self) -> ModelToken:
        if (self.token is None) == (self.token_id is None):
            raise ValueError("expected token or token_id, exactly one of them")
        return self


def _kind(given: Any) -> str:
    """Which kind of source it is."""
    if isinstance(given, Zero | ModelToken):
        return given.kind
    return given["kind"] if isinstance(given, Mapping) and "kind" in given else "model"


def _known(given: Any) -> Any:
    """A source as it is given, of a known kind."""
    if isinstance(given, Mapping) and "kind" in given and given["kind"] not in ("zero", "model_token"):
        raise ValueError(f"unknown kind {str(given['kind'])!r}{nearest(str(given['kind']), ('zero', 'model_token'))}")
    return given


# more than any kernel asks for; rows of a mistyped number would fill the memory
Multiple = Annotated[int, Field(strict=True, gt=0, le=1 << 16)]

Source = Annotated[
    Annotated[Zero, Tag("zero")] | Annotated[ModelToken, Tag("model_token")] | Annotated[ModelName, Tag("model")],
    Discriminator(_kind),
    BeforeValidator(_known),
]


class Token(Block):
    """Which row a token has in models that lack it, or in all of them.

    Attributes:
        source: the row; None for the usual one: the base's where it has the token, else the mean of those that have it.
        force: whether models that have the token are given it, too.
    """

    source: Source | None = None
    force: Annotated[bool, Field(strict=True)] = False

    def named(self, listed: Callable[[str], str]) -> None:
        """Write the model that it names, if it does, as the recipe lists it."""
        if isinstance(self.source, ModelToken):
            self.source.model = listed(self.source.model)
        elif isinstance(self.source, str):
            self.source = listed(self.source)

    @property
    def model(self) -> str | None:
        """The model whose row it is, if one is named."""
        if isinstance(self.source, ModelToken):
            return self.source.model
        return self.source if isinstance(self.source, str) else None


class Tokenizer(Block):
    """Which tokens the result has, and whose rows.

    Attributes:
        source: ``base``, ``union`` (as in mergekit also where nothing is said), or a model.
        tokens: by token, which row it has; tokens that the vocabulary lacks are added to it.
        pad_to_multiple_of: the number of rows is made a multiple of this by rows of zeros.
    """

    source: ModelName = "union"
    tokens: dict[Annotated[str, Field(min_length=1)], Token] | None = None
    pad_to_multiple_of: Multiple | None = None

    def named(self, listed: Callable[..., str]) -> None:
        """Write the models that it names as the recipe lists them; ``listed``: of a key, a name, and further words."""
        self.source = listed("tokenizer.source", self.source, "base", "union")
        for token, said in (self.tokens or {}).items():
            said.named(partial(listed, f"tokenizer.tokens.{token}.source"))
