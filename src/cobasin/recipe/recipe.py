"""A recipe: mergekit's grammar, with ``match``, ``statistics``, ``head``, ``seed``, ``repair`` and ``heal`` added.

Keys that are also mergekit's mean what they mean there. Differences:

- Unknown keys and parameters are refused; mergekit ignores them.
- ``dtype`` is the dtype of the result, where ``out_dtype`` does not say otherwise. mergekit rounds the models to it
  first; cobasin always computes in float32 or better.
- Models are merged layer by layer: slices only give layers parameters of their own. Those of ``passthrough`` say which
  layers are stacked.
- Vocabularies that differ are refused unless ``tokenizer_source`` says which one the result has; ``union`` extends
  that of the model whose other files the result has by tokens that were added to the same one.

Model folders are relative to the current directory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ModelWrapValidatorHandler, PrivateAttr, ValidationError, model_validator

from cobasin.data.chat_templates import CHAT_TEMPLATES
from cobasin.errors import InputError, explain, shown
from cobasin.fusion.registry import Method, find
from cobasin.recipe.after import After, Heal, Repair
from cobasin.recipe.blocks import Block, Entry, Matching, ModelName, Module, Slice, Statistics
from cobasin.recipe.document import read_yaml, yaml_of
from cobasin.recipe.ignored import apart, noted
from cobasin.recipe.layout import Layout, one_base
from cobasin.recipe.needs import check_statistics
from cobasin.recipe.parts import same_model
from cobasin.recipe.tokenizer import Tokenizer

DType = Annotated[
    Literal["float32", "float16", "bfloat16", "float64"],
    BeforeValidator(lambda name: name.removeprefix("torch.") if isinstance(name, str) else name),
]


class Recipe(Block):
    """What to merge and how; see the module's docstring, `Matching`, `Statistics`, `Repair` and `Heal`.

    Attributes:
        models, slices, modules: one of them: the models, with parameters of their own; for some layers; for all. What
            ``passthrough`` stacks.
        base_model: what task vectors start from; for SLERP the model that t = 0 gives back. The tokenizer and other
            files of the result are its.
        parameters: of the method, for all models: a scalar, a list (a gradient over the layers), or a list of
            ``filter`` (a part of tensor names) and ``value``. Those of a module, of slices and of models have
            precedence, in this order.
        tokenizer_source, tokenizer: whose tokenizer, and where they differ vocabulary, the result has.
        chat_template: how the result's tokenizer writes a chat: ``auto`` as most of the models do, a template by its
            name, or in Jinja; as its own files say where there is none.
        head: ``keep`` for one result a model with its own task head, or the model whose head is taken.
        seed: of methods that draw random numbers.
    """

    unsupported: ClassVar[dict[str, str]] = {
        "random_seed": "write it as seed",
        **dict.fromkeys(("experts", "gate_mode"), "mixtures of experts are not made of dense models"),
    }

    merge_method: str
    models: list[Entry] | None = Field(default=None, min_length=1)
    slices: list[Slice] | None = Field(default=None, min_length=1)
    modules: dict[str, Module] | None = Field(default=None, min_length=1)
    base_model: ModelName | None = None
    parameters: dict[str, Any] | None = None
    dtype: DType | None = None
    out_dtype: DType | None = None
    tokenizer_source: ModelName | None = None
    tokenizer: Tokenizer | None = None
    chat_template: str | None = None
    match: Matching = Matching(symmetry="none")
    statistics: Statistics | None = None
    head: ModelName | None = None
    seed: int = Field(default=0, strict=True)
    repair: Repair | None = None
    heal: Heal | None = None

    _where: str = PrivateAttr("recipe")
    _layout: Layout = PrivateAttr()
    _notes: list[str] = PrivateAttr(default_factory=list)
    _ignored: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> Recipe:
        """The recipe in a YAML file.

        Raises:
            InputError: for a file that cannot be read and a recipe that makes no sense, in one line.
        """
        return cls.of(read_yaml(path), str(path))

    @classmethod
    def of(cls, content: Mapping[str, Any], where: str = "recipe") -> Recipe:
        """The recipe with this content.

        Args:
            content: by key.
            where: what messages call it.

        Raises:
            InputError: as `read`.
        """
        try:
            recipe = cls.model_validate(content)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        recipe._where = where
        return recipe

    def changed(self, match: Mapping[str, Any], head: str | None = None) -> Recipe:
        """The same recipe with other keys of ``match``, and with another head if one is given.

        Raises:
            InputError: as `read`.
        """
        content = self.model_dump(exclude_unset=True) | self._ignored
        if match:
            own = {} if match.get("symmetry") == "none" else self.match.model_dump(exclude_unset=True)
            content["match"] = own | dict(match)
        content |= {} if head is None else {"head": head}
        return Recipe.of(content, self._where)

    def text(self) -> str:
        """The recipe in YAML."""
        return yaml_of(self.model_dump(exclude_unset=True))

    @property
    def method(self) -> Method:
        """The merge method."""
        return find(self.merge_method)

    @property
    def inputs(self) -> list[str]:
        """The models whose tensors are fused, in this order; without the base, where the method is given one."""
        return self._layout.inputs

    @property
    def base(self) -> str | None:
        """The base of a method that is defined relative to one."""
        return self._layout.base

    @property
    def referenced(self) -> list[str]:
        """All models, each once, in the order of the recipe; a base that is not among them comes last."""
        return self._layout.referenced

    @property
    def between(self) -> list[str]:
        """The models that the result lies between: `inputs`, and the base of a method that merges it with one model."""
        return [*([self.base] if self.base is not None and self.method.most == 1 else []), *self.inputs]

    @property
    def positions(self) -> list[int]:
        """Of `inputs`, among the models that are `referenced`."""
        return [self.referenced.index(name) for name in self.inputs]

    @property
    def after(self) -> After | None:
        """What follows the merge; mostly nothing."""
        return After.of(self.repair, self.heal)

    @property
    def notes(self) -> list[str]:
        """What in the recipe has no effect, or one that may surprise."""
        return self._layout.notes + self._notes + noted(self._ignored)

    @property
    def vocabulary(self) -> str | None:
        """The model whose vocabulary and tokenizer the result has, or ``union``; None where the recipe does not say."""
        source = self.tokenizer.source if self.tokenizer else self.tokenizer_source
        return self.base_model or self.referenced[0] if source == "base" else source

    def stacked(self, count: int) -> list[tuple[int, int]]:
        """Of every layer that is stacked the model among those `referenced`, of so many layers, and which it is."""
        return [(self.referenced.index(name), layer) for name, layer in self._layout.stacked(count)]

    def check_layers(self, count: int) -> None:
        """Raise InputError unless the slices, if any, are all layers of a model with that many; some, to be stacked."""
        with self._named():
            self._layout.check_layers(count)

    def check_named(self, layers: bool) -> None:
        """Raise InputError where the recipe says more of layers than names tell: ``layers``, whether they tell any."""
        with self._named():
            self._layout.check_named(layers)

    def idle_filters(self, names: Collection[str]) -> list[str]:
        """The filters that let no tensor of these on-disk names through."""
        return self._layout.idle_filters(names)

    def parameters_of(self, name: str, layer: int | None, layers: int, after_layers: bool = False) -> dict[str, Any]:
        """The method's parameters for one tensor; where models have their own, a tuple with a value for each input.

        Args:
            name: of the tensor on disk; what filters look at.
            layer: that it belongs to; None for embeddings, final norms and heads, which take the first value of a
                gradient.
            layers: how many there are.
            after_layers: of a tensor outside the layers, whether it comes after them. The parameters of the last
                slice hold for it, otherwise those of the first.

        Raises:
            InputError: where a required parameter has no value for this tensor.
        """
        with self._named():
            return self._layout.parameters_of(name, layer, layers, after_layers)

    @model_validator(mode="after")
    def _settle(self) -> Recipe:
        """All that keys have to do with each other."""
        body = self._body()
        base = one_base(body, self.base_model)
        self._layout = Layout(self.method, body, self.parameters or {}, base)
        if self.tokenizer is not None and self.tokenizer_source is not None:
            raise InputError("tokenizer and tokenizer_source say the same: give one of them")
        if base is not None:
            self.base_model = self._listed("base_model", base)
        if self.tokenizer is not None:
            self.tokenizer.named(self._listed)
        if self.tokenizer_source is not None:
            self.tokenizer_source = self._listed("tokenizer_source", self.tokenizer_source, "base", "union")
        if self.chat_template not in (None, "auto", *CHAT_TEMPLATES) and "{" not in self.chat_template:
            what = f"expected auto, {', '.join(CHAT_TEMPLATES)}, or a template in Jinja"
            raise InputError(f"chat_template: {shown(self.chat_template)}: {what}")
        if self.head is not None:
            self.head = self._listed("head", self.head, "keep")
        if self.match.anchor != "medoid":
            self.match.anchor = self._listed("match.anchor", self.match.anchor, "medoid", "consensus")
        if "seed" in self.model_fields_set and "generator" not in self.method.inputs:
            self._notes.append(f"seed has no effect: {self.merge_method} draws no random numbers")
        self._notes += check_statistics(self.method, self.statistics, len(self.inputs))
        self._check_after()
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _in_one_line(cls, content: Any, read: ModelWrapValidatorHandler[Recipe]) -> Recipe:
        """However it is made, what is wrong is said as in all of the package."""
        content, ignored = apart(content) if isinstance(content, Mapping) else (content, {})
        try:
            recipe = read(content)
        except ValidationError as error:
            raise InputError(explain(error)) from None
        recipe._ignored = ignored
        return recipe

    def _body(self) -> Module:
        """The models or slices, wherever they are written."""
        given = [key for key in ("models", "slices", "modules") if getattr(self, key) is not None]
        if len(given) != 1:
            raise InputError(f"expected one of models, slices and modules, got {' and '.join(given) or 'none'}")
        if self.modules is None:
            return Module(models=self.models, slices=self.slices)
        if list(self.modules) != ["default"]:
            raise InputError(
                f"modules {', '.join(self.modules)}: a model is merged as a whole; list the models under models:, and "
                "give parts of it parameters of their own by filters on tensor names"
            )
        return self.modules["default"]

    def _listed(self, key: str, name: str, *words: str) -> str:
        """A model as the recipe lists it, or one of the words."""
        if name in words:
            if name == "base" and self.base_model is None:
                self._notes.append(f"{key}: base: no base_model is named, so it is that of {self.referenced[0]}")
            return name
        old = name.removeprefix("model:") if "union" in words else name  # as mergekit once wrote them there
        for model in self.referenced:
            if same_model(model, name) or same_model(model, old):
                return model
        raise InputError(f"{key} {name!r}: expected {', '.join([*words, *self.referenced])}")

    def _check_after(self) -> None:
        """Whether what follows the merge goes with it, and anything runs on a device that is named."""
        if self.after is None and self.match.symmetry == "none" and self.match.device != "auto":
            raise InputError("match.device: models are not matched, repaired or healed here; leave device out")
        if self.method.stacks and self.head == "keep":
            raise InputError(
                "head: keep: passthrough makes one model, which has one head; name the model whose to take"
            )
        if self.after is not None:
            self.after.check(self.method, self.base, self.head == "keep")

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Say in messages which recipe it is."""
        try:
            yield
        except InputError as error:
            raise InputError(f"{self._where}: {error}") from None
