"""What a recipe says about a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from cobasin.errors import InputError, explain, known_keys, shown

Role = Literal["text", "text_b", "label", "labels", "tokens", "tags", "image", "input_ids", "attention_mask"]
Format = Literal["jsonl", "json", "csv", "conll", "text", "npz", "images", "datasets"]
ROLES: tuple[Role, ...] = get_args(Role)


class DataConfig(BaseModel):
    """A data set, and how a model reads it.

    Attributes:
        path: a file, a folder, or the id of a data set on the Hugging Face hub.
        format: told from the path where it is not given. ``csv`` is separated by commas, or by tabs (then
            without quoting) where the header has one; of ``conll`` the columns are separated by tabs or blanks.
        name: the configuration of a hub data set that has several.
        split: of `datasets` (``train`` by default), the file of a folder by its name without the suffix, or the
            folder of an image folder's classes.
        columns: role to column, by default the column of the role's own name; null leaves a role out. Roles:
            text, text_b (second of a pair), label (class, score, or target text), labels (of a multi-label model:
            a list of labels, a vector of 0.0 and 1.0, or a map from label to score; of a causal language model its
            input_ids, or -100 where nothing is predicted), tokens and tags (of equal
            length), image, input_ids and attention_mask. For ``conll`` the column's place, by default first and
            last; for ``npz`` the array's name; for ``csv`` without a header the places of all that are used.
        where: column (called as in `columns`) to value: only the rows that have them, such as those of one corpus
            or split of a file.
        labels: the data's label to the model's (name or index); labels that are not in it stay as they are. An
            entry for ``person`` also renames ``B-person`` and ``I-person``, one for ``"true"`` (in quotes) a boolean.
        annotated: of a multi-label model, the labels that the data set annotates at all; the others are NaN. Where
            labels are scores, a label without one (or with null) is NaN anyway.
        threshold: the score above which a label is on.
        max_length: tokens that a text is cut to; the model's limit by default (512 where it has none).
        block: tokens of the blocks that the documents of a language model are cut into; by default ``max_length``,
            or up to 512.
        mean, std: a value a channel (or one for all), for pixels in [0, 1]; instead of the model's own
            preprocessor, where there is one.
        crop: side of the square that is cut out of the middle of an image, in pixels; likewise.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Annotated[
        str, Field(min_length=1), BeforeValidator(lambda path: str(path) if isinstance(path, Path) else path)
    ]
    format: Format | None = None
    name: str | None = None
    split: str | None = None
    columns: dict[Role, str | int | None] = {}
    where: dict[str | int, str | bool | int | float] = {}
    labels: dict[str | int, str | int] = {}
    annotated: Annotated[list[str | int], Field(min_length=1)] | None = None
    threshold: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    max_length: Annotated[int, Field(ge=2)] | None = None
    block: Annotated[int, Field(ge=2)] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[PositiveFloat, ...] | None = None
    crop: PositiveInt | None = None

    @field_validator("columns", "where", "labels", "annotated", mode="before")
    @classmethod
    def _quoted(cls, given: Any, info: ValidationInfo) -> Any:
        """Names that YAML reads as booleans would pass for the numbers 0 and 1."""
        if isinstance(given, Mapping) and info.field_name == "labels":  # 1.0 would become the whole number
            given = {str(name) if isinstance(name, float) else name: label for name, label in given.items()}
        names = [*given] if isinstance(given, (Mapping, list, tuple)) else []
        if isinstance(given, Mapping) and info.field_name != "where":  # whose values may be booleans
            names += given.values()
        if booleans := [name for name in names if isinstance(name, bool)]:
            raise ValueError(
                f"{booleans[0]} is no name (YAML reads yes, no, on, off, true and false without quotes as booleans); "
                "write the word in quotes, like 'true'"
            )
        return given

    @field_validator("threshold", "max_length", "block", "mean", "std", "crop", mode="before")
    @classmethod
    def _number(cls, given: Any) -> Any:
        """True would pass for 1."""
        if any(isinstance(value, bool) for value in (given if isinstance(given, (list, tuple)) else [given])):
            raise ValueError(f"{shown(given)} is no number")
        return given

    @model_validator(mode="after")
    def _normalisation(self) -> Self:
        if (self.mean is None) != (self.std is None) or len(self.mean or ()) != len(self.std or ()) or self.mean == ():
            raise ValueError("mean and std go together, a value a channel in both")
        if any(not 0 <= value <= 1 for value in (*(self.mean or ()), *(self.std or ()))):
            raise ValueError("mean and std are those of pixels from 0 to 1; divide those of pixels to 255 by 255")
        return self

    @classmethod
    def of(cls, given: str | Path | Mapping[str, Any] | DataConfig) -> DataConfig:
        """A data set by its path, or by its keys and values.

        Raises:
            InputError: for unknown keys and values that do not fit.
        """
        try:
            return described(given)
        except ValueError as error:
            raise InputError(f"data: {error}") from None


def described(given: Any) -> DataConfig:
    """A data set by its path, or by its keys and values.

    Raises:
        ValueError: for unknown keys and values that do not fit.
    """
    if isinstance(given, DataConfig):
        return given
    if isinstance(given, (str, Path)):
        given = {"path": given}
    try:
        return DataConfig.model_validate(known_keys(given, DataConfig.model_fields))
    except ValidationError as error:
        raise ValueError(explain(error)) from None


DataSet = str | Path | Mapping[str, Any] | DataConfig | Sequence[Mapping[str, Any]]
"""A data set as Python takes it: its path, its keys and values, or rows by role, also as a `Dataset` of datasets."""
