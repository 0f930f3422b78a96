"""A data set as the command line names it."""

from __future__ import annotations

from typing import Any

from cobasin.data.config import DataConfig, described
from cobasin.errors import InputError
from cobasin.recipe.document import read_yaml


def data_config(data: str, split: str | None = None) -> DataConfig:
    """The data set that a path names, or a YAML file describes.

    Raises:
        InputError: for a YAML file that cannot be read, or describes no data set.
    """
    content: dict[str, Any] = {"path": data}
    if data.lower().endswith((".yaml", ".yml")):
        content = read_yaml(data, "path: and columns:")
    try:
        found = described(content)
    except ValueError as error:
        raise InputError(f"{data or '--data'}: {error}") from None
    return found if split is None else found.model_copy(update={"split": split})
