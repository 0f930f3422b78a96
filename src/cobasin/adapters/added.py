"""Models as recipes name them: ``BASE+ADAPTER`` is a base with a LoRA added to its weights, as in mergekit's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cobasin.adapters.folder import is_adapter, load_adapter
from cobasin.adapters.headed import headed
from cobasin.adapters.merged import merged
from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.paths import expanded


def adapter_in(name: str) -> str | None:
    """The adapter that the name of a model adds to its base; None where it is a folder's, or adds none."""
    base, plus, adapter = name.rpartition("+")
    return adapter if plus and base and adapter and not expanded(name).exists() else None


def load_named(model: Any) -> Checkpoint:
    """Anything `load` takes, or the name of a base with an adapter: the base's files and dtypes, its weights adapted.

    Raises:
        InputError: as `load` and `load_adapter`; for an adapter without a base, or that does not fit it, or that acts
            on some tokens only (aLoRA).
    """
    name = adapter_in(model) if isinstance(model, str) else None
    if name is None:
        if is_adapter(model):
            raise InputError(f"{model}: is an adapter; name it with the base that it is for, as BASE+{model}")
        return load(model)
    start = model.removesuffix(f"+{name}")
    if adapter_in(start) is not None:
        raise InputError(
            f"{model}: two adapters, or one whose name has a plus; a merge adds one, what is behind the last plus: "
            "rename it, or merge the other into the base first (peft: merge_and_unload)"
        )
    adapter = load_adapter(name)
    if adapter.config.get("alora_invocation_tokens"):
        raise InputError(
            f"{name}: acts behind its alora_invocation_tokens only, as no weights of a model do; such an adapter stays "
            "beside its base, and is not merged"
        )
    base = Typed.of(headed(adapter, load(start)))
    return replace(merged(base, adapter), label=model)
