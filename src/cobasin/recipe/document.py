"""A YAML file as plain data: mappings, lists and scalars, nothing else; no key twice."""

from __future__ import annotations

import re
import reprlib
from pathlib import Path
from typing import Any

import yaml

from cobasin.errors import InputError
from cobasin.paths import expanded


def read_yaml(path: str | Path, keys: str = "merge_method: and models:") -> dict[str, Any]:
    """The mapping that a YAML file holds, by default a recipe; ``keys`` are some that it should have, for messages.

    Raises:
        InputError: for a file that cannot be read, is no YAML or holds anything but one mapping; with the line.
    """
    try:
        text = expanded(path, "file").read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not text in UTF-8; expected YAML") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    try:
        content = yaml.load(text, _Loader)  # a SafeLoader: no tag can make it run anything
    except yaml.YAMLError as error:
        raise InputError(f"{path}{_where(error, text)}: {_what(error)}") from None
    except RecursionError:
        raise InputError(f"{path}: is nested too deeply") from None
    if content is None:
        raise InputError(f"{path}: is empty; expected keys like {keys}")
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a {type(content).__name__}; expected keys like {keys}")
    return content


def read_value(text: str) -> Any:
    """The value that a text is in YAML.

    Raises:
        yaml.YAMLError: it is none.
    """
    return yaml.load(text, _Loader)


def yaml_of(content: Any) -> str:
    """Plain data as YAML, which `read_yaml` reads as the same."""
    options: dict[str, Any] = {"sort_keys": False, "default_flow_style": None, "allow_unicode": True, "width": 120}
    return yaml.dump(content, Dumper=_Dumper, **options)


class _Loader(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys without a word; this refuses them, and says where a value is bad."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} is given twice", problem_mark=key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):  # of an impossible date, !!int abc and the like
            problem = f"{reprlib.repr(node.value)} is no {node.tag.rpartition(':')[2]}; write text in quotes"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None


class _Dumper(yaml.SafeDumper):
    """Writes in quotes what `_Loader` would read as a number."""


for _own in (_Loader, _Dumper):  # a number without a point, like 1e-4, which is a text in YAML 1.1
    _own.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), [*"-+0123456789"]
    )


def _where(error: yaml.YAMLError, text: str) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark or error.context_mark):
        return f", line {mark.line + 1}"
    if isinstance(error, yaml.reader.ReaderError):
        return f", line {text.count(chr(10), 0, error.position) + 1}"
    return ""


def _what(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        return f"the character {chr(error.character)!r} is not allowed in YAML"
    problem = " ".join(str(getattr(error, "problem", None) or error).split())
    if problem == "but found another document":
        return "another recipe begins; a file holds one: save each to a file of its own, and merge them in their order"
    return "a tab; indent with spaces" if r"'\t'" in problem else problem
