"""Input Grams: the second moment of what a linear map reads (Jin et al., RegMean, ICLR 2023)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cobasin.execution.devices import home
from cobasin.statistics.modules import input_axis, reading
from cobasin.statistics.rows import TokenCalls, Tokens, token_calls
from cobasin.statistics.slices import Sums, added

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class InputGram:
    """The mean of ``x̃ x̃ᵀ`` over tokens, where ``x̃ = (x, 1)`` and x is the input of a linear map.

    Attributes:
        matrix: float64 [n + 1, n + 1]; the last entry is 1, the last column holds the mean input.
        axis: the axis of the weight that runs over the inputs: 1 for ``nn.Linear``, 0 for GPT-2's ``Conv1D``.
    """

    matrix: Tensor
    axis: int


def add_tokens(total: Tensor, x: Tensor) -> None:
    """Add the tokens ``x``, [tokens, n] of any dtype, to ``Σ x̃ x̃ᵀ``, float64 [n + 1, n + 1], wherever that is."""
    x = x.detach().to(total)
    n, first = x.shape[-1], x.sum(0)
    total[:n, :n] += x.T @ x  # not in one step: that rounds as the sum lies in memory
    total[:n, n] += first
    total[n, :n] += first
    total[n, n] += len(x)


class Grams:
    """Collects the input Gram of every linear map; maps that read the same tensor share one.

    Args:
        model: on the device where it runs.
        maps: its linear maps by the spec name of their weight.

    Attributes:
        sums: ``Σ x̃ x̃ᵀ`` over the tokens so far, the last entry their number, by the name of the first of those maps.
    """

    joined = staticmethod(added)

    def __init__(self, model: PreTrainedModel, maps: Mapping[str, nn.Module]):
        self.model, self.maps = model, maps
        self.leaders: dict[str, str] = {}
        self.calls: TokenCalls = {}
        self.sums: Sums = {}

    def add(self, inputs: Mapping[str, Tensor], labels: Tensor | None, row: int) -> None:
        """Run one batch, and count the tokens of it that are not padding."""
        self.look(inputs)
        tokens, about_tokens = Tokens(inputs), {name: iter(calls) for name, calls in self.calls.items()}

        def add(name: str, x: Tensor) -> None:
            if next(about_tokens[name]):
                if name not in self.sums:
                    n = x.shape[-1] + 1
                    self.sums[name] = torch.zeros(n, n, dtype=torch.float64, device=home(x.device))
                add_tokens(self.sums[name], tokens.counted(x))

        leaders = dict.fromkeys(self.leaders.values())
        with reading({name: self.maps[name] for name in leaders}, add), torch.no_grad():
            self.model(**inputs)

    def look(self, inputs: Mapping[str, Tensor]) -> None:
        """Tell, on a few rows, which calls of the maps are about tokens, and which read the same tensors; once."""
        if self.leaders:
            return
        read: dict[str, list[tuple]] = {}
        kept = []  # so that no two tensors of the run are in the same place

        def watching(call: Callable[[str, Tensor], None]) -> AbstractContextManager:
            def note(name: str, x: Tensor) -> None:
                kept.append(x)
                read.setdefault(name, []).append((x.data_ptr(), x.shape, x.stride(), x._version))
                call(name, x)

            return reading(self.maps, note)

        self.calls = token_calls(self.model, inputs, watching)
        first: dict[tuple, str] = {}
        self.leaders = {name: first.setdefault(tuple(places), name) for name, places in read.items()}

    def state(self) -> dict[str, Tensor]:
        """The sums so far."""
        return self.sums

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Go on from the sums of `state`."""
        self.sums = {name: total.to(home(self.model.device)) for name, total in state.items()}

    def result(self, rows: int) -> dict[str, InputGram]:
        """The Gram of every map that has read a token that counts, by spec name."""
        means = {name: (total / total[-1, -1]).cpu() for name, total in self.sums.items() if total[-1, -1] > 0}
        return {
            name: InputGram(means[leader], input_axis(self.maps[name]))
            for name, leader in self.leaders.items()
            if leader in means
        }
