"""How the tokenizer of a result writes a chat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cobasin.checkpoints.checkpoint import Checkpoint, Content
from cobasin.checkpoints.typed import Typed
from cobasin.data.tokens import CHAT_TEMPLATE, tokenizer_files, tokenizer_of
from cobasin.recipe import Recipe


def chat_template(recipe: Recipe, models: Sequence[Typed]) -> dict[str, Content]:
    """The file of the template that a recipe asks for; of ``auto`` none where no model has one.

    Transformers takes it before what `tokenizer_config.json` says.

    Raises:
        InputError: a tokenizer cannot be read.
    """
    if recipe.chat_template != "auto":
        return {} if recipe.chat_template is None else {CHAT_TEMPLATE: recipe.chat_template}
    found = Counter(template for model in models if (template := _of(model.checkpoint)) is not None)
    return {CHAT_TEMPLATE: max(found, key=found.__getitem__)} if found else {}  # of as many the first model's


def _of(model: Checkpoint) -> str | None:
    """The template that a model's tokenizer takes unless it is told to take another."""
    if model.folder is None or not tokenizer_files(model.folder):
        return None
    template = getattr(tokenizer_of(model), "chat_template", None)
    return template.get("default") if isinstance(template, dict) else template
