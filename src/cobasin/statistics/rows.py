"""The rows of a batch: which of their tokens count, and random numbers that belong to a row."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_MASKS = {"input_ids": "attention_mask", "decoder_input_ids": "decoder_attention_mask"}


class Tokens:
    """What a tensor inside a model holds for every token of a batch that counts: padding never does.

    Text is told by its length: in an encoder-decoder the two sides of a batch must be padded to different lengths.
    Images and sounds have no padding; in a model of text, what has neither the length of the text nor one vector a
    row is not about its tokens, and nothing of it counts.

    Args:
        inputs: the keyword arguments of the model.
    """

    def __init__(self, inputs: Mapping[str, Tensor]):
        self.count = row_count(inputs)
        self._masks = [
            inputs.get(mask, torch.ones_like(inputs[ids])).bool().flatten(0, -2)
            for ids, mask in _MASKS.items()
            if ids in inputs
        ]
        self._dense = any(value.is_floating_point() for value in inputs.values())

    def split(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Lay ``x`` out as [rows, positions, n], and a mask [rows, positions] of what counts; None: nothing does.

        Args:
            x: [rows, positions, n], [rows, n], or of text [rows * positions, n]. Images may have more axes, or be cut
                into several pieces a row.
        """
        for mask in self._masks:
            if x.shape[:-1] in (mask.shape, (mask.numel(),)):
                return x.reshape(*mask.shape, x.shape[-1]), mask
        one_each = x.dim() == 2 and len(x) in (self.count, *map(len, self._masks))
        if one_each or (x.dim() > 2 and len(x) % self.count == 0 and (self._dense or not self._masks)):
            rows = len(x) if one_each else self.count
            x = x.reshape(rows, x.shape[:-1].numel() // rows, x.shape[-1])  # of n = 0, too: a head without labels
            return x, torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        return None

    def counted(self, x: Tensor) -> Tensor:
        """The vectors of ``x`` that count: [tokens, n]."""
        found = self.split(x)
        return x.new_empty(0, x.shape[-1]) if found is None else found[0][found[1]]


TokenCalls = dict[str, list[bool]]
"""For every module, which of its calls in a run of the model are about the tokens of the batch."""


def token_calls(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    watching: Callable[[Callable[[str, Tensor], None]], AbstractContextManager],
) -> TokenCalls:
    """Tell which calls are about tokens.

    A table of positions, [1, length, n], [length, length, n] or [positions, n], can look like tokens where there is one
    row, or a certain number of them. So a call is about tokens if it looks so on two rows and on three.

    Args:
        model: to run.
        inputs: of which the first rows are used.
        watching: while it is open, what it was given is called with the tensor of every call.
    """
    two, three = (
        _calls(model, {name: torch.cat([value[:count]] * count)[:count] for name, value in inputs.items()}, watching)
        for count in (2, 3)
    )
    return {name: [a and b for a, b in zip(calls, three[name], strict=True)] for name, calls in two.items()}


def _calls(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    watching: Callable[[Callable[[str, Tensor], None]], AbstractContextManager],
) -> TokenCalls:
    """Which calls look as if they were about tokens in a run on these inputs."""
    tokens = Tokens(inputs)
    found: TokenCalls = {}
    told = watching(lambda name, x: found.setdefault(name, []).append(tokens.split(x) is not None))
    with told, torch.no_grad(), unpadded(model):
        model(**inputs)
    return found


@contextmanager
def unpadded(model: PreTrainedModel) -> Iterator[None]:
    """Have a classifier read several rows of one length although no token is for padding: one that no text has."""
    config = model.config.get_text_config()
    if (given := getattr(config, "pad_token_id", None)) is not None:
        yield
        return
    config.pad_token_id = -1
    try:
        yield
    finally:
        config.pad_token_id = given


def row_count(inputs: Mapping[str, Tensor]) -> int:
    """The number of rows of a batch, the length of every input."""
    return len(next(iter(inputs.values())))


def generator_of(seed: int, row: int) -> torch.Generator:
    """Random numbers that depend on the seed and the number of a row alone, not on what was drawn before."""
    digest = hashlib.sha256(f"{seed}:{row}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))
