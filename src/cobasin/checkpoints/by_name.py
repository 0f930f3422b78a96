"""Models that no declaration covers: their tensors go together by name, and nothing can act on them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.fit import DEPTHS, check_config, check_unpacked, sizes_said
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.vocabulary_files import vocabulary_problems
from cobasin.checkpoints.weight_files import WEIGHT_DTYPES, of_weights
from cobasin.checkpoints.wrapped import saved_with
from cobasin.errors import InputError, listed
from cobasin.symmetry.spec import UNDECLARED, Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# What looks like a setting of training, and changes what is computed afterwards, too.
_AT_WORK = (
    r"\w*token_dropout|speech_decoder_prenet_dropout|per_loop_lm_dropout|normalize_router_prob_before_dropping|"
    r"drop_vision_last_layer|embedding_init_target"
)
# What configs say beside the function: how a model was made and is trained, and what it is called.
_BESIDE = re.compile(
    rf"(?!(.*\.)?({_AT_WORK})$)"
    r"(.*\.)?(_.*|architectures|auto_map|(torch_)?dtype|transformers_version|label2id|problem_type|finetuning_task|"
    r"task_specific_params|use_cache|return_dict|output_(attentions|hidden_states|router_logits)|gradient_checkpointing|"
    r"tokenizer_class|unsloth_\w*|transformers\.js_config|"
    r"\w*(drop|init_|initializer|loss)\w*)"
)


def by_name(checkpoint: Checkpoint) -> Typed:
    """A model whose tensors are what they are: every axis is fixed, and what is no weight is copied.

    Its layers are told by a number in the names, where as many follow each other as the config has layers in a stack.

    Raises:
        InputError: it is quantized, or wrapped, or has complex weights or none.
    """
    check_config(checkpoint)
    check_unpacked(checkpoint)
    if why := saved_with(checkpoint.headers):
        raise InputError(f"{checkpoint.label}: {why}")
    for name, dtype in ((name, header.dtype) for name, header in checkpoint.headers.items()):
        if dtype.is_complex or dtype == torch.int8:  # no counter, and no mask
            raise InputError(f"{checkpoint.label}: {name} has dtype {dtype}, expected {WEIGHT_DTYPES}")
    weights = {name: header.shape for name, header in checkpoint.headers.items() if of_weights(header.dtype)}
    if not weights:
        raise InputError(f"{checkpoint.label}: none of its tensors is a weight (of dtype {WEIGHT_DTYPES})")
    spaces = {f"size_{size}": Space(size) for shape in weights.values() for size in shape}
    templates, stacks = dict[str, str](), _stacks(weights, checkpoint.config)
    for depth in stacks.values():
        spaces[space := f"{depth}_layer"] = Space(depth)
        # each by itself, because not all have the same tensors, or these of the same shape
        spaces |= {f"layer_{i}_of_{depth}": Space(1, within=space, values=(i,)) for i in range(depth)}
    copied = tuple(re.escape(name) for name in checkpoint.headers if name not in weights)
    plain = Spec(checkpoint.architecture, {}, {}, buffers=copied, version=UNDECLARED)
    for name, disk in plain.disk_names(weights).items():
        before, number, behind = _numbered(name)
        template = f"{before}{{layer_{number}_of_{stacks[before]}}}{behind}" if before in stacks else name
        axes = ("1" if size == 1 else f"size_{size}" for size in weights[disk])
        templates[template] = " ".join(axes) or "scalar"
    return Typed(checkpoint, replace(plain, spaces=spaces, templates=templates))


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
        first, second = (model.headers.get(name) for model in (one, other))
        if first is None or second is None:
            problems.append(f"{name} is only in {(one if second is None else other).label}")
        elif first.shape != second.shape:
            problems.append(f"{name} has shape {first.shape} in {one.label} and {second.shape} in {other.label}")
        elif of_weights(first.dtype) != of_weights(second.dtype):
            problems.append(f"{name} has dtype {first.dtype} in {one.label} and {second.dtype} in {other.label}")
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


def _stacks(names: Iterable[str], config: PreTrainedConfig) -> dict[str, int]:
    """The beginnings of names behind which the numbers of all layers of a stack stand, and no others; and how many."""
    depths = {count for key, count in sizes_said(config, DEPTHS) if not key.endswith("depths")}  # of stages
    depths.add(getattr(config, "num_hidden_layers", 0))
    found: dict[str, set[int]] = {}
    for before, number, _ in map(_numbered, names):
        if number is not None:
            found.setdefault(before, set()).add(number)
    counts = {before: len(numbers) for before, numbers in found.items() if max(numbers) == len(numbers) - 1}
    return {before: count for before, count in counts.items() if count in depths}


def _numbered(name: str) -> tuple[str, int | None, str]:
    """A name before the first number in it, that number, and what follows; one like 00 could not be written again."""
    match = re.fullmatch(r"(.*?\.)(0|[1-9]\d*)(\..*)", name)
    return (match[1], int(match[2]), match[3]) if match else (name, None, "")
