"""Texts that models write themselves, which they can be compared on and learn from where there are no data.

* Of a decoder: from a random first token on.
* Of an encoder-decoder: what it writes to random tokens, and what it writes to that.
* Of a masked language model with a tokenizer: what it puts in place of masks, each token drawn anew given the others
  (Wang and Cho, *BERT has a Mouth, and It Must Speak*, 2019).
* Others write nothing, and read random tokens.

Of several models each writes as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.limits import first_written, part_of, positions, special_token, writer_of
from cobasin.data.tasks import task_of
from cobasin.data.tokens import has_masks, padded, text_length, tokenizer_of
from cobasin.errors import InputError
from cobasin.progress import Count, silent

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

LONGEST = 128  # tokens
DRAWN = 4  # times that a masked language model draws every token
_PARTS = 7  # of a text, of which one is masked at a time: about the 0.15 that such models are trained on
_ROWS = 16  # of a masked language model that runs at once
_AT_ONCE = 64  # texts that a model writes: what a decoder keeps of them in memory grows with their number

Row = dict[str, list[int]]


@dataclass(frozen=True)
class Blank:
    """A text of nothing but masks.

    Attributes:
        ids: of its tokens: masks, and what the tokenizer puts at the ends of a text.
        mask: the id of a mask.
        special: the ids that are at no other place.
    """

    ids: list[int]
    mask: int
    special: list[int]


def blank_of(checkpoint: Checkpoint) -> Blank | None:
    """What a masked language model is to fill; None of other models, and where no tokenizer fits it."""
    if task_of(checkpoint) != "masked_lm":
        return None
    try:
        tokenizer = tokenizer_of(checkpoint, blocks=True)
    except InputError:
        return None
    if not has_masks(checkpoint, tokenizer):
        return None
    mask, length = tokenizer.mask_token_id, text_length(checkpoint, tokenizer, None, LONGEST)
    ids = tokenizer(tokenizer.mask_token * length, truncation=True, max_length=length)["input_ids"]
    return Blank(ids, mask, tokenizer.all_special_ids) if mask in ids else None


def texts(
    models: Sequence[PreTrainedModel],
    count: int,
    seed: int,
    blank: Blank | None = None,
    report: Count = silent,
) -> list[Row]:
    """``count`` texts for models of one architecture, as rows of data; the same seed gives the same.

    Args:
        models: that `check_synthetic` lets pass.
        count: how many.
        seed: not negative.
        blank: of masked language models, what they fill.
        report: called with how many are written, and how many will be.
    """
    whole, config = models[0].config, part_of(models[0].config, "text_config")
    length = max(2, min(LONGEST, positions(whole)))
    generator = torch.Generator().manual_seed(seed)
    writes = models[0].can_generate() and getattr(config, "causal", True)  # XLM does where it looks back only
    if blank is None and not writes:
        return _rows(_tokens(config, (count, length), generator))
    shares = [len(range(i, count, len(models))) for i in range(len(models))]
    rows: list[Row] = []
    for model, share in zip(models, shares, strict=True):
        for start in range(0, share, _AT_ONCE):
            n = min(_AT_ONCE, share - start)
            if blank is not None:
                rows += _rows(filled(model, n, blank, generator))
            elif whole.is_encoder_decoder:
                rows += exchanged(model, n, length, generator)
            else:
                rows += _rows(written(model, n, length, generator))
            report(len(rows), count)
    return [rows[i] for i in torch.randperm(count, generator=generator).tolist()]


@torch.no_grad()
def written(model: PreTrainedModel, count: int, length: int, generator: torch.Generator) -> Tensor:
    """Token ids ``[count, length]`` that a model writes from a random first token on, at temperature one."""
    first = _tokens(part_of(model.config, "text_config"), (count, 1), generator)
    return _continued(model, "input_ids", first, length, generator, _ids(None), _ids(None))


@torch.no_grad()
def exchanged(model: PreTrainedModel, count: int, length: int, generator: torch.Generator) -> list[Row]:
    """Rows of what an encoder-decoder reads and what it writes to that, at temperature one, each to its end.

    Half of what it reads are ``length`` random tokens, the rest is what it wrote to these. A model that reads one
    vocabulary and writes another has random tokens only.
    """
    config, text = model.config, part_of(model.config, "text_config")
    shared = getattr(config, "share_encoder_decoder_embeddings", text.vocab_size == writer_of(config).vocab_size)
    again = count // 2 if shared else 0
    sources = _tokens(text, (count - again, length), generator).tolist()
    targets = _answers(model, sources, length - 1, generator)
    if again:
        sources += targets[:again]
        targets += _answers(model, targets[:again], length - 1, generator)
    return [{"input_ids": source, "label": target} for source, target in zip(sources, targets, strict=True)]


def _answers(
    model: PreTrainedModel, sources: list[list[int]], longest: int, generator: torch.Generator
) -> list[list[int]]:
    config = model.config
    read = {"input_ids": padded(sources, 0), "attention_mask": padded([[1] * len(row) for row in sources], 0)}
    read = {name: x.to(model.device) for name, x in read.items()}
    more = {"encoder_outputs": model.get_encoder()(**read), "attention_mask": read["attention_mask"]}
    start = first_written(config)
    assert start is not None  # without it nothing is made up
    first = torch.full((len(sources), 1), start)
    # Marian's padding has no embedding that it could be told by; M2M-100 does not count it
    ends, padding = (_ids(special_token(config, kind)) for kind in ("eos", "pad"))
    barred = padding[~torch.isin(padding, ends)]
    ids = _continued(model, "decoder_input_ids", first, longest + 1, generator, ends, barred, **more)[:, 1:]
    ended = torch.isin(ids, ends)
    lengths = (ended.cumsum(1) - ended.int() == 0).sum(1)  # the end is a part of the text
    return [row[:length] for row, length in zip(ids.tolist(), lengths.tolist(), strict=True)]


def _ids(named: int | list[int] | None) -> Tensor:
    """What a config has for a special token: none, one, or several."""
    return torch.tensor([] if named is None else named, dtype=torch.int64).view(-1)


def _continued(
    model: PreTrainedModel,
    name: str,
    ids: Tensor,
    length: int,
    generator: torch.Generator,
    ends: Tensor,
    barred: Tensor,
    **more: Any,
) -> Tensor:
    """Token ids ``[count, length]``, or fewer where all have ended, that begin with those that are given.

    Args:
        name: what the model calls them.
        ends: ids that end a text.
        barred: ids that are never drawn.
        more: of the model's arguments.
    """
    ids, ends, barred = ids.to(model.device), ends.to(model.device), barred.to(model.device)
    takes, cache = signature(model.forward).parameters, None
    # Transformers 5.24 calls what is kept of a text the same in every class; before, state spaces had a name of theirs
    names = () if hasattr(model.config, "causal") else ("cache", "cache_params", "past_key_values")
    kept = next((name for name in names if name in takes), None)
    # of decoders with a rotary embedding Bamba takes what follows on its memory for a beginning, unless it is told
    told = "position_ids" in takes and getattr(model.config, "rope_parameters", None) is not None
    while ids.shape[1] < length and not torch.isin(ids[:, 1:], ends).any(1).all():
        place = {"position_ids": torch.full_like(ids[:1, :1], ids.shape[1] - 1)} if told else {}
        if kept is None:  # GPT-1 keeps nothing, XLM gives nothing of it back: they read all anew
            found = model(**{name: ids}, **more)
        else:
            found = model(**{name: ids[:, -1:], kept: cache}, **place, **more, use_cache=True)
            if (cache := found.get(kept)) is None:
                raise InputError(
                    f"{type(model).__name__} reads texts from both sides, and so writes none: set is_decoder in its "
                    "config if it was trained as a decoder, give data, or match by weights"
                )
        logits = found.logits[:, -1].index_fill(1, barred, -torch.inf)
        ids = torch.cat([ids, _drawn(model, logits, generator)[:, None].to(ids)], 1)
    return ids.cpu()


@torch.no_grad()
def filled(model: PreTrainedModel, count: int, blank: Blank, generator: torch.Generator) -> Tensor:
    """Token ids ``[count, length]`` that a masked language model puts into a blank, at temperature one."""
    ids = torch.tensor(blank.ids).repeat(count, 1)
    free = (ids[0] == blank.mask).nonzero()[:, 0]
    special = torch.tensor(blank.special, device=model.device)
    for _ in range(DRAWN):
        order = free[torch.rand(count, len(free), generator=generator, dtype=torch.float32).argsort(1)]
        for places in order.split(-(-len(free) // _PARTS), 1):
            masked = ids.scatter(1, places, blank.mask)
            for some, at in zip(range(0, count, _ROWS), places.split(_ROWS), strict=True):
                logits = model(input_ids=masked[some : some + _ROWS].to(model.device)).logits
                logits = logits.take_along_dim(at[..., None].to(model.device), 1).index_fill(2, special, -torch.inf)
                ids[some : some + _ROWS].scatter_(1, at, _drawn(model, logits.flatten(0, 1), generator).view_as(at))
    return ids


def _drawn(model: PreTrainedModel, logits: Tensor, generator: torch.Generator) -> Tensor:
    """A token for every row of logits ``[rows, vocabulary]``.

    Raises:
        InputError: they are no numbers.
    """
    chances = logits.cpu().double().softmax(-1)
    if not chances.isfinite().all():
        raise InputError(f"{type(model).__name__}: what it writes is not finite: it overflows float32")
    return torch.multinomial(chances, 1, generator=generator)[:, 0]


def _tokens(config: PreTrainedConfig, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return torch.randint(config.vocab_size, shape, generator=generator)


def _rows(ids: Tensor) -> list[Row]:
    return [{"input_ids": row} for row in ids.tolist()]
