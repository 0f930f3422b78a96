"""What a merge method is: a function of tensors, whose signature is its schema.

Its positional parameters say what it is given, by name:

    tensors     one tensor a model, in its file's dtype or wider; the base model's left out where there is a ``base``
    base        the base model's tensor; ``Tensor | None`` where a recipe need not name a base
    fishers     the diagonal Fisher information of every tensor
    grams       the `InputGram` of every tensor; only tensors that have one reach the method
    generator   a random generator of numpy's, seeded for the tensor; for the slice, where a method is elementwise
    dtype       that of the result; None for float32 or better

Its keyword parameters are those of a recipe; ``lambda_`` is written ``lambda`` there. An annotation
``tuple[float, ...]`` asks for one value a model, with a default of one value for all. Annotated bounds are checked, and
that numbers are finite.

A method may bring the models together by itself before it sees their tensors, with ``couple(anchor, states, position,
activations, *, ...)``; the keyword parameters of that function are those of a recipe, too, with one value for the whole
merge.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from cobasin.errors import InputError, expected, nearest, shown
from cobasin.progress import Count, silent
from cobasin.symmetry.state import State

if TYPE_CHECKING:
    from cobasin.checkpoints.typed import Typed

REQUIRED = inspect.Parameter.empty
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
INPUTS = ("tensors", "base", "fishers", "grams", "generator", "dtype")


@dataclass(frozen=True)
class Parameter:
    """A parameter of a method as recipes give it.

    Attributes:
        each: whether every model has a value of its own.
        default: `REQUIRED` where there is none.
        whole: whether it has one value for the whole merge: no filters, no gradients over the layers.
    """

    name: str
    adapter: TypeAdapter
    each: bool
    default: Any
    whole: bool = False

    def check(self, value: Any) -> Any:
        """One value, converted to the declared type.

        Raises:
            ValueError: with what is wrong with it.
        """
        try:
            return self.adapter.validate_python(value)
        except ValidationError as error:
            raise ValueError(expected(error.errors()[:1])) from None


@dataclass(frozen=True)
class Method:
    """A merge method.

    Attributes:
        name: as in ``merge_method``.
        function: of tensors; see the module's docstring.
        inputs: what it is given, out of `INPUTS`.
        parameters: by name.
        fewest, most: how many models it takes beside the base; no upper bound where None.
        reference: the paper it is from.
        statistics: what has to be collected on data first: fisher, grams, grams_in_turn or activations; None.
        couple: what brings the models together first; see the module's docstring.
        elementwise: whether an entry of the result depends on the same entries of ``tensors`` and ``base`` alone (or on
            chance), so that a tensor may be fused slice by slice.
        linear: whether it adds up multiples of the tensors, which gives the same model in whatever gauge they are.
        check: raises `InputError` for parameters that do not go together.
        stacks: whether a recipe says layer by layer which one model a tensor is from, so that it is given one.
    """

    name: str
    function: Callable[..., Tensor]
    inputs: tuple[str, ...]
    parameters: dict[str, Parameter]
    fewest: int
    most: int | None
    reference: str
    statistics: str | None
    couple: Callable[..., list[State]] | None
    elementwise: bool
    linear: bool
    check: Callable[[Mapping[str, Any]], None] | None
    stacks: bool

    @property
    def summary(self) -> str:
        """The first line of the docstring, of `couple` where there is one, of the function otherwise."""
        return (inspect.getdoc(self.couple or self.function) or "").partition("\n")[0]

    @property
    def takes_base(self) -> bool:
        """Whether it is defined relative to a base model."""
        return "base" in self.inputs

    @property
    def first_is_base(self) -> bool:
        """Whether of two models the first is the base where none is named."""
        return self.takes_base and self.most == 1

    @property
    def needs_base(self) -> bool:
        """Whether that model has to be named."""
        return self.takes_base and not self.first_is_base and get_type_hints(self.function)["base"] is Tensor

    @property
    def in_canonical_form(self) -> bool:
        """Whether matched models are fused in canonical form.

        Angles and magnitudes are then those of what the models compute, not of what the anchor's norms have its readers
        hold besides. Statistics, and what couples models, are of the models as they are written.
        """
        return not self.linear and self.statistics is None and self.couple is None

    @property
    def report(self) -> dict[str, Any]:
        """Plain values, for people who choose a method, and for JSON."""
        return {
            "method": self.name,
            "does": self.summary,
            "parameters": {p.name: None if p.default is REQUIRED else p.default for p in self.parameters.values()},
            "base": "needed" if self.needs_base else "optional" if self.takes_base else None,
            "statistics": self.statistics,
            "reference": self.reference,
        }

    def fuse(self, given: dict[str, Any], parameters: dict[str, Any]) -> Tensor:
        """The fused tensor; ``given`` may hold more than the method asks for."""
        keywords = {
            name + "_" if name == "lambda" else name: value
            for name, value in parameters.items()
            if not self.parameters[name].whole
        }
        return self.function(*(given[name] for name in self.inputs), **keywords)

    def coupled(
        self,
        anchor: Typed,
        states: Sequence[State],
        position: int,
        activations: Sequence[Mapping[str, Tensor]] | None,
        parameters: dict[str, Any],
        progress: Count = silent,
    ) -> list[State]:
        """The models as the method brings them together: unchanged, unless it has `couple`.

        Args:
            anchor: the type of the models; the model itself is run by methods that ask how its modules are connected.
            states: the models' tensors.
            position: of the anchor among them; its tensors stay as they are.
            activations: for every model, the outputs of its modules on the same inputs; None without.
            parameters: of the method; those that are not `Parameter.whole` are not looked at.
            progress: called with the number of couplings solved, and of all.
        """
        if self.couple is None:
            return list(states)
        keywords = {name: value for name, value in parameters.items() if self.parameters[name].whole}
        return self.couple(anchor, states, position, activations, progress, **keywords)


_METHODS: dict[str, Method] = {}


def method(
    name: str,
    *,
    reference: str,
    fewest: int = 1,
    most: int | None = None,
    statistics: str | None = None,
    couple: Callable[..., list[State]] | None = None,
    elementwise: bool = False,
    linear: bool = False,
    check: Callable[[Mapping[str, Any]], None] | None = None,
    stacks: bool = False,
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Make a function a merge method of this name.

    Raises:
        ValueError: there is one; the function asks for what no method is given.
    """

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        if name in _METHODS:
            raise ValueError(f"merge method {name!r} is registered twice")
        inputs = [one.name for one in inspect.signature(function).parameters.values() if one.kind is not _KEYWORD]
        if unknown := [one for one in inputs if one not in INPUTS]:
            raise ValueError(f"{name}: {unknown[0]!r} is none of {', '.join(INPUTS)}")
        parameters = _parameters(function) | (_parameters(couple, whole=True) if couple else {})
        settings = fewest, most, reference, statistics, couple, elementwise, linear, check, stacks
        _METHODS[name] = Method(name, function, tuple(inputs), parameters, *settings)
        return function

    return register


def _parameters(function: Callable[..., Any], whole: bool = False) -> dict[str, Parameter]:
    """The keyword parameters of a function."""
    found = {}
    hints = get_type_hints(function, include_extras=True)
    for one in inspect.signature(function).parameters.values():
        if one.kind is _KEYWORD:
            hint, key = hints[one.name], one.name.removesuffix("_")
            each = get_origin(hint) is tuple
            default = one.default[0] if each and one.default is not REQUIRED else one.default
            adapter = TypeAdapter(get_args(hint)[0] if each else hint, config=ConfigDict(allow_inf_nan=False))
            found[key] = Parameter(key, adapter, each, default, whole)
    return found


@cache
def methods() -> dict[str, Method]:
    """All merge methods by name."""
    import cobasin.fusion

    for module in iter_modules(cobasin.fusion.__path__):
        import_module(f"cobasin.fusion.{module.name}")
    return dict(sorted(_METHODS.items()))


def find(name: str) -> Method:
    """The method of that name.

    Raises:
        InputError: there is none; suggests the nearest.
    """
    if not isinstance(name, str) or name not in methods():
        raise InputError(f"merge method {shown(name)} is unknown{nearest(str(name), methods())}")
    return methods()[name]
