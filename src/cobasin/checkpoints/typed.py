"""Checkpoints with their types: tensors by spec name, and the checks that need no tensor."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from cobasin.architectures import declare
from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.fit import check_config, problems
from cobasin.checkpoints.limits import writer_of
from cobasin.checkpoints.wrapped import misnamed, saved_with
from cobasin.errors import InputError, NotDeclared, listed
from cobasin.execution.jobs import torch_threads
from cobasin.symmetry.spec import Spec

LARGEST = 1e8
"""Of an entry: no trained weight is near, and the products of larger ones are soon beyond float32."""

BY_NAME = (
    "cobasin merge --match none merges it by the names of its tensors (by methods that neither read data nor stack "
    "layers, with one head and vocabulary, without adapters)"
)
VARIANCE = ".running_var"  # of a batch norm


@dataclass(frozen=True)
class Typed(Mapping[str, Tensor]):
    """A checkpoint read by spec names. A tied tensor that the file lacks is read from the one it repeats.

    Attributes:
        checkpoint, spec: the tensors, and their types.
        left_out: tensors of the file that are not among them, see `Typed.without`.
        copied: tensors of the file that are buffers here, see `Typed.copying`.
        lacking: tensors that the file does not have, and that are zero here, see `headed_as`.
        unknown: rows of the vocabulary that the file does not have, and that are zero here; None where the vocabulary
            is that of the file, see `cobasin.data.vocabulary`.
    """

    checkpoint: Checkpoint
    spec: Spec
    left_out: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    unknown: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        return f"<Typed {self.checkpoint!r}>"  # what match_all returns holds several, and a spec fills a page

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Typed:
        """Type a checkpoint.

        Raises:
            NotDeclared: for an unknown architecture, and settings that its declaration does not cover.
            InputError: for a config that cannot be that architecture's, or with the
                tensors that do not fit, in one message.
        """
        check_config(checkpoint)
        config, architecture, label = checkpoint.config, checkpoint.architecture, checkpoint.label
        headers = checkpoint.headers
        try:
            spec = declare(config, architecture, headers)
            found = problems(spec, headers)
        except NotDeclared as error:
            raise NotDeclared(f"{label}: {error}; {BY_NAME}") from error
        except InputError as error:
            raise InputError(f"{label}: {error}") from error
        except (ArithmeticError, IndexError, TypeError, ValueError, RuntimeError) as error:
            # transformers lets impossible sizes and short lists pass, and does not say what differs from layer to layer
            raise InputError(f"{label}: the config is not that of a {architecture}: {error}") from error
        missing, unexpected = (any(line.startswith(what) for line in found) for what in ("missing", "unexpected"))
        renamed = missing and unexpected  # perhaps
        if found and (why := saved_with(headers) or (renamed and misnamed(headers, architecture, config))):
            raise InputError(f"{label} does not fit {architecture}: {why}")
        if found:
            way_out = ". Remove what is unexpected from the file, or name the class that reads it in config.json"
            raise InputError(f"{label} does not fit {architecture}: {listed(found)}{way_out if unexpected else ''}")
        return cls(checkpoint, spec)

    def untied(self) -> Typed:
        """The same model with its head a tensor of its own."""
        config = copy.deepcopy(self.checkpoint.config)
        config.tie_word_embeddings = False
        writer_of(config).tie_word_embeddings = False  # LLaVA ties its head where either says so
        headers = dict(self.checkpoint.headers)
        spec = declare(config, self.checkpoint.architecture, headers)
        missing = spec.file_entries.keys() - spec.disk_names(headers).keys() - spec.tied.keys()
        own = {disk: name for name, disk in spec.names_beside(missing, self.disk_names).items()}
        header = {name: self.checkpoint.headers[disk] for name, disk in self.disk_names.items()}
        for disk, name in sorted(own.items()):
            headers[disk] = header[self.spec.tied.get(name, name)]
        twins = {twin for pair in self.spec.tied.items() for twin in pair}
        # where the file has both, they are read here, which refuses those that differ
        own |= {self.disk_names[name]: name for name in twins if name in self.disk_names}

        def read(on_disk: str) -> Tensor:
            return self[own[on_disk]] if on_disk in own else self.checkpoint[on_disk]

        untied = replace(self.checkpoint, config=config, headers=headers, read=read, stored=False)
        return replace(self, checkpoint=untied, spec=spec, copied=()).copying(self.copied)

    def without(self, names: Collection[str]) -> Typed:
        """The same model without these tensors, which its class does not read."""
        if not names:
            return self
        given, left = self.checkpoint, {self.disk_names[name] for name in names}
        headers = {disk: header for disk, header in given.headers.items() if disk not in left}
        spec = declare(given.config, given.architecture, headers)
        made, left_out = replace(given, headers=headers, stored=False), (*self.left_out, *sorted(names))
        return replace(self, checkpoint=made, spec=spec, left_out=left_out, copied=())

    def copying(self, names: Collection[str]) -> Typed:
        """The same model with these tensors copied as they are, like buffers.

        That is where it can be declared without them, and what then acts on it would not move them. Else it is
        returned as it is.
        """
        if not names:
            return self
        given, left = self.checkpoint, {self.disk_names[name] for name in names if name in self.disk_names}
        spec = declare(given.config, given.architecture, [disk for disk in given.headers if disk not in left])
        axes = [axis for name in names for axis in self.spec.entries[name].layout.axes]
        moving = {name for name, space in spec.spaces.items() if space.group is not None or space.folded is not None}
        if spec.entries.keys() & names or any(axis.space in moving for axis in axes):
            return self
        spec = replace(spec, buffers=(*spec.buffers, *map(re.escape, sorted(names))))
        return replace(self, spec=spec, copied=(*sorted(names),))

    @cached_property
    def disk_names(self) -> dict[str, str]:
        """Spec name to on-disk name."""
        return self.spec.disk_names(self.checkpoint.headers)

    @cached_property
    def heads(self) -> list[str]:
        """Tensors that carry the labels of a task."""
        entries = self.spec.entries.items()
        return [name for name, entry in entries if any(axis.space == "label" for axis in entry.layout.axes)]

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
        """The label set; None without a task head, or with one that scores texts, whatever its config says."""
        scores = self.checkpoint.architecture.endswith("ForMultipleChoice")
        return self.checkpoint.config.id2label if self.heads and not scores else None

    def __getitem__(self, name: str) -> Tensor:
        if stack := self.spec.entries[name].stack:
            return torch.stack([self.part(part) for part in stack])
        if name not in self.disk_names and name in self.spec.tied:
            name = self.spec.tied[name]
        return self.part(name)

    def part(self, name: str) -> Tensor:
        """A tensor of the file, which may be one of those that a stack is made of."""
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
        if (size := check_finite(label, disk[name], tensor)) > LARGEST:
            raise InputError(f"{label}: {disk[name]} has values up to {size:.1e}; the training diverged")
        for tied, twin in self.spec.tied.items():
            if twin != name or tied not in disk:
                continue
            # versions of transformers differ in what they load; moved, equal ones of two dtypes are rounded apart
            repeated = self.checkpoint[disk[tied]]
            alike = repeated.dtype == tensor.dtype
            if not alike or not torch.equal(repeated, tensor):
                raise InputError(
                    f"{label}: the config ties {disk[tied]} to {disk[name]}, but their "
                    f"{'values' if alike else 'dtypes'} differ; "
                    "remove the first from the file, or set tie_word_embeddings to false in config.json"
                )

    def __iter__(self) -> Iterator[str]:
        return iter(self.spec.entries)

    def __len__(self) -> int:
        return len(self.spec.entries)

    def derived(self, state: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> Checkpoint:
        """The checkpoint with its tensors taken from ``state`` (by spec name) as they are asked for.

        They are cast to the dtype they have here, or to ``dtype``. Buffers are carried along unchanged.

        Raises:
            InputError: as a tensor is read, where that dtype does not hold it, or a variance is below zero.
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
        one_by_one = getattr(state, "part", None)
        # a file asks for the tensors of a stack one by one, mostly in turn with those of two others
        stacked = lru_cache(maxsize=4)(state.__getitem__)

        def read(disk: str) -> Tensor:
            if disk not in spec_names:
                return self.checkpoint[disk]
            name, place = self.spec.file_entries[spec_names[disk]]
            if place is None:
                tensor = state[name]
            else:
                tensor = one_by_one(spec_names[disk]) if one_by_one else stacked(name)[place].clone()
            tensor = tensor.to(headers[disk].dtype)
            if not math.isfinite(_size(tensor)):
                way_out = "convert the models to a dtype of wider range first, or move them by less"
                raise InputError(
                    f"{source.label}: {disk}, transformed, does not fit {tensor.dtype}: its largest values become "
                    f"infinite; {way_out if dtype is None else 'name a dtype of wider range'}"
                )
            if disk.endswith(VARIANCE) and (tensor < 0).any():
                raise InputError(
                    f"{source.label}: {disk}, a variance, would be below zero; take smaller weights or another method"
                )
            return tensor

        return replace(source, config=config, headers=headers, read=read, stored=False)


def check_finite(label: str, name: str, tensor: Tensor) -> float:
    """Refuse a tensor of a file that holds NaN or infinite values; of others, the size of the largest entry.

    Raises:
        InputError: names the model's ``label`` and the tensor.
    """
    size = _size(tensor)
    if not math.isfinite(size):
        raise InputError(f"{label}: {name} has NaN or infinite values; the file is damaged or the training diverged")
    return size


def _size(tensor: Tensor) -> float:
    """The size of the largest entry, NaN where there is one."""
    if not tensor.numel():
        return 0.0
    # one pass, and NaN shows in both ends; the memory is the limit, and idle threads of OpenMP spin for a while
    with torch_threads(1):
        return max(abs(float(end)) for end in torch.aminmax(tensor))
