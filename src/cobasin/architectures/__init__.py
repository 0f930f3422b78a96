"""Declared architectures. A declaration is a function from a config to a `Spec`; no routine is written for it.

Every module of this package registers the Transformers classes it declares with `declares`. So does a user's own
package, named by an entry point of the group ``cobasin.architectures``, and a Python file given with ``--spec``.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

from cobasin.errors import InputError, NotDeclared, shown
from cobasin.paths import expanded
from cobasin.symmetry.spec import Spec
from cobasin.symmetry.wellformed import mistakes

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

ENTRY_POINTS = "cobasin.architectures"


@dataclass(frozen=True)
class Request:
    """What a declaration is made from.

    Attributes:
        config: the model's configuration.
        architecture: the Transformers class; ``head`` is its name without the family's.
        names: the tensor names in the file, for what no config says (a bare encoder's pooler); with their shapes, if
            they are a mapping to what has one.
    """

    config: PreTrainedConfig
    architecture: str
    head: str
    names: Collection[str] = ()

    def has(self, suffix: str) -> bool:
        """Whether the file has a tensor whose name ends in ``suffix``."""
        return any(name.endswith(suffix) for name in self.names)

    def shape(self, suffix: str) -> tuple[int, ...] | None:
        """The shape of the file's first tensor whose name ends in ``suffix``, where it is known."""
        tensors = self.names.items() if isinstance(self.names, Mapping) else ()
        return next((tuple(tensor.shape) for name, tensor in tensors if name.endswith(suffix)), None)


Declaration = Callable[[Request], Spec]


@dataclass(frozen=True)
class Declared:
    """A Transformers class, ``family + head``, and what declares it.

    ``per_layer``: the config keys that layers may have of their own, besides those that all share.
    """

    family: str
    head: str
    model_type: str
    declaration: Declaration
    per_layer: tuple[str, ...]

    @property
    def own(self) -> bool:
        """Whether cobasin declares it itself."""
        return self.declaration.__module__.startswith(f"{__name__}.")

    @property
    def file(self) -> Path:
        """The file that declares it."""
        return Path(self.declaration.__code__.co_filename).resolve()


_DECLARED: dict[str, Declared] = {}


def declares(
    family: str, model_type: str, *heads: str, per_layer: tuple[str, ...] = ()
) -> Callable[[Declaration], Declaration]:
    """Register a declaration for the Transformers classes ``family + head``.

    ``per_layer`` names the config keys that it reads layer by layer (of ``per_layer_config``).

    Raises:
        InputError: for a class that another module declares; for what is no function; without heads.
    """
    if not heads or not all(isinstance(one, str) for one in (family, model_type, *heads)):
        given = ", ".join(shown(one) for one in (family, model_type, *heads))
        raise InputError(
            f"declares({given}): expected a family, its model_type and its heads, as 'Bert', 'bert', 'Model'"
        )

    def register(declaration: Declaration) -> Declaration:
        if not isinstance(declaration, FunctionType):  # its file and module say whose it is
            raise InputError(f"{family}: declared by a {type(declaration).__name__}; expected a function")
        for head in heads:
            new = Declared(family, head, model_type, declaration, per_layer)
            if not new.own:
                _load_own()  # so that it is the newcomer that is refused
            other = _DECLARED.get(family + head, new)
            if other.declaration.__module__ != declaration.__module__:
                raise InputError(f"{family + head} is already declared, by {other.declaration.__module__}")
            _DECLARED[family + head] = new
        return declaration

    return register


def known() -> dict[str, str]:
    """Every declared class, with its ``model_type``."""
    return {architecture: declared.model_type for architecture, declared in registered().items()}


def registered() -> dict[str, Declared]:
    """Every declared class with its declaration: cobasin's, those of installed packages, those of loaded files."""
    _load_own()
    _load_installed()
    return dict(_DECLARED)


def declared_in(architecture: str) -> Path | None:
    """The file from outside that declares a class; None where cobasin does so itself, or nobody does."""
    declared = registered().get(architecture)
    return None if declared is None or declared.own else declared.file


def files() -> list[Path]:
    """The files from outside that declare architectures."""
    return [declared.file for declared in registered().values() if not declared.own]


def declare(config: PreTrainedConfig, architecture: str, names: Collection[str] = ()) -> Spec:
    """The type of a model.

    Raises:
        NotDeclared: for an architecture that is not declared, with the classes of its family that are; for a
            configuration that a declaration does not cover.
        InputError: for a declaration from outside that does not hold together.
    """
    declared = registered().get(architecture)
    if declared is None:
        raise NotDeclared(_unknown(architecture))
    request = Request(config, architecture, declared.head, names)
    if declared.own:
        return declared.declaration(request)
    file = declared.declaration.__code__.co_filename
    try:
        spec = declared.declaration(request)
        found = mistakes(spec) if isinstance(spec, Spec) else [f"it returns {type(spec).__name__}, expected a Spec"]
    except InputError:
        raise
    except Exception as error:
        raise InputError(_where(file, error)) from error
    if found:
        raise InputError(f"{file}: the declaration of {architecture} is wrong: {'; '.join(found)}")
    return spec


def _unknown(architecture: str) -> str:
    siblings = [one.family + one.head for one in registered().values() if architecture.startswith(one.family)]
    own = f"of this family are: {', '.join(siblings)} (to read the file as one of these, name it in config.json)"
    known = own if siblings else "cobasin inspect --list shows what is"
    return (
        f"architecture {architecture!r} is not declared; {known}. An unknown architecture is never guessed; "
        "cobasin inspect MODEL --propose drafts a declaration, which --spec FILE.py uses"
    )


def load_file(path: str | Path) -> list[str]:
    """Run a Python file that the user names and register what it declares; returns the classes.

    Raises:
        InputError: where there is no such file, it fails (with the line), it declares nothing, or a class that is
            declared already or that the installed transformers does not have.
    """
    file = expanded(path, "spec file").resolve()
    if not file.is_file():
        raise InputError(f"spec file {path}: no such file")
    if file.suffix != ".py":
        raise InputError(f"spec file {path}: not a Python file, whose name ends in .py")
    module = ModuleType(f"spec file {file}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # as an import would: dataclasses look their module up
    try:
        with _registering() as before:
            # but with no __pycache__ beside it: a file that is edited twice in a second would be taken from there
            exec(compile(file.read_bytes(), file, "exec", dont_inherit=True), vars(module))
            new = [name for name, declared in _DECLARED.items() if before.get(name) is not declared]
            if not new:
                raise InputError("it declares nothing; decorate a function with cobasin.declares")
    except (Exception, SystemExit) as error:
        raise InputError(f"spec file {_where(str(file), error)}") from error
    return new


@cache
def _load_own() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


@cache
def _load_installed() -> None:
    """The declarations of installed packages. One that is broken is left out, with a warning of one line."""
    for entry in entry_points(group=ENTRY_POINTS):
        package = entry.dist.name if entry.dist else entry.value
        try:
            with _registering():
                entry.load()
        except (Exception, SystemExit) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            logging.getLogger(__name__).warning(
                "warning: the architectures of package %s are left out, its entry point %s fails: %s",
                *(package, entry.value, reason),
            )


@contextmanager
def _registering() -> Iterator[dict[str, Declared]]:
    """Check what is registered meanwhile; take all of it back where anything fails."""
    import transformers

    _load_own()
    before = dict(_DECLARED)
    try:
        yield before
        for name in _DECLARED.keys() - before.keys():
            if not hasattr(transformers, name):
                raise InputError(f"it declares {name}, which transformers {transformers.__version__} does not have")
            if (model_type := _DECLARED[name].model_type) not in transformers.CONFIG_MAPPING:
                raise InputError(f"it declares {name} of model_type {model_type!r}, which transformers does not have")
    except BaseException:
        _DECLARED.clear()
        _DECLARED.update(before)
        raise


def _where(file: str, error: BaseException) -> str:
    """File, line and kind of an error in a declaration, in one line."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if isinstance(error, SyntaxError) and error.filename == file:
        lines.append(error.lineno)
    place = f"{file}, line {lines[-1]}" if lines else file
    text = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    return " ".join(f"{place}: {text}".split())
