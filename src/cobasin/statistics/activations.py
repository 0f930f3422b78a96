"""Activations: what the modules of a model put out for a sample of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from cobasin.statistics.modules import is_linear, writing
from cobasin.statistics.rows import TokenCalls, Tokens, generator_of, token_calls
from cobasin.statistics.slices import Sums

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SAMPLED = 1024  # tokens


class Activations:
    """Collects the outputs of modules at sampled tokens: every token draws a number, and the lowest ones stay.

    What a token draws depends on its place in the data and the seed alone, so models of one family are sampled at
    the same tokens.

    Args:
        model: on the device where it runs.
        holders: its modules by the spec name of their weight; a head that is tied to an embedding is left out.
        sampled: how many tokens stay.
        seed: of the sample.
    """

    def __init__(
        self, model: PreTrainedModel, holders: Mapping[str, list[nn.Module]], sampled: int = SAMPLED, seed: int = 0
    ):
        self.model, self.sampled, self.seed = model, sampled, seed
        self.holders = {
            name: modules if len(modules) == 1 else [one for one in modules if not is_linear(one)]
            for name, modules in holders.items()
        }
        self.calls: TokenCalls = {}
        self.samples: dict[str, _Sample] = {}

    def add(self, inputs: Mapping[str, Tensor], labels: Tensor | None, row: int) -> None:
        """Run one batch, whose first row is row number ``row`` of the data."""
        self.look(inputs)
        tokens, about_tokens = Tokens(inputs), {name: iter(calls) for name, calls in self.calls.items()}

        @cache
        def draw(counts: tuple[int, ...]) -> Tensor:
            generators = (generator_of(self.seed, row + i) for i in range(len(counts)))
            return torch.cat(
                [torch.rand(n, generator=g, dtype=torch.float64) for n, g in zip(counts, generators, strict=True)]
            )

        def add(name: str, y: Tensor) -> None:
            if next(about_tokens[name]) and (found := tokens.split(y)) is not None:
                y, mask = found
                none = _Sample(torch.empty(0, dtype=torch.float64), torch.empty(0, y.shape[-1]))
                drawn = draw(tuple(mask.sum(1).tolist()))
                self.samples[name] = self.samples.get(name, none).with_(drawn, y[mask], self.sampled)

        with writing(self.holders, add), torch.no_grad():
            self.model(**inputs)

    def look(self, inputs: Mapping[str, Tensor]) -> None:
        """Tell, on a few rows, which calls of the modules are about tokens; once."""
        if not self.calls:
            self.calls = token_calls(self.model, inputs, partial(writing, self.holders))

    def state(self) -> dict[str, Tensor]:
        """The samples so far."""
        return _told(self.samples)

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Go on from the samples of `state`."""
        self.samples = _samples(state)

    def joined(self, total: Sums, more: Sums) -> Sums:
        """The sample of some rows and of those after them."""
        found = _samples(total)
        for name, later in _samples(more).items():
            found[name] = found[name].with_(*later, self.sampled) if name in found else later
        return _told(found)

    def result(self, rows: int) -> dict[str, Tensor]:
        """The outputs, float32 [tokens, n], by the spec name of the module's weight; tokens as in the data."""
        return {name: one.outputs for name, one in self.samples.items()}


class _Sample(NamedTuple):
    """What the tokens that stay drew (float64 [tokens]), and their outputs (float32 [tokens, n])."""

    drawn: Tensor
    outputs: Tensor

    def with_(self, drawn: Tensor, outputs: Tensor, size: int) -> _Sample:
        """The ``size`` lowest of these and more."""
        drawn = torch.cat([self.drawn, drawn])
        stay = drawn.argsort(stable=True)[:size].sort().values
        old, new = stay[stay < len(self.drawn)], stay[stay >= len(self.drawn)] - len(self.drawn)
        chosen = outputs[new.to(outputs.device)].float().cpu()
        return _Sample(drawn[stay], torch.cat([self.outputs[old], chosen]))


def _told(samples: Mapping[str, _Sample]) -> Sums:
    """Samples as tensors by name."""
    return {f"{name}/{part}": tensor for name, one in samples.items() for part, tensor in one._asdict().items()}


def _samples(told: Mapping[str, Tensor]) -> dict[str, _Sample]:
    names = [key.removesuffix("/drawn") for key in told if key.endswith("/drawn")]
    return {name: _Sample(told[f"{name}/drawn"], told[f"{name}/outputs"]) for name in names}
