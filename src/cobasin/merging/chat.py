"""How the tokenizer of a result writes a chat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cobasin.checkpoints.checkpoint import Checkpoint, Content
from cobasin.checkpoints.typed import Typed
from cobasin.data.chat_templates import CHAT_TEMPLATES, SPECIAL
from cobasin.data.tokens import CHAT_TEMPLATE, has_tokenizer, tokenizer_of
from cobasin.merging.owners import giver, owners
from cobasin.merging.tokens import tokenizer_of_all, tokens_said
from cobasin.recipe import Recipe


def chat_template(recipe: Recipe, models: Sequence[Typed]) -> dict[str, Content]:
    """The file of the template that a recipe asks for; of ``auto`` none where no model has one.

    Transformers takes it before what `tokenizer_config.json` says.

    Raises:
        InputError: a tokenizer cannot be read.
    """
    given = recipe.chat_template
    if given != "auto":
        return {} if given is None else {CHAT_TEMPLATE: CHAT_TEMPLATES.get(given, given)}
    found = Counter(template for model in models if (template := _of(model.checkpoint)) is not None)
    return {CHAT_TEMPLATE: max(found, key=found.__getitem__)} if found else {}  # of as many the first model's


def unknown_tokens(recipe: Recipe, models: Sequence[Typed]) -> list[str]:
    """A note on tokens of a template with a name, if the result's tokenizer lacks some.

    Raises:
        InputError: it cannot be read.
    """
    special = SPECIAL.get(recipe.chat_template or "", ())
    if not special:
        return []
    place = giver(recipe)
    own = models[owners(recipe)[0] if place is None else place].checkpoint
    if not has_tokenizer(own):
        return [f"chat_template: {recipe.chat_template}: the result has no tokenizer that could read it"]
    brought = tokens_said(recipe) or any(model.unknown is not None for model in models)
    tokenizer = tokenizer_of_all(recipe, models, place) if place is not None and brought else tokenizer_of(own)
    if not (lacking := [token for token in special if token not in tokenizer.get_vocab()]):
        return []
    return [
        f"chat_template: {recipe.chat_template} writes {', '.join(lacking)}, which the result's tokenizer does not "
        "have as tokens, and cuts into several; tokenizer: {tokens: ...} can add them"
    ]


def _of(model: Checkpoint) -> str | None:
    """The template that a model's tokenizer takes unless it is told to take another."""
    if not has_tokenizer(model):
        return None
    template = getattr(tokenizer_of(model), "chat_template", None)
    return template.get("default") if isinstance(template, dict) else template
