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
    template = _asked(recipe, models)
    return {} if template is None else {CHAT_TEMPLATE: template}


def unknown_tokens(recipe: Recipe, models: Sequence[Typed]) -> list[str]:
    """A note on tokens that a template writes, if the result's tokenizer lacks some.

    Of a template without a name they are those that any of the models has added to its vocabulary.

    Raises:
        InputError: a tokenizer cannot be read.
    """
    given, template = recipe.chat_template, _asked(recipe, models)
    if given is None or template is None:
        return []
    special = SPECIAL[given] if given in SPECIAL else _added(template, models)
    if not special:
        return []
    name = given if given in SPECIAL or given == "auto" else "the template"
    place = giver(recipe)
    own = models[owners(recipe)[0] if place is None else place].checkpoint
    if not has_tokenizer(own):
        return [f"chat_template: {name}: the result has no tokenizer that could read it"]
    brought = tokens_said(recipe) or any(model.unknown is not None for model in models)
    tokenizer = tokenizer_of_all(recipe, models, place) if place is not None and brought else tokenizer_of(own)
    if not (lacking := [token for token in special if token not in tokenizer.get_vocab()]):
        return []
    return [
        f"chat_template: {name} writes {', '.join(lacking)}, which the result's tokenizer does not "
        "have as tokens, and cuts into several; tokenizer: {tokens: ...} can add them"
    ]


def _asked(recipe: Recipe, models: Sequence[Typed]) -> str | None:
    """The text of the template that a recipe asks for."""
    given = recipe.chat_template
    if given != "auto":
        return None if given is None else CHAT_TEMPLATES.get(given, given)
    found = Counter(template for model in models if (template := _of(model.checkpoint)) is not None)
    return max(found, key=found.__getitem__) if found else None  # of as many the first model's


def _added(template: str, models: Sequence[Typed]) -> list[str]:
    """The tokens in a template that models have added to their vocabularies."""
    tokenizers = [tokenizer_of(model.checkpoint) for model in models if has_tokenizer(model.checkpoint)]
    added = [token.content for one in tokenizers for token in one.added_tokens_decoder.values()]
    return [token for token in dict.fromkeys(added) if token in template]


def _of(model: Checkpoint) -> str | None:
    """The template that a model's tokenizer takes unless it is told to take another."""
    if not has_tokenizer(model):
        return None
    template = getattr(tokenizer_of(model), "chat_template", None)
    return template.get("default") if isinstance(template, dict) else template
