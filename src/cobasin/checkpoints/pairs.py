"""Can two checkpoints be compared at all? Of one class, with settings, sizes and vocabularies that agree."""

from __future__ import annotations

from functools import reduce

from cobasin.architectures.parts import sides
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.vocabulary_files import vocabulary_problems
from cobasin.errors import InputError, listed

# What Transformers takes for a key that a config does not have; some are in files of older versions only.
_DEFAULTS = {
    "use_bidirectional_attention": False,
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    # of DeBERTa
    "pos_att_type": [],
    "norm_rel_ebd": "none",
    "share_att_key": False,
    "position_buckets": -1,
    "conv_act": "tanh",
}
# Names of one function, or of one that differs by rounding.
_ALSO_CALLED = {
    "swish": "silu",
    "gelu_python": "gelu",
    **dict.fromkeys(("gelu_accurate", "gelu_python_tanh", "gelu_pytorch_tanh", "gelu_fast"), "gelu_new"),
}


def check_pair(source: Typed, anchor: Typed) -> None:
    """Check all that headers and configs can tell about a pair, before any tensor is read.

    Raises:
        InputError: with every difference that makes the two incomparable.
    """
    a, b = source.checkpoint, anchor.checkpoint
    if a.architecture != b.architecture:
        bare = [one.folder for one in (a, b) if one.folder and one.architecture not in (one.config.architectures or ())]
        why = "".join(f"; {folder} is read as modules.json says, without a head" for folder in bare)
        raise InputError(
            f"{a.label} is a {a.architecture}, {b.label} is a {b.architecture}: only models of one architecture match"
            + why
        )
    check_layers(source, anchor, same_class=True)


def check_layers(source: Typed, anchor: Typed, same_class: bool = False) -> None:
    """Check settings, sizes and vocabularies; of two classes those that they share: what a head needs is its own.

    Raises:
        InputError: with every difference that makes what the two compute, before their heads at least, incomparable.
    """
    a, b = source.checkpoint, anchor.checkpoint
    problems = other_settings(source, anchor, same_class)
    for name, space in source.spec.spaces.items():
        other = anchor.spec.spaces.get(name)
        own = name == "label" or (other is None and not same_class)  # of a head, such as books of pre-training
        if not own and (other is None or other.size != space.size):
            problems.append(f"{name} has size {space.size} in {a.label} and {other and other.size} in {b.label}")
    if same_class and not problems:  # files may differ in what no config says, such as a pooler
        problems += _only_in_one(source, anchor)
    vocabulary = any(problem.startswith("vocab ") for problem in problems)
    brought = source.unknown is not None or anchor.unknown is not None  # whatever the files in their folders say
    if not brought and a.folder and b.folder and (found := vocabulary_problems(a.folder, b.folder)):
        problems, vocabulary = [*problems, *found], True
    if problems:
        to_one = (
            ". A merge brings models to one vocabulary if told to which (--tokenizer-source, or in a recipe); a match "
            "by weights takes the tokens that both have. Each needs its tokenizer"
        )
        way_out = to_one if vocabulary else ""
        raise InputError(f"{a.label} and {b.label} do not compute comparable functions: {listed(problems)}{way_out}")


def other_settings(source: Typed, anchor: Typed, same_class: bool) -> list[str]:
    """In which of the settings that change their functions two models differ; of two classes those that they share."""
    a, b = source.checkpoint, anchor.checkpoint
    keys, others = source.spec.function_keys, anchor.spec.function_keys
    keys = (*keys, *others) if same_class else [key for key in keys if key in others]
    masks = [f"{part}{dot}is_causal" for part, dot, _ in (key.rpartition(".") for key in keys)]  # of every tower
    encoder = not same_class and a.config.is_encoder_decoder != b.config.is_encoder_decoder  # is all that they share
    settings = {key: [_setting(one, key, encoder) for one in (source, anchor)] for key in (*keys, *masks)}
    return [
        f"{key} is {one!r} in {a.label} and {other!r} in {b.label}"
        for key, (one, other) in settings.items()
        if one != other
    ]


def _only_in_one(source: Typed, anchor: Typed) -> list[str]:
    """What tensors one of two files of the same class and sizes has and the other lacks."""
    return [
        f"{name} is only in {one.checkpoint.label}"
        for one, other in ((source, anchor), (anchor, source))
        for name in sorted(one.spec.entries.keys() - other.spec.entries.keys())
    ]


def _setting(typed: Typed, key: str, encoder: bool) -> object:
    """What the config says; of a rotary embedding without the old name of its type, which some files repeat.

    A dotted key (``text_config.hidden_act``) is looked up in a config within the config. Of an encoder-decoder it may
    be that of the ``encoder`` alone.
    """
    config = typed.checkpoint.config

    def said(part: object, name: str) -> object:
        if name == "is_causal":  # attention takes it from any config that has it, null as well
            if config.is_encoder_decoder:
                return getattr(part, name, False if encoder else "as the code has it")
            return getattr(part, name, key in typed.spec.function_keys)
        found = getattr(part, name, None)
        return _DEFAULTS.get(name) if found is None else found

    value = reduce(said, key.split("."), config)
    if key == "pos_att_type" and isinstance(value, (list, tuple)):
        return sorted(value)
    if key.endswith(("image_size", "patch_size")) and isinstance(value, (int, list, tuple)):
        return sides(value)
    if key == "attention_window" and isinstance(value, int):
        return [value] * config.num_hidden_layers  # as LED and Longformer write it once they are built
    return _said_once(value)


def _said_once(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, str):
        return _ALSO_CALLED.get(value, value)
    if not isinstance(value, dict):
        return value
    return {
        name: _said_once(entry)  # some models have a rotary embedding for every kind of layer
        for name, entry in value.items()
        if name != "type" or "rope_type" not in value
    }
