"""Models that no declaration covers: their tensors go together by name, and nothing can act on them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.fit import check_config, check_unpacked
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.vocabulary_files import vocabulary_problems
from cobasin.checkpoints.weight_files import of_weights
from cobasin.checkpoints.wrapped import saved_with
from cobasin.errors import InputError, listed, whole
from cobasin.symmetry.spec import UNDECLARED, Space, Spec

# What configs say beside the function: how a model was made and is trained, and what it is called.
_BESIDE = re.compile(
    r"(.*\.)?(_.*|architectures|auto_map|(torch_)?dtype|transformers_version|label2id|problem_type|finetuning_task|"
    r"task_specific_params|use_cache|return_dict|output_(attentions|hidden_states|router_logits)|gradient_checkpointing|"
    r"\w*(drop|init_|initializer|loss)\w*)"
)


def by_name(checkpoint: Checkpoint) -> Typed:
    """A model whose tensors are what they are: every axis is fixed, and what is no weight is copied.

    Its layers are told by a number in the names, where as many follow each other as the config has layers.

    Raises:
        InputError: it is quantized, or wrapped.
    """
    check_config(checkpoint)
    check_unpacked(checkpoint)
    if why := saved_with(checkpoint.headers):
        raise InputError(f"{checkpoint.label}: {why}")
    weights = {name: header.shape for name, header in checkpoint.headers.items() if of_weights(header.dtype)}
    spaces = {f"size_{size}": Space(size) for shape in weights.values() for size in shape}
    templates, depth = dict[str, str](), getattr(checkpoint.config, "num_hidden_layers", 0)
    if stacks := _stacks(weights, depth):
        spaces["layer"] = Space(depth)
    for name, shape in weights.items():
        before, _, behind = _numbered(name)
        template = f"{before}{{layer}}{behind}" if before in stacks else name
        templates[template] = " ".join("1" if size == 1 else f"size_{size}" for size in shape)
    copied = tuple(re.escape(name) for name in checkpoint.headers if name not in weights)
    return Typed(checkpoint, Spec(checkpoint.architecture, spaces, templates, buffers=copied, version=UNDECLARED))


def check_by_name(a: Typed, b: Typed) -> None:
    """Check that two models of `by_name` are of one architecture, with the same settings, tensors and tokens.

    Raises:
        InputError: with every difference.
    """
    one, other = a.checkpoint, b.checkpoint
    said = [dict(_settings(model.config.to_dict())) for model in (one, other)]
    problems = [
        f"{key} is {said[0].get(key)!r} in {one.label} and {said[1].get(key)!r} in {other.label}"
        for key in dict.fromkeys([*said[0], *said[1]])
        if said[0].get(key) != said[1].get(key)
    ]
    for name in sorted(one.headers.keys() | other.headers.keys()):
        shapes = [model.headers[name].shape if name in model.headers else None for model in (one, other)]
        if None in shapes:
            problems.append(f"{name} is only in {(one if shapes[1] is None else other).label}")
        elif shapes[0] != shapes[1]:
            problems.append(f"{name} has shape {shapes[0]} in {one.label} and {shapes[1]} in {other.label}")
    if one.folder and other.folder:
        problems += vocabulary_problems(one.folder, other.folder)
    if one.architecture != other.architecture:
        problems = [f"one is a {one.architecture}, the other a {other.architecture}"]
    if problems:
        raise InputError(f"{one.label} and {other.label} cannot be merged by name: {listed(problems)}")


def _settings(config: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """What a config says of the function, those within it, too."""
    for key, value in config.items():
        if _BESIDE.fullmatch(f"{within}{key}"):
            continue
        if isinstance(value, Mapping) and key != "id2label":
            yield from _settings(value, f"{within}{key}.")
        else:
            yield f"{within}{key}", value


def _stacks(names: Iterable[str], depth: object) -> frozenset[str]:
    """The beginnings of names behind which the numbers of all layers stand, and no others."""
    if not whole(depth):
        return frozenset()
    found: dict[str, set[int]] = {}
    for before, number, _ in map(_numbered, names):
        if number is not None:
            found.setdefault(before, set()).add(number)
    return frozenset(before for before, numbers in found.items() if numbers == {*range(depth)})


def _numbered(name: str) -> tuple[str, int | None, str]:
    """A name before the first number in it, that number, and what follows."""
    match = re.fullmatch(r"(.*?\.)(\d+)(\..*)", name)
    return (match[1], int(match[2]), match[3]) if match else (name, None, "")
