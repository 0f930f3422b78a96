"""What users see of bad input: the exception, and how its lines are worded."""

from __future__ import annotations

import difflib
import math
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_LISTED = 20  # problems in one message
_KINDS = ("str", "int", "float", "bool")  # how pydantic calls the kinds that one value may have
_WORDS = {
    "string_type": "text",
    "string_unicode": "text that UTF-8 can say",
    "string_too_short": "text that is not empty",
    "list_type": "a list",
    "tuple_type": "a list",
    "too_short": "{min_length} or more",
    "too_long": "{max_length} values",
    "dict_type": "keys and values",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "literal_error": "{expected}",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number from {ge} on",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number up to {le}",
}  # of pydantic's errors
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 3, 60, 60


class InputError(Exception):
    """Something the user gave cannot be used; the message says what, where, what was expected and the way out.

    The command line prints the message and exits with code 2.
    """


class NotDeclared(InputError):
    """No declaration says what may act on a model: none of its class, or none that covers its settings."""


class NotProbed(InputError):
    """A model cannot be run on inputs that are made up, which says nothing against it."""


def listed(problems: Sequence[str]) -> str:
    """Problems in one line: the first of many, and how many more there are."""
    more = len(problems) - _LISTED
    return "; ".join([*problems[:_LISTED], *([f"and {more} more"] if more > 0 else [])])


def one_line(error: BaseException) -> str:
    """The text of an error from a library, fit for one line of an InputError."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + " ..."


def shown(value: Any) -> str:
    """A value in a message, cut where it is long; in one line, as of an array; of NumPy as Python's own."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()
    return re.sub(r"\n\s*", " ", _SHORT.repr(value))


def whole(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number, as Python and NumPy have them."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def finite(value: Any) -> TypeGuard[float]:
    """Whether a value is a number that a float can hold."""
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # a whole number beyond floats
        return False


def whole_number(name: str, given: Any, least: int) -> int:
    """A setting that is a whole number, as Python's: reports are written in JSON.

    Raises:
        InputError: it is none, or out of range.
    """
    if not whole(given) or not least <= given < 1 << 63:
        raise InputError(f"{name} {shown(given)}: expected a whole number from {least} to 2^63 - 1")
    return int(given)


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: what may be meant, and what there is."""
    known = sorted(known)
    spelled = {name.lower(): name for name in known}  # "TIES" has no letter of "ties"
    meant = difflib.get_close_matches(word.lower(), spelled, 1)
    return (f"; did you mean {spelled[meant[0]]!r}?" if meant else "") + f" (known: {', '.join(known)})"


def known_keys(content: Any, fields: Iterable[str], unsupported: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    """A mapping, all keys of which are known.

    Args:
        content: what should be one.
        fields: its keys.
        unsupported: keys that are refused by name: what to do instead.

    Raises:
        ValueError: it is none, or has others.
    """
    if not isinstance(content, Mapping):
        raise ValueError(f"{shown(content)}: expected keys and values ({', '.join(fields)})")
    for key in content:
        if unsupported and key in unsupported:
            raise ValueError(f"{key!r} is not supported: {unsupported[key]}")
        if key not in fields:
            raise ValueError(f"unknown key {str(key)!r}{nearest(str(key), fields)}")
    return content


def explain(error: ValidationError) -> str:
    """The first error in one line: the key, what is there, what is expected."""
    problems = error.errors(include_url=False)
    first, place = problems[0], problems[0]["loc"]
    inner = first.get("ctx", {}).get("error")
    about = [first]
    if place and place[-1] in _KINDS:  # of each of the kinds that a value may have, pydantic has an error of its own
        beside = [one for one in problems if one["loc"][:-1] == place[:-1] and one["loc"][-1] in _KINDS]
        about, place = (beside, place[:-1]) if len(beside) > 1 else (about, place)
    if place and place[-1] == "[key]":
        return f"{_dotted(place[:-2])}: key {shown(first['input'])}: {expected(about)}"
    key = _dotted(place)
    if first["type"] == "missing":
        return f"{key} is missing"
    if isinstance(inner, Exception):  # says all there is to say; the input would be the whole block
        return f"{key}: {inner}" if key else str(inner)
    return f"{key}: {shown(first['input'])}: {expected(about)}"


def expected(problems: Sequence[ErrorDetails]) -> str:
    """What was expected of a value, in words of this package: any of the kinds that its errors are about."""
    kinds = []
    for one in problems:
        limits = {name: f"{at:g}" if isinstance(at, float) else at for name, at in one.get("ctx", {}).items()}
        kinds.append(_WORDS.get(one["type"], "").format(**limits))
    if not all(kinds):
        return problems[0]["msg"]
    if "a number" in kinds and "a whole number" in kinds:
        kinds.remove("a whole number")
    given = problems[0]["input"]
    quoted = ", in quotes" if kinds == ["text"] and type(given) in (int, float) else ""
    return f"expected {' or '.join(kinds)}{quoted}"


def _dotted(place: Sequence[int | str]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
