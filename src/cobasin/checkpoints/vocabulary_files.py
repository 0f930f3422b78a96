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
_WITH_IDS = ("tokenizer.json", "vocab.txt", "vocab.json")  # they say which token an id is


def vocabulary_problems(a: Path, b: Path) -> list[str]:
    """In what the vocabularies of two folders differ, as far as their files say it."""
    common = next((name for name in _VOCABULARY_FILES if (a / name).is_file() and (b / name).is_file()), None)
    names = [common] if common else _WITH_IDS
    first, second = (next((path for name in names if (path := folder / name).is_file()), None) for folder in (a, b))
    found = [] if first is None or second is None else _differences(first, second, bool(common))
    written = [folder / _WRITTEN for folder in (a, b)]
    return found + (_differences(*written, common=True) if all(path.is_file() for path in written) else [])


def _differences(first: Path, second: Path, common: bool) -> list[str]:
    """What is wrong with two files of vocabularies, which are of one kind where they are ``common`` to two models."""
    one, other = _vocabulary(first), _vocabulary(second)
    if not common and isinstance(one, dict) and isinstance(other, dict):
        # what a tokenizer adds to its vocabulary is not in all kinds of files
        one, other = ({place: of[place] for place in of if place in one and place in other} for of in (one, other))
    if one == other:
        return []
    problem = f"the vocabularies differ ({first} and {second})"
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
        if path.name in ("vocab.json", _WRITTEN):
            return {place: token for token, place in content.items()}
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
