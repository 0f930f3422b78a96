"""A draft while it is made: the names and shapes of a model, and the pieces of its declaration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.running import model_class
from cobasin.errors import InputError
from cobasin.symmetry.spec import Spec

Shape = tuple[int, ...]

# What configs call these sizes.
KEYS = {
    "resid": ("hidden_size", "n_embd", "d_model", "dim", "embed_dim"),
    "layer": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "head": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv": ("num_key_value_heads", "num_kv_heads", "n_kv_heads"),
    "width": ("head_dim", "attention_head_size", "d_kv"),
    "ffn": (
        *("intermediate_size", "n_inner", "ffn_dim", "hidden_dim", "d_ff", "ffn_hidden_size"),
        *("moe_intermediate_size", "feed_forward_size"),
    ),
    "vocab": ("vocab_size",),
    "pos": ("max_position_embeddings", "n_positions", "n_ctx"),
    "type": ("type_vocab_size",),
    "expert": ("num_experts", "num_local_experts", "n_routed_experts"),
    "label": ("num_labels",),
}
POSITIONS = re.compile(r"position|pos_emb|embed_pos|(^|\.)pos(\.|$)|wpe")
_PLAIN = re.compile(r"[\w.*-]+")
BUFFERS = re.compile(r"(inv_freq|masked_bias|position_ids|token_type_ids)$")


@dataclass(frozen=True)
class Module:
    """A weight with its bias, if it has one.

    Attributes:
        name: a template without ``.weight``.
        shape: of the weight.
        bias: whether there is one.
        inside: whether it is in a layer.
        local: the part of the name inside the layer, in small letters.
        transposed: whether the weight is stored as ``in out``.
    """

    name: str
    shape: Shape
    bias: bool
    inside: bool
    local: str
    transposed: bool = False

    @property
    def weight(self) -> str:
        """The template of the weight."""
        return f"{self.name}.weight"

    @property
    def last(self) -> str:
        """The last part of the name, in small letters."""
        return self.local.rpartition(".")[2]

    @property
    def sizes(self) -> Shape:
        """Output and input size of a matrix."""
        return self.shape[::-1] if self.transposed else self.shape

    def linear(self, out: str, into: str) -> dict[str, str]:
        """The types of a linear layer."""
        weight = f"{into} {out}" if self.transposed else f"{out} {into}"
        return {self.weight: weight} | ({f"{self.name}.bias": out} if self.bias else {})

    def vector(self, gain: str, offset: str) -> dict[str, str]:
        """The types of a norm."""
        return {self.weight: gain} | ({f"{self.name}.bias": offset} if self.bias else {})


class Draft:
    """Pieces of a declaration as Python text, calls by their arguments; ``doubts`` are the guesses in it.

    Attributes:
        shapes: the shape of every tensor, by template.
        stem: what the names of a layer's tensors begin with.
        resid, heads, groups, width: size of the stream, number of heads, of KV groups (None without), size of a head.
        reads: the space that the output head reads.
        hidden: what stands between the stream and the output head, if anything does.

    Raises:
        InputError: for layers with settings of their own; for names that are no part of a declaration.
    """

    def __init__(self, checkpoint: Checkpoint):
        self.architecture, self.config, self.label = checkpoint.architecture, checkpoint.config, checkpoint.label
        if self.config.is_heterogeneous:
            raise InputError(f"{self.label}: cannot be drafted: per_layer_config: no declaration has such layers")
        for name in (*checkpoint.headers, *self.config.to_dict()):  # both become Python text, which is run some day
            if not _PLAIN.fullmatch(name):
                raise InputError(f"{self.label}: no draft is made of {name!r}: expected letters, digits, _ . * -")
        self.variables: dict[str, str] = {}
        self.spaces: dict[str, list[str]] = {}
        self.templates: dict[str, str] = {}
        self.tied: dict[str, str] = {}
        self.norms: list[list[str]] = []
        self.biases: list[tuple[str, list[str]]] = []
        self.absent: list[str] = []
        self.buffers: list[str] = []
        self.keys: list[str] = []
        self.doubts: list[str] = []
        self.reads = "resid"
        self.hidden: list[Module] = []
        self._names(checkpoint)
        self._sizes()

    @property
    def bare(self) -> bool:
        """Whether the model's output is the stream itself."""
        return self.head in ("Model", "EncoderModel", "")

    def doubt(self, text: str) -> None:
        """Say that something was guessed."""
        if text not in self.doubts:
            self.doubts.append(text)

    def value(self, space: str) -> int | None:
        """The size of a space as the config has it."""
        values = (getattr(self.config, key, None) for key in KEYS[space])
        return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), None)

    def size(self, space: str, size: int) -> str:
        """A size as Python: the config key that has it, or the number."""
        keys = [key for key in KEYS[space] if getattr(self.config, key, None) == size]
        return f"config.{keys[0]}" if keys else str(size)

    def space(self, name: str, size: str, group: str = "", over: str = "", part: str = "", folded: str = "") -> None:
        """Declare a space."""
        options = {"over": over and f"({over})", "part": part and f'"{part}"', "folded": folded}
        arguments = [size, group, *(f"{key}={value}" for key, value in options.items() if value)]
        self.spaces[name] = [argument for argument in arguments if argument]

    def fixed(self, size: int) -> str:
        """A space of this size that nothing acts on."""
        if size == 1:
            return "1"
        name = "vocab" if size == self.value("vocab") else f"size_{size}"
        self.space(name, self.size("vocab", size) if name == "vocab" else str(size))
        return name

    @cached_property
    def modules(self) -> list[Module]:
        """Every weight, with its bias."""
        found = []
        for name in (name.removesuffix(".weight") for name in self.shapes if name.endswith(".weight")):
            inside, shape = name.startswith(self.stem), self.shapes[f"{name}.weight"]
            local = name.removeprefix(self.stem).lower()
            found.append(Module(name, shape, f"{name}.bias" in self.shapes, inside, local))
        if any(
            m.inside and len(m.shape) == 2 and m.bias and self.shapes[f"{m.name}.bias"] != m.shape[:1] for m in found
        ):
            # GPT-2's layers, all of which are stored transposed
            found = [Module(m.name, m.shape, m.bias, m.inside, m.local, transposed=m.inside) for m in found]
        return found

    def matrices(self, inside: bool) -> list[Module]:
        """Matrices inside or outside the layers that have no type yet."""
        matrices = (module for module in self.modules if len(module.shape) == 2 and module.inside == inside)
        return [module for module in matrices if module.weight not in self.templates]

    def _names(self, checkpoint: Checkpoint) -> None:
        """Split the class's name; collect shapes by template, without the prefix of the base model."""
        cls = model_class(self.architecture)
        found = re.search(r"(LMHeadModel|EncoderModel|Model|For[A-Z]\w*)$", self.architecture)
        self.head = found.group() if found else ""
        self.family, self.model_type = self.architecture.removesuffix(self.head), self.config.model_type
        self.prefix = f"{cls.base_model_prefix}." if cls.base_model_prefix else ""
        shapes = {}
        for name, disk in Spec(self.architecture, {}, {}, self.prefix).disk_names(checkpoint.headers).items():
            header = checkpoint.headers[disk]
            if BUFFERS.search(name) or not header.dtype.is_floating_point or not header.shape:
                pattern = re.sub(r"\\\.\d+\\\.", r"\\.\\d+\\.", re.escape(name))
                self.buffers += [] if pattern in self.buffers else [pattern]
                self.doubt("buffers are taken to be constants: copied, never moved, and not averaged")
            else:
                shapes[name] = header.shape
        if getattr(self.config, "tie_word_embeddings", False):
            self._add_ties(shapes, getattr(cls, "_tied_weights_keys", None))
        self.shapes = self._by_template(shapes)
        stems = sorted({name.split("{layer}")[0] for name in self.shapes if "{layer}" in name})
        crossed = [name for name in self.shapes if "cross" in name.lower()]
        if len(stems) != 1 or crossed:
            raise InputError(
                f"{self.label}: cannot be drafted: only decoders and encoders with one stack of layers and without "
                f"cross-attention can; this one has {', '.join((*stems, *crossed[:1])) or 'no numbered layers'}"
            )
        self.stem = f"{stems[0]}{{layer}}."

    def _add_ties(self, shapes: dict[str, Shape], tied: Any) -> None:
        """Add the tensors that repeat another one and are absent from the file."""
        for name, twin in tied.items() if isinstance(tied, dict) else ():
            name, twin = name.removeprefix(self.prefix), twin.removeprefix(self.prefix)
            if twin in shapes:
                self.tied[name] = twin
                shapes.setdefault(name, shapes[twin])

    def _by_template(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """A number behind ``experts`` is the expert, the first other one the layer."""
        found: dict[str, Shape] = {}
        layers: dict[str, set[int]] = {}
        for name, shape in shapes.items():
            template = re.sub(r"(?<=experts\.)\d+(?=\.)", "{expert}", name)
            if number := re.search(r"(?<=\.)\d+(?=\.)", template):
                template = f"{template[: number.start()]}{{layer}}{template[number.end() :]}"
                layers.setdefault(template, set()).add(int(number.group()))
            if found.setdefault(template, shape) != shape:
                raise InputError(
                    f"{self.label}: cannot be drafted: {template} has shape {found[template]} in one layer and {shape} "
                    "in another"
                )
        self.layers = 1 + max((max(numbers) for numbers in layers.values()), default=-1)
        for template, numbers in layers.items():
            if missing := sorted(set(range(self.layers)) - numbers):
                start, end = map(re.escape, template.replace("{expert}", "*").split("{layer}"))
                self.absent.append(f"{start}({'|'.join(map(str, missing))}){end}")
                self.doubt("not every layer has the same tensors: see absent")
        return found

    def _sizes(self) -> None:
        resid, heads = self.value("resid"), self.value("head")
        if resid is None or heads is None:
            wanted = KEYS["head" if resid else "resid"]
            raise InputError(f"{self.label}: cannot be drafted: its config has none of {', '.join(wanted)}")
        self.resid, self.heads, self.groups = resid, heads, self.value("kv")
        if getattr(self.config, "multi_query", False) and not getattr(self.config, "new_decoder_architecture", False):
            self.groups = 1
        self.width = self.value("width") or resid // heads
        self.space("layer", self.size("layer", self.layers))
        self.space("resid", self.size("resid", resid))  # its group follows from the norms
