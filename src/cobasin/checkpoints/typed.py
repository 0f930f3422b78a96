"""Checkpoints with their types: tensors by spec name, and the checks that need no tensor."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from pathlib import Path

import torch
from torch import Tensor

from cobasin.architectures import declare, known
from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.weight_files import listed
from cobasin.errors import InputError
from cobasin.symmetry.spec import Spec
from cobasin.symmetry.types import TypeSyntaxError

# What Transformers takes for a key that a config does not have.
_DEFAULTS = {"is_causal": True}
# Two models that say the same in the first of these files that both have, have the same vocabulary.
_VOCABULARY_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
)


@dataclass(frozen=True)
class Typed(Mapping[str, Tensor]):
    """A checkpoint read by spec names. A tied tensor that the file lacks is read from the one it repeats."""

    checkpoint: Checkpoint
    spec: Spec

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Typed:
        """Type a checkpoint.

        Raises:
            InputError: for an unknown architecture, a config that cannot be that architecture's, or with the
                tensors that do not fit, in one message.
        """
        config, architecture, label = checkpoint.config, checkpoint.architecture, checkpoint.label
        expected = known().get(architecture, config.model_type)
        if config.model_type != expected:
            raise InputError(
                f"{label}: the config is of model_type {config.model_type!r}, but {architecture} is of {expected!r}"
            )
        try:
            spec = declare(config, architecture, checkpoint.headers)
        except InputError as error:
            raise InputError(f"{label}: {error}") from error
        except (ArithmeticError, TypeError, TypeSyntaxError) as error:  # transformers lets some impossible sizes pass
            raise InputError(f"{label}: the config is not that of a {architecture}: {error}") from error
        problems = spec.problems({name: (header.shape, header.dtype) for name, header in checkpoint.headers.items()})
        if problems:
            unexpected = any(line.startswith("unexpected") for line in problems)
            way_out = ". Remove what is unexpected from the file, or name the class that reads it in config.json"
            raise InputError(f"{label} does not fit {architecture}: {listed(problems)}{way_out if unexpected else ''}")
        return cls(checkpoint, spec)

    def untied(self) -> Typed:
        """The same model with its head a tensor of its own."""
        config = copy.deepcopy(self.checkpoint.config)
        config.tie_word_embeddings = False
        label, architecture = self.checkpoint.label, self.checkpoint.architecture
        headers = dict(self.checkpoint.headers)
        spec = declare(config, architecture, headers)
        own = [name for name in self.spec.tied if name not in self.disk_names and name not in spec.tied]
        for name in own:
            headers[name] = replace(headers[self.disk_names[self.spec.tied[name]]])

        def read(on_disk: str) -> Tensor:
            return self[on_disk] if on_disk in own else self.checkpoint[on_disk]

        return Typed(Checkpoint(label, config, architecture, headers, read, self.checkpoint.folder), spec)

    @cached_property
    def disk_names(self) -> dict[str, str]:
        """Spec name to on-disk name."""
        return self.spec.disk_names(self.checkpoint.headers)

    @cached_property
    def heads(self) -> list[str]:
        """Tensors that carry the labels of a task."""
        return [
            name
            for name, entry in self.spec.entries.items()
            if any(axis.space == "label" for block in entry.layout.blocks for axis in block.axes)
        ]

    @cached_property
    def task_heads(self) -> list[str]:
        """`heads`, and the tensors that lead to them: in the same modules, or in others outside the base model."""
        names, prefix = self.disk_names, self.spec.prefix
        modules = {name.split(".")[0] for name in self.heads}
        if modules and prefix and any(disk.startswith(prefix) for disk in names.values()):
            modules |= {name.split(".")[0] for name, disk in names.items() if not disk.startswith(prefix)}
        return [name for name in self.spec.entries if name.split(".")[0] in modules]

    @property
    def labels(self) -> object:
        """The label set, None for a model without a task head."""
        return self.checkpoint.config.id2label if self.heads else None

    def __getitem__(self, name: str) -> Tensor:
        if stack := self.spec.entries[name].stack:
            return torch.stack([self._read(part) for part in stack])
        if name not in self.disk_names and name in self.spec.tied:
            name = self.spec.tied[name]
        return self._read(name)

    def _read(self, name: str) -> Tensor:
        tensor = self.checkpoint[self.disk_names[name]]
        if name not in self._checked:
            self._check(name, tensor)
            self._checked.add(name)
        return tensor

    @cached_property
    def _checked(self) -> set[str]:
        return set()

    def _check(self, name: str, tensor: Tensor) -> None:
        """Refuse, on first sight, what only the values can tell."""
        label, disk = self.checkpoint.label, self.disk_names
        if not _is_finite(tensor):
            raise InputError(
                f"{label}: {disk[name]} has NaN or infinite values; the file is damaged or the training diverged"
            )
        for tied, twin in self.spec.tied.items():
            # versions of transformers differ in what they load
            if twin == name and tied in disk and not torch.equal(self.checkpoint[disk[tied]], tensor):
                raise InputError(
                    f"{label}: the config ties {disk[tied]} to {disk[name]}, but their values differ; "
                    "remove the first from the file, or set tie_word_embeddings to false in config.json"
                )

    def __iter__(self) -> Iterator[str]:
        return iter(self.spec.entries)

    def __len__(self) -> int:
        return len(self.spec.entries)

    def derived(self, state: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> Checkpoint:
        """The checkpoint with its tensors taken from ``state`` (by spec name) as they are asked for.

        They are cast to the dtype they have here, or to ``dtype``. Buffers are carried along unchanged.
        """
        spec_names = {disk: name for name, disk in self.disk_names.items()}
        headers = {
            disk: replace(header, dtype=dtype or header.dtype) if disk in spec_names else header
            for disk, header in self.checkpoint.headers.items()
        }

        source, config = self.checkpoint, self.checkpoint.config
        if dtype is not None:
            config = copy.deepcopy(config)
            config.dtype = dtype
        # a file asks for the tensors of a stack one by one, mostly in turn with those of two others
        stacked = lru_cache(maxsize=4)(state.__getitem__)

        def read(disk: str) -> Tensor:
            if disk not in spec_names:
                return self.checkpoint[disk]
            name, place = self.spec.file_entries[spec_names[disk]]
            tensor = (state[name] if place is None else stacked(name)[place].clone()).to(headers[disk].dtype)
            if not _is_finite(tensor):
                raise InputError(
                    f"{source.label}: {disk}, transformed, does not fit {tensor.dtype}: its largest values become "
                    "infinite; convert the models to bfloat16 or float32 first"
                )
            return tensor

        return Checkpoint(source.label, config, source.architecture, headers, read, source.folder)


def _is_finite(tensor: Tensor) -> bool:
    return all(math.isfinite(end) for end in torch.aminmax(tensor))  # one pass, and NaN shows in both ends


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
    problems = [
        f"{key} is {_setting(a, key)!r} in {a.label} and {_setting(b, key)!r} in {b.label}"
        for key in dict.fromkeys((*source.spec.function_keys, *anchor.spec.function_keys))
        if _setting(a, key) != _setting(b, key)
    ]
    for name, space in source.spec.spaces.items():
        other = anchor.spec.spaces.get(name)
        if name != "label" and (other is None or other.size != space.size):
            problems.append(f"{name} has size {space.size} in {a.label} and {other and other.size} in {b.label}")
    if not problems:  # files may differ in what no config says, such as a pooler
        problems += _only_in_one(source, anchor)
    vocabulary = any(problem.startswith("vocab ") for problem in problems)
    if a.folder and b.folder and (found := _vocabulary_problems(a.folder, b.folder)):
        problems, vocabulary = [*problems, *found], True
    if problems:
        way_out = ". Bring one model to the other's vocabulary first (mergekit-tokensurgeon can)" if vocabulary else ""
        raise InputError(f"{a.label} and {b.label} do not compute comparable functions: {listed(problems)}{way_out}")


def _only_in_one(source: Typed, anchor: Typed) -> list[str]:
    """What tensors one of two files of the same class and sizes has and the other lacks."""
    found, stacked = [], []
    for one, other in ((source, anchor), (anchor, source)):
        own = sorted(one.spec.entries.keys() - other.spec.entries.keys())
        stacked.append({bool(one.spec.entries[name].stack) for name in own if "experts." in name})
        for name in own:
            hint = ", where the class does not read it: remove it there" if name in one.spec.unread else ""
            found.append(f"{name} is only in {one.checkpoint.label}{hint}")
    if stacked in ([{True}, {False}], [{False}, {True}]):
        layouts = ("one tensor an expert" if one == {True} else "all experts in one tensor" for one in stacked)
        files = (f"{text} in {end.checkpoint.label}" for text, end in zip(layouts, (source, anchor), strict=True))
        return [f"experts are laid out differently: {', '.join(files)}; re-save one of them with save_pretrained"]
    return found


def _setting(checkpoint: Checkpoint, key: str) -> object:
    """What the config says; of a rotary embedding without the old name of its type, which some files repeat.

    A dotted key (``text_config.hidden_act``) is looked up in a config within the config.
    """

    def said(part: object, name: str) -> object:
        return getattr(part, name, _DEFAULTS.get(name))

    return _said_once(reduce(said, key.split("."), checkpoint.config))


def _said_once(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {
        name: _said_once(entry)  # some models have a rotary embedding for every kind of layer
        for name, entry in value.items()
        if name != "type" or "rope_type" not in value
    }


def _vocabulary_problems(a: Path, b: Path) -> list[str]:
    name = next((name for name in _VOCABULARY_FILES if (a / name).is_file() and (b / name).is_file()), None)
    if name is None or (one := _vocabulary(a / name)) == (other := _vocabulary(b / name)):
        return []
    problem = f"the vocabularies differ ({a / name} and {b / name})"
    if isinstance(one, dict) and isinstance(other, dict):
        place = next(place for place in (*one, *other) if _token(one, place) != _token(other, place))
        tokens = f"{_token(one, place)} and {_token(other, place)}"
        problem += f": the same id is another token or none, such as {place}: {tokens}"
    return [problem]


def _token(tokens: Mapping, place: object) -> str:
    return repr(tokens[place]) if place in tokens else "none"


def _vocabulary(path: Path) -> object:
    """Tokens by id; of what has no ids the lines or, where it is no text, the bytes."""
    try:
        if path.suffix == ".model":
            return path.read_bytes()
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".txt":
            lines = text.removesuffix("\n").split("\n")
            return dict(enumerate(lines)) if path.name == "vocab.txt" else lines[lines[0].startswith("#version") :]
        content = json.loads(text)
        if path.name == "vocab.json":
            return {place: token for token, place in content.items()}
        vocabulary = content["model"].get("vocab") or {}
        if isinstance(vocabulary, list):  # with scores, which decide how a text is cut
            tokens = dict(enumerate(token for token, _ in vocabulary))
        else:
            tokens = {place: token for token, place in vocabulary.items()}
        return tokens | {one["id"]: one["content"] for one in content.get("added_tokens") or ()}
    except (ValueError, KeyError, AttributeError, TypeError):
        raise InputError(f"{path}: not a tokenizer file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
