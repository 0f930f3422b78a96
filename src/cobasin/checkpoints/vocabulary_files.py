"""In what the vocabularies of two models differ, as far as the files of their tokenizers tell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from cobasin.errors import InputError

# Two models that say the same in the first of these files that both have, have the same vocabulary.
_VOCABULARY_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
)
_WRITTEN = "target_vocab.json"  # of a translator whose decoder has a vocabulary of its own
_WHOLE = "tokenizer.json"  # it has what was added, too
_WITH_IDS = (_WHOLE, "vocab.txt", "vocab.json")  # they say which token an id is
_ADDED = ("added_tokens.json", "tokenizer_config.json")  # what was added to files of other kinds


def vocabulary_problems(a: Path, b: Path) -> list[str]:
    """In what the vocabularies of two folders differ, as far as their files say it."""
    common = next((name for name in _VOCABULARY_FILES if (a / name).is_file() and (b / name).is_file()), None)
    found = _differences(a / common, b / common) if common else []
    if not found and common != _WHOLE:
        found = _contradictions(a, b)
    written = [folder / _WRITTEN for folder in (a, b)]
    return found + (_differences(*written) if all(path.is_file() for path in written) else [])


def _differences(first: Path, second: Path) -> list[str]:
    """What is wrong with two files of vocabularies of one kind."""
    one, other = _vocabulary(first), _vocabulary(second)
    if one == other:
        return []
    problem = f"the vocabularies differ ({first} and {second})"
    if isinstance(one, dict) and isinstance(other, dict):
        place = next(place for place in (*one, *other) if _token(one, place) != _token(other, place))
        problem += _such_as(place, _token(one, place), _token(other, place))
    return [problem]


def _contradictions(a: Path, b: Path) -> list[str]:
    """Where files of any kind say different tokens of an id; what only one folder says may hold for the other, too."""
    one, other = _said(a), _said(b)
    for place in one.keys() & other.keys():
        (token, first), (another, second) = one[place], other[place]
        if token != another:
            problem = f"the vocabularies differ ({first} and {second})"
            return [problem + _such_as(place, repr(token), repr(another))]
    return []


def _said(folder: Path) -> dict:
    """By id, the token that the files of a folder say it is, and the file."""
    whole = next((path for name in _WITH_IDS if (path := folder / name).is_file()), None)
    further = [] if whole and whole.name == _WHOLE else [path for name in _ADDED if (path := folder / name).is_file()]
    said = {}
    for path in [whole, *further] if whole else further:
        vocabulary = _vocabulary(path)
        said |= {place: (token, path) for place, token in vocabulary.items()} if isinstance(vocabulary, dict) else {}
    return said


def _such_as(place: object, token: str, another: str) -> str:
    return f": the same id is another token or none, such as {place}: {token} and {another}"


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
        if path.name in ("vocab.json", _WRITTEN, _ADDED[0]):
            if any(isinstance(place, dict) for place in content.values()):  # a vocabulary for every language
                return json.dumps(content, sort_keys=True)
            return {place: token for token, place in content.items()}
        if path.name == _ADDED[1]:
            return {int(place): one["content"] for place, one in (content.get("added_tokens_decoder") or {}).items()}
        vocabulary = content["model"].get("vocab") or {}
        if isinstance(vocabulary, list):  # with scores, which decide how a text is cut
            tokens = dict(enumerate(token for token, _ in vocabulary))
        else:
            tokens = {place: token for token, place in vocabulary.items()}
        return tokens | {one["id"]: one["content"] for one in content.get("added_tokens") or ()}
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise InputError(f"{path}: not a tokenizer file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
