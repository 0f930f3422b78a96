"""How couplings flow through a model: which one acts on every axis of every tensor.

The flow is that of the transport maps of Imfeld et al. (ICLR 2024): what a module reads is coupled as the modules
before it wrote it, what it writes gets a coupling of its own. Which modules there are and in what order they run comes
from one forward pass of the anchor, what their axes mean from the architecture's type. Modules that write the same
basis before it is read (queries and keys, gate and up projection, the embeddings) share one coupling; the authors' code
(github.com/graldij/transformer-fusion) couples queries and keys apart, and averages the couplings of patches and
positions. A residual stream has a new stage after every module that adds to it.

A module that runs more than once is coupled as in its first run, a tied output head as the embedding it repeats.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import cast_floats, instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.coupling.uses import Basis, Use, uses_of
from cobasin.errors import InputError
from cobasin.statistics.modules import input_axis, is_linear, names_by_place, place_of
from cobasin.symmetry.keys import key_text
from cobasin.symmetry.spec import Spec

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass
class Stage:
    """A basis from the modules that write it to those that read it.

    Attributes:
        basis: what the coupling runs over.
        writers: tensors that write it, and where.
        before: of a residual stream, the stage that the skip connection comes from.
        skip, branch: mean size ``[n]`` of the anchor's neurons on the skip connection and in what is added to it, on
            probe inputs; None where they were not seen. A factor that the model's code puts on a branch, not a module,
            is not known.
    """

    basis: Basis
    writers: list[tuple[str, Use]] = field(default_factory=list)
    before: int | None = None
    skip: Tensor | None = None
    branch: Tensor | None = None


@dataclass(frozen=True)
class Acting:
    """The coupling of a stage on a tensor, on the side of those that write the stage or of those that read it."""

    use: Use
    stage: int
    writes: bool


@dataclass(frozen=True)
class Flow:
    """The stages of a model, and for every tensor what acts on it.

    Attributes:
        stages: in the order in which they begin.
        order: their numbers, in an order in which all that a stage's writers read comes before it.
        acting: by the names of the spec.
    """

    stages: list[Stage]
    order: list[int]
    acting: dict[str, list[Acting]]


def flow_of(anchor: Typed) -> Flow:
    """Trace how couplings flow through models of this type, by running the anchor once on probe inputs.

    Raises:
        InputError: for an architecture that cannot be run on probe inputs, or with a basis that no module is seen
            to write (experts, fused attention).
    """
    checkpoint = anchor.checkpoint
    model, inputs = instantiate(checkpoint, torch.float32), probe(checkpoint.config, checkpoint.architecture)
    tracer = _Tracer(anchor.spec)
    for module, names in _typed_modules(model, anchor.spec):
        tracer.follow(module, names)
    with torch.no_grad():
        model(**{name: cast_floats(value, model.dtype) for name, value in inputs.items()})
    return tracer.flow()


def _typed_modules(model: PreTrainedModel, spec: Spec) -> Iterator[tuple[nn.Module, list[str]]]:
    """The modules with parameters of their own that are tensors of the file, and their names in the spec."""
    names = names_by_place(model, spec)
    for module in model.modules():
        places = map(place_of, module.parameters(recurse=False))
        if found := [names[place] for place in places if place in names]:
            yield module, found


def _written_axis(module: nn.Module) -> int | None:
    """The axis of a module's weight that runs over its outputs; None for what is no linear map and no table."""
    if is_linear(module):
        return 1 - input_axis(module)
    if isinstance(module, nn.modules.conv._ConvNd):
        return 0
    return 1 if isinstance(module, nn.Embedding) else None


class _Tracer:
    """Follows the modules of a running model and notes what they read and write."""

    def __init__(self, spec: Spec):
        self.spec = spec
        self.stages: list[Stage] = []
        self.acting: dict[str, list[Acting]] = {}
        self._first: dict[Basis, int] = {}
        self._current: dict[Basis, int] = {}
        self._read: set[int] = set()
        self._written: list[int] = []  # the stages in the order in which they were last written
        self._holding: dict[tuple, int] = {}  # the stage of the stream that a tensor in memory holds
        self._added: dict[int, list[Tensor]] = {}  # what was added to a stream and is not yet seen in it
        self._alive: list[Tensor] = []  # so that no other tensor takes a place in memory that is noted

    def follow(self, module: nn.Module, names: Collection[str]) -> None:
        """Watch a module whose parameters have these names in the spec."""
        seen: list[Tensor | None] = [None]
        written: list[int] = []

        def before(module: nn.Module, args: tuple, kwargs: dict) -> None:
            seen[0] = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
            written[:] = self._visit(module, names, seen[0])

        def after(module: nn.Module, args: tuple, output: object) -> None:
            if seen[0] is not None and isinstance(output, Tensor):
                self._compare(module, names, seen[0], output)
                for stage in written:
                    if self.stages[stage].before is not None:
                        self._added.setdefault(stage, []).append(output)

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after)

    def _visit(self, module: nn.Module, names: Collection[str], seen: Tensor | None) -> list[int]:
        """Note what acts on the module's tensors; returns the stages that it writes."""
        found = [
            (name, use, writes)
            for name in names
            if name not in self.acting
            for use, writes in self._sides(module, name)
        ]
        written = []
        for name, use, writes in sorted(found, key=lambda one: one[2]):  # what it reads, then what it writes
            stage = self._writing(use.basis) if writes else self._reading(use.basis, seen)
            self.acting.setdefault(name, []).append(Acting(use, stage, writes))
            if not writes and (self._is_stream(use.basis) or not self._is_vector(name)) and self.stages[stage].writers:
                self._read.add(stage)
            if writes and not self._is_vector(name) and stage not in self._read:
                self.stages[stage].writers.append((name, use))
                self._written = [one for one in self._written if one != stage] + [stage]
                written.append(stage)
        return written

    def _sides(self, module: nn.Module, name: str) -> list[tuple[Use, bool]]:
        """For every use of a tensor, whether the module writes there; empty where that cannot be told."""
        uses, axis = uses_of(self.spec, self.spec.entries[name]), _written_axis(module)
        if axis is not None:
            return [(use, self._is_vector(name) or use.axis == axis) for use in uses]
        if self._is_vector(name):  # a gain, an offset or a layer scale
            return [(use, False) for use in uses]
        # a constant of the model, such as its class token
        return [(use, True) for use in uses] if len({use.axis for use in uses}) == 1 else []

    def _is_vector(self, name: str) -> bool:
        return len(self.spec.entries[name].layout.shape) == 1

    def _reading(self, basis: Basis, seen: Tensor | None) -> int:
        """The stage that a module reads: the one that its input holds, else the last one."""
        stage = self._current.get(basis)
        if stage is None:
            return self._begin(basis)
        return stage if seen is None else self._hold(basis, seen, stage)

    def _writing(self, basis: Basis) -> int:
        """The stage that a module writes: what is added to a stream that was read begins a new one."""
        stage = self._current.get(basis)
        return self._begin(basis) if stage is None or (self._is_stream(basis) and stage in self._read) else stage

    def _is_stream(self, basis: Basis) -> bool:
        return self.spec.spaces[str(basis[0][0])].part == "residual"

    def _begin(self, basis: Basis) -> int:
        self.stages.append(Stage(basis, before=self._current.get(basis)))
        stage = self._current[basis] = len(self.stages) - 1
        self._first.setdefault(basis, stage)
        return stage

    def _hold(self, basis: Basis, tensor: Tensor, stage: int) -> int:
        """Note the stage that a tensor holds, if it is not noted; returns it."""
        self._alive.append(tensor)
        return self._holding.setdefault((basis, tensor.data_ptr(), tensor._version), stage)

    def _compare(self, module: nn.Module, names: Collection[str], seen: Tensor, output: Tensor) -> None:
        """Follow a stream through a norm, and compare what was added to it with what is then seen of it."""
        for one in {one.stage: one for name in names for one in self.acting.get(name, ()) if not one.writes}.values():
            added = self._added.get(one.stage, [])
            within = [i for i, part in enumerate(added) if part.data_ptr() == seen.data_ptr()]
            if _written_axis(module) is None and not any(module.children()):
                self._hold(one.use.basis, output, one.stage)
                for i in within:  # a norm or a layer scale on the branch
                    added[i] = output
            if added and not within:
                del self._added[one.stage]
                if all(part.numel() == seen.numel() for part in added):
                    total = torch.stack([part.reshape(seen.shape) for part in added]).sum(0)
                    self.stages[one.stage].skip = _sizes(seen - total)
                    self.stages[one.stage].branch = _sizes(total)

    def flow(self) -> Flow:
        """What was found. Tensors that no module runs with are coupled like the first readers of their bases.

        Raises:
            InputError: where no module was seen to write a basis.
        """
        for name, twin in self.spec.tied.items():
            if known := self.acting.get(name, self.acting.get(twin)):
                self.acting[name] = self.acting[twin] = known
        for name, entry in self.spec.entries.items():
            uses = [] if name in self.acting else uses_of(self.spec, entry)
            for use in uses:
                stage = self._first.get(use.basis, -1)
                # a table that no module writes but the model's code reads, such as DeBERTa's of relative positions
                table = stage >= 0 and len(uses) == 1 and not self._is_vector(name)
                if writes := table and not self.stages[stage].writers:
                    self.stages[stage].writers.append((name, use))
                    self._written.insert(0, stage)
                self.acting.setdefault(name, []).append(Acting(use, stage, writes))
            for one in self.acting.get(name, ()):
                if one.stage < 0 or not self.stages[one.stage].writers:
                    raise InputError(
                        f"{self.spec.architecture}: no linear layer is seen to write "
                        f"{' x '.join(map(key_text, one.use.basis))}, which {name} has an axis of, so that optimal "
                        "transport cannot couple it; use another merge_method"
                    )
        return Flow(self.stages, self._written, self.acting)


def _sizes(tensor: Tensor) -> Tensor:
    """The mean size of every neuron: ``[n]``."""
    return tensor.abs().flatten(0, -2).mean(0)
